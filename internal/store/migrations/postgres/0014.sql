-- An approval may be of a host that a session was refused, and a key says who made it.
ALTER TABLE approvals ADD COLUMN net   TEXT NOT NULL DEFAULT ''; -- JSON: the host; '' = of a call
ALTER TABLE keys      ADD COLUMN maker TEXT NOT NULL DEFAULT ''; -- a person, or a key; '' = who runs the server, or nobody knows

CREATE UNIQUE INDEX approvals_net     ON approvals (session, resource) WHERE net <> '' AND state = 'pending';
CREATE INDEX        approvals_net_org ON approvals (org)               WHERE net <> '' AND state = 'pending';

-- What has been sent out, and what gateways have taken in advance, against the budget of a session.
CREATE TABLE net_usage (
  id         TEXT   PRIMARY KEY, -- a session, or a sandbox without one
  requests   BIGINT NOT NULL,
  bytes      BIGINT NOT NULL,
  hosts      BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
);

CREATE TABLE net_hosts (
  id   TEXT NOT NULL,
  host TEXT NOT NULL,
  PRIMARY KEY (id, host)
);
