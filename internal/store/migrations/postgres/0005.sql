-- Policy documents, each version of them; the highest of an id is in force.
CREATE TABLE policies (
  num        BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,         -- grows with every save
  id         TEXT COLLATE "C" NOT NULL,
  level      TEXT    NOT NULL,
  target     TEXT    NOT NULL,
  version    BIGINT  NOT NULL,
  body       TEXT    NOT NULL,              -- Cedar
  created_at BIGINT  NOT NULL,
  created_by TEXT    NOT NULL,
  UNIQUE (id, version)
);

-- Calls that wait, or waited, for a person.
CREATE TABLE approvals (
  id         TEXT COLLATE "C" PRIMARY KEY,
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
  created_at BIGINT  NOT NULL,
  expires_at BIGINT  NOT NULL,
  answer     TEXT    NOT NULL,              -- JSON, '' = none
  notice_at  BIGINT  NOT NULL DEFAULT 1,    -- when somebody outside is to be told, 0 = no more
  notices    BIGINT  NOT NULL DEFAULT 0,
  UNIQUE (session, call)
);

CREATE INDEX approvals_list    ON approvals (created_at, id);
CREATE INDEX approvals_pending ON approvals (notice_at) WHERE state = 'pending';

CREATE TABLE grants (
  id            TEXT COLLATE "C" PRIMARY KEY,
  human         TEXT    NOT NULL,           -- '' = any, here and in the next two
  agent         TEXT    NOT NULL,
  session       TEXT    NOT NULL,
  actions       TEXT    NOT NULL,           -- JSON
  resources     TEXT    NOT NULL,           -- JSON
  not_before    BIGINT  NOT NULL,
  expires_at    BIGINT  NOT NULL,
  max_uses      BIGINT  NOT NULL,           -- 0 = without end
  uses          BIGINT  NOT NULL,
  approved_by   TEXT    NOT NULL,
  approved_name TEXT    NOT NULL,
  why           TEXT    NOT NULL,
  created_at    BIGINT  NOT NULL,
  revoked_at    BIGINT  NOT NULL
);

CREATE INDEX grants_list ON grants (created_at, id);
CREATE INDEX grants_live ON grants (expires_at) WHERE revoked_at = 0;

-- What a use of a grant was for, so that it is spent once.
CREATE TABLE grant_uses (
  id   TEXT COLLATE "C" NOT NULL,
  item TEXT    NOT NULL,
  at   BIGINT  NOT NULL,
  PRIMARY KEY (id, item)
);

-- Counters of rate limits, each in its current window.
CREATE TABLE rates (
  id    TEXT COLLATE "C" PRIMARY KEY,
  start BIGINT  NOT NULL,
  n     BIGINT  NOT NULL
);
