-- Policy documents, each version of them; the highest of an id is in force.
CREATE TABLE policies (
  num        INTEGER PRIMARY KEY,           -- grows with every save
  id         TEXT    NOT NULL,
  level      TEXT    NOT NULL,
  target     TEXT    NOT NULL,
  version    INTEGER NOT NULL,
  body       TEXT    NOT NULL,              -- Cedar
  created_at INTEGER NOT NULL,
  created_by TEXT    NOT NULL,
  UNIQUE (id, version)
) STRICT;

-- Calls that wait, or waited, for a person.
CREATE TABLE approvals (
  id         TEXT    PRIMARY KEY,
  session    TEXT    NOT NULL,
  call       TEXT    NOT NULL,
  action     TEXT    NOT NULL,
  resource   TEXT    NOT NULL,
  digest     TEXT    NOT NULL,
  request    TEXT    NOT NULL,              -- as a person is shown it
  why        TEXT    NOT NULL,
  rules      TEXT    NOT NULL,              -- JSON, '' = none
  approver   TEXT    NOT NULL,
  owner      TEXT    NOT NULL,
  state      TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  answer     TEXT    NOT NULL,              -- JSON, '' = none
  notice_at  INTEGER NOT NULL DEFAULT 1,    -- when somebody outside is to be told, 0 = no more
  notices    INTEGER NOT NULL DEFAULT 0,
  UNIQUE (session, call)
) STRICT;

CREATE INDEX approvals_list    ON approvals (created_at, id);
CREATE INDEX approvals_pending ON approvals (notice_at) WHERE state = 'pending';

CREATE TABLE grants (
  id            TEXT    PRIMARY KEY,
  human         TEXT    NOT NULL,           -- '' = any, here and in the next two
  agent         TEXT    NOT NULL,
  session       TEXT    NOT NULL,
  actions       TEXT    NOT NULL,           -- JSON
  resources     TEXT    NOT NULL,           -- JSON
  not_before    INTEGER NOT NULL,
  expires_at    INTEGER NOT NULL,
  max_uses      INTEGER NOT NULL,           -- 0 = without end
  uses          INTEGER NOT NULL,
  approved_by   TEXT    NOT NULL,
  approved_name TEXT    NOT NULL,
  why           TEXT    NOT NULL,
  created_at    INTEGER NOT NULL,
  revoked_at    INTEGER NOT NULL
) STRICT;

CREATE INDEX grants_list ON grants (created_at, id);
CREATE INDEX grants_live ON grants (expires_at) WHERE revoked_at = 0;

-- What a use of a grant was for, so that it is spent once.
CREATE TABLE grant_uses (
  id   TEXT    NOT NULL,
  item TEXT    NOT NULL,
  at   INTEGER NOT NULL,
  PRIMARY KEY (id, item)
) STRICT;

-- Counters of rate limits, each in its current window.
CREATE TABLE rates (
  id    TEXT    PRIMARY KEY,
  start INTEGER NOT NULL,
  n     INTEGER NOT NULL
) STRICT;
