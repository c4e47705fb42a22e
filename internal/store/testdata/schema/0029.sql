INSERT INTO sessions (id, thread, head, last_at, phase, stop, inbox, urgent, wake_at, input, output, cache_read, cache_write_5m,
  cache_write_1h, active, running_since, title, metadata, agent, agent_version, environment, created_at, updated_at, archived_at,
  epoch, worker, ready_at)
VALUES ('sesn_1', 'sthr_1', 2, 2000, 'idle', '{"type":"end_turn"}', 1, 0, 0, 1, 2, 3, 4, 5, 6000, 0, 'title', '{"a":"b"}',
  'agent_1', 1, 'env_1', 1000, 2000, 0, 3, '', 2000);
INSERT INTO session_configs (session, config) VALUES (1, '{"environment_id":"env_1"}');
INSERT INTO events (key, session, seq, id, thread, type, ref, at, data)
VALUES (4294967297, 1, 1, 'sevt_1', 'sthr_1', 'session.created', '', 1000, CAST('{}' AS BYTES));
INSERT INTO events (key, session, seq, id, thread, type, ref, at, data)
VALUES (4294967298, 1, 2, 'sevt_2', 'sthr_1', 'input.message', '', 2000, CAST('{"content":[]}' AS BYTES));
INSERT INTO agents (id, version, created_at, archived_at) VALUES ('agent_1', 1, 1000, 0);
INSERT INTO agent_versions (agent, version, body) VALUES ('agent_1', 1, '{"id":"agent_1","version":1,"name":"n"}');
INSERT INTO environments (id, created_at, archived_at, body) VALUES ('env_1', 1000, 0, '{"id":"env_1","name":"e"}');
INSERT INTO files (id, session, filename, media_type, digest, size, downloadable, path, created_at, expires_at)
VALUES ('file_1', '', 'f', 'text/plain', 'd', 1, 1, '', 1000, 0);
INSERT INTO checkpoints (id, session, seq, call, parent, depth, digest, size, created_at)
VALUES ('ckpt_1', 'sesn_1', 1, '', '', 0, 'd', 1, 1000);
INSERT INTO sandboxes (id, session, provider, host, generation, state, checkpoint, created_at, updated_at, environment, owner, why)
VALUES ('sbx_1', 'sesn_1', 'native', 'h', 'g', 'stopped', '', 1000, 1000, 'env_1', 'apikey_1', 'w');
INSERT INTO quotas (name) VALUES ('owner apikey_1');
INSERT INTO keys (id, name, hash, role, created_at, revoked_at) VALUES ('apikey_1', 'n', 'h', 'admin', 1000, 0);
INSERT INTO net_grants (id, session, host, port, uses, granted_by, created_at) VALUES ('ngrt_1', 'sesn_1', 'a.test', 0, -1, 'k', 1000);
INSERT INTO sessions (id, thread, head, last_at, phase, stop, inbox, urgent, wake_at, input, output, cache_read, cache_write_5m,
  cache_write_1h, active, running_since, title, metadata, agent, agent_version, environment, created_at, updated_at, archived_at,
  epoch, worker, ready_at, parent, shared)
VALUES ('sesn_2', 'sthr_2', 2, 3000, 'idle', '', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '', '', 'agent_1', 1, 'env_1', 3000, 3000, 0, 0, '', 0,
  'sesn_1', 1);
INSERT INTO lineage (session, upto, source) VALUES (2, 1, 1);
INSERT INTO events (key, session, seq, id, thread, type, ref, at, data)
VALUES (8589934594, 2, 2, 'sevt_3', 'sthr_2', 'session.forked', '', 3000, CAST('{"parent":"sesn_1","seq":1,"config":{}}' AS BYTES));
INSERT INTO vaults (id, org, created_at, archived_at, body) VALUES ('vlt_1', 'default', 1000, 0, '{"id":"vlt_1","display_name":"v"}');
INSERT INTO credentials (id, org, vault, created_at, archived_at, uniq, version, body, key_id, sealed)
VALUES ('vcrd_1', 'default', 'vlt_1', 1000, 0, 'name A', 1, '{"id":"vcrd_1","vault_id":"vlt_1"}', 'k', CAST('x' AS BYTES));
INSERT INTO vault_keys (org, id, wrapping, wrapped, sequence, tag)
VALUES ('default', 'k', '{}', CAST('x' AS BYTES), 1, CAST('x' AS BYTES));
INSERT INTO policies (id, level, target, version, body, created_at, created_by) VALUES ('pol_1', 'organization', '', 1, '', 1000, 'n');
INSERT INTO approvals (id, session, call, action, resource, digest, request, why, rules, approver, owner, state, created_at, expires_at, answer)
VALUES ('apr_1', 'sesn_1', 'sevt_9', 'bash', 'ls', 'd', 'bash {}', 'w', '', 'any', '', 'pending', 1000, 2000, '');
INSERT INTO approvals (id, session, call, action, resource, digest, request, why, rules, approver, owner, state, created_at, expires_at, answer, net)
VALUES ('apr_2', 'sesn_1', 'apr_2', 'http.request', 'a.test', 'd', 'http.request {}', 'w', '', 'any', '', 'pending', 1000, 2000, '', '{"host":"a.test"}');
INSERT INTO net_usage (id, requests, bytes, hosts, updated_at) VALUES ('sesn_1', 1, 2, 1, 1000);
INSERT INTO net_hosts (id, host) VALUES ('sesn_1', 'a.test');
INSERT INTO grants (id, human, agent, session, actions, resources, not_before, expires_at, max_uses, uses, approved_by, approved_name, why, created_at, revoked_at)
VALUES ('grant_1', '', '', '', '["bash"]', '["*"]', 0, 2000, 1, 0, 'apikey_1', 'n', 'w', 1000, 0);
INSERT INTO grant_uses (id, item, at) VALUES ('grant_1', 'k', 1000);
INSERT INTO rates (id, start, n) VALUES ('r', 0, 1);
INSERT INTO boxes (id, host, state, machine, end_at, created_at, body) VALUES ('boxa', 'h', 'running', 'sbx_2', 2000, 1000, '{"id":"boxa"}');
INSERT INTO box_snapshots (id, name, created_at, body) VALUES ('snapa', 'n', 1000, '{"id":"snapa","name":"n"}');
INSERT INTO orgs (id, name, created_at, archived_at) VALUES ('org_1', 'acme', 1000, 0);
INSERT INTO users (id, org, email, name, role, issuer, subject, created_at, removed_at)
VALUES ('user_1', 'org_1', 'a@acme.test', 'A', 'developer', 'https://idp.test', 's', 1000, 0);
INSERT INTO keys (id, name, hash, role, created_at, revoked_at, org, kind, person, scopes, environment, expires_at, maker)
VALUES ('apikey_2', 'n', 'h2', 'developer', 1000, 0, 'org_1', 'login', 'user_1', '["read"]', '', 9000, 'user_1');
INSERT INTO agents (id, version, created_at, archived_at, org) VALUES ('agent_2', 1, 1000, 0, 'org_1');
INSERT INTO agent_versions (agent, version, body) VALUES ('agent_2', 1, '{"id":"agent_2","version":1,"name":"n"}');
INSERT INTO budgets (id, scope, target, org, limits, cost, created_at, updated_at) VALUES ('agent:agent_1', 'agent', 'agent_1', 'default', '{"cost":7}', 3, 1000, 1000);
INSERT INTO budget_holds (budget, session, cost, tokens, steps) VALUES ('agent:agent_1', 'sesn_1', 2, 0, 1);
INSERT INTO kills (id, scope, target, org, level, reason, actor, at, lifted_at) VALUES ('kill_1', 'session', 'sesn_9', 'default', 'stop', 'r', 'n', 1000, 2000);
INSERT INTO templates (id, org, name, created_at, deleted_at, body)
VALUES ('tpla', 'default', 'n', 1000, 0, '{"id":"tpla","name":"n","tags":{"default":{"build":"b1","at":"2026-01-01T00:00:00Z"}}}');
INSERT INTO template_builds (id, template, org, host, state, created_at, body)
VALUES ('b1', 'tpla', 'default', 'h', 'ready', 1000, '{"id":"b1","template":"tpla","state":"ready","result":{"layers":["l"]}}');
INSERT INTO template_logs (build, n, at, level, step, message) VALUES ('b1', 0, 1000, 'info', 1, 'm');
INSERT INTO template_files (template, hash, digest, size, created_at) VALUES ('tpla', 'h', 'd', 1, 1000);
INSERT INTO ssh_keys (id, org, person, holder, name, public, fingerprint, role, scopes, created_at, expires_at, revoked_at)
VALUES ('sshkey_1', 'org_1', 'user_1', '', 'laptop', 'ssh-ed25519 AAAA', 'SHA256:x', 'developer', 'null', 1000, 0, 0);
UPDATE approvals SET needs = 2, votes = '[{"key":"apikey_2","name":"ann","at":"2026-01-02T03:04:05Z"}]';
INSERT INTO login_renewals (key, until, key_id, sealed, claimed) VALUES ('apikey_1', 2000, 'vk', CAST('x' AS BYTES), 0);
INSERT INTO login_withdrawals (key, org, person, issuer, why, key_id, sealed, until, next_at, tries)
VALUES ('apikey_9', 'org_1', 'user_1', 'https://idp.test', 'the login was ended', 'vk', CAST('x' AS BYTES), 2000, 1000, 3);
INSERT INTO sandboxes (id, session, provider, host, generation, state, checkpoint, created_at, updated_at, environment, owner, person, why)
VALUES ('sbx_3', '', 'native', 'h', 'g', 'live', '', 1000, 1000, '', 'apikey_2', 'user_1', '');
INSERT INTO boxes (id, host, state, machine, end_at, created_at, body, org, person)
VALUES ('boxb', 'h', 'running', 'sbx_3', 2000, 1000, '{"id":"boxb","owner":"apikey_2","host":"h"}', 'org_1', 'user_1');
INSERT INTO keys (id, name, hash, role, created_at, revoked_at, org, kind, person, scopes, environment, expires_at, maker, made_with)
VALUES ('apikey_3', 'n', 'h3', 'developer', 1000, 0, 'org_1', 'api', '', 'null', '', 0, 'user_1', 'apikey_2');
INSERT INTO identity (one, id) VALUES (1, 'db_1');
INSERT INTO checkpoints (id, session, seq, call, parent, depth, digest, size, created_at, thinned_at)
VALUES ('ckpt_2', 'sesn_1', 2, '', '', 0, '', 0, 1000, 2000);
