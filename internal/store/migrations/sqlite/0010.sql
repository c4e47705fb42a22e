-- Organizations, the people in them, and what their keys may do. What was there before belongs to the organization "default".
CREATE TABLE orgs (
  id          TEXT    PRIMARY KEY,
  name        TEXT    NOT NULL UNIQUE,
  created_at  INTEGER NOT NULL,
  archived_at INTEGER NOT NULL
) STRICT;

INSERT INTO orgs (id, name, created_at, archived_at) VALUES ('default', 'default', 0, 0);

CREATE TABLE users (
  id         TEXT    PRIMARY KEY,
  org        TEXT    NOT NULL,
  email      TEXT    NOT NULL,              -- lower case
  name       TEXT    NOT NULL,
  role       TEXT    NOT NULL,
  issuer     TEXT    NOT NULL,              -- with the next: who the identity provider says it is, '' = has not signed in yet
  subject    TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  removed_at INTEGER NOT NULL                -- 0 = active
) STRICT;

CREATE UNIQUE INDEX users_email   ON users (org, email);
CREATE UNIQUE INDEX users_subject ON users (issuer, subject) WHERE subject <> '';

ALTER TABLE keys ADD COLUMN org         TEXT    NOT NULL DEFAULT 'default';
ALTER TABLE keys ADD COLUMN kind        TEXT    NOT NULL DEFAULT 'api'; -- operator, api, login or environment
ALTER TABLE keys ADD COLUMN person      TEXT    NOT NULL DEFAULT '';    -- users.id, '' = a machine's
ALTER TABLE keys ADD COLUMN scopes      TEXT    NOT NULL DEFAULT '';    -- JSON, '' = all that the role may do
ALTER TABLE keys ADD COLUMN environment TEXT    NOT NULL DEFAULT '';    -- of an environment key
ALTER TABLE keys ADD COLUMN expires_at  INTEGER NOT NULL DEFAULT 0;

UPDATE keys SET kind = 'operator' WHERE role = 'admin';

CREATE INDEX keys_list   ON keys (org, created_at, id);
CREATE INDEX keys_person ON keys (person) WHERE person <> '';

ALTER TABLE sessions      ADD COLUMN org TEXT NOT NULL DEFAULT 'default';
ALTER TABLE sessions      ADD COLUMN person TEXT NOT NULL DEFAULT '';   -- users.id of whom it acts for, '' = a machine's key
ALTER TABLE agents        ADD COLUMN org TEXT NOT NULL DEFAULT 'default';
ALTER TABLE environments  ADD COLUMN org TEXT NOT NULL DEFAULT 'default';
ALTER TABLE files         ADD COLUMN org TEXT NOT NULL DEFAULT 'default';
ALTER TABLE boxes         ADD COLUMN org TEXT NOT NULL DEFAULT 'default';
ALTER TABLE box_snapshots ADD COLUMN org TEXT NOT NULL DEFAULT 'default';
ALTER TABLE policies      ADD COLUMN org TEXT NOT NULL DEFAULT 'default';
ALTER TABLE approvals     ADD COLUMN org TEXT NOT NULL DEFAULT 'default';
ALTER TABLE grants        ADD COLUMN org TEXT NOT NULL DEFAULT 'default';

DROP INDEX sessions_list;
DROP INDEX agents_list;
DROP INDEX environments_list;
DROP INDEX files_list;
DROP INDEX vaults_list;
DROP INDEX approvals_list;
DROP INDEX grants_list;
DROP INDEX box_snapshots_name;
CREATE INDEX sessions_list     ON sessions (org, created_at, id) WHERE deleted_at = 0;
CREATE INDEX sessions_person   ON sessions (person)              WHERE person <> '' AND deleted_at = 0;
CREATE INDEX agents_list       ON agents (org, created_at, id);
CREATE INDEX environments_list ON environments (org, created_at, id);
CREATE INDEX files_list        ON files (org, created_at, id);
CREATE INDEX vaults_list       ON vaults (org, created_at, id);
CREATE INDEX approvals_list    ON approvals (org, created_at, id);
CREATE INDEX grants_list       ON grants (org, created_at, id);
CREATE INDEX boxes_list        ON boxes (org, created_at, id);
CREATE UNIQUE INDEX box_snapshots_name ON box_snapshots (org, name) WHERE name <> '';
