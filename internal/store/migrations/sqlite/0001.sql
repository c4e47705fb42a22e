-- Times are microseconds since 1970 UTC, 0 = none. JSON is used only for what is never queried.

CREATE TABLE sessions (
  num            INTEGER PRIMARY KEY,       -- what events refer to: short, so that their keys are
  id             TEXT    NOT NULL UNIQUE,
  thread         TEXT    NOT NULL,
  head           INTEGER NOT NULL,
  last_at        INTEGER NOT NULL,
  phase          TEXT    NOT NULL,
  stop           TEXT    NOT NULL,          -- JSON, '' = none
  inbox          INTEGER NOT NULL,
  urgent         INTEGER NOT NULL,
  wake_at        INTEGER NOT NULL,
  input          INTEGER NOT NULL,          -- tokens
  output         INTEGER NOT NULL,
  cache_read     INTEGER NOT NULL,
  cache_write_5m INTEGER NOT NULL,
  cache_write_1h INTEGER NOT NULL,
  active         INTEGER NOT NULL,          -- microseconds
  running_since  INTEGER NOT NULL,
  title          TEXT    NOT NULL,
  metadata       TEXT    NOT NULL,          -- JSON, '' = none
  agent          TEXT    NOT NULL,
  agent_version  INTEGER NOT NULL,
  environment    TEXT    NOT NULL,
  created_at     INTEGER NOT NULL,
  updated_at     INTEGER NOT NULL,
  archived_at    INTEGER NOT NULL,
  epoch          INTEGER NOT NULL,
  worker         TEXT    NOT NULL,          -- '' = nobody holds it
  ready_at       INTEGER NOT NULL,          -- from when on a worker should claim it, 0 = nothing to do
  deleted_at     INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX sessions_list  ON sessions (created_at, id) WHERE deleted_at = 0;
CREATE INDEX sessions_ready ON sessions (ready_at)       WHERE ready_at > 0 AND worker = '';
CREATE INDEX sessions_held  ON sessions (worker)         WHERE worker <> '';

CREATE TABLE session_configs (
  session INTEGER PRIMARY KEY,
  config  TEXT    NOT NULL                  -- JSON
) STRICT;

-- The log. No foreign key: the only writer holds the session's row when it inserts.
CREATE TABLE events (
  key     INTEGER NOT NULL UNIQUE,          -- session << 32 | seq; the rows lie as they came, so that a group fills few pages
  session INTEGER NOT NULL,                 -- sessions.num
  seq     INTEGER NOT NULL,
  id      TEXT    NOT NULL,
  thread  TEXT    NOT NULL,
  type    TEXT    NOT NULL,
  ref     TEXT    NOT NULL,                 -- the event this one is about, '' = none
  at      INTEGER NOT NULL,
  data    BLOB    NOT NULL                  -- JSON, byte for byte
) STRICT;

CREATE UNIQUE INDEX events_id ON events (session, id);
-- Of some types there is one event about another at most. One index serves that and the search.
CREATE UNIQUE INDEX events_ref ON events (session, ref, type,
  (CASE WHEN type IN ('call.finished', 'input.processed', 'input.confirmation', 'input.tool_result') THEN 0 ELSE seq END))
  WHERE ref <> '';
CREATE INDEX events_inputs ON events (session, seq)
  WHERE type IN ('input.message', 'input.system', 'input.interrupt', 'input.confirmation', 'input.tool_result');

CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are insert-only'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are insert-only'); END;

CREATE TABLE workers (
  id          TEXT    PRIMARY KEY,
  host        TEXT    NOT NULL,
  started_at  INTEGER NOT NULL,
  lease_until INTEGER NOT NULL
) STRICT;

CREATE TABLE agents (
  id          TEXT    PRIMARY KEY,
  version     INTEGER NOT NULL,             -- the latest
  created_at  INTEGER NOT NULL,
  archived_at INTEGER NOT NULL
) STRICT;

CREATE INDEX agents_list ON agents (created_at, id);

CREATE TABLE agent_versions (
  agent   TEXT    NOT NULL,
  version INTEGER NOT NULL,
  body    TEXT    NOT NULL,                 -- JSON
  PRIMARY KEY (agent, version)
) STRICT;

CREATE TABLE environments (
  id          TEXT    PRIMARY KEY,
  created_at  INTEGER NOT NULL,
  archived_at INTEGER NOT NULL,
  body        TEXT    NOT NULL              -- JSON
) STRICT;

CREATE INDEX environments_list ON environments (created_at, id);

CREATE TABLE files (
  id           TEXT    PRIMARY KEY,
  session      TEXT    NOT NULL,            -- '' = an upload
  filename     TEXT    NOT NULL,
  media_type   TEXT    NOT NULL,
  digest       TEXT    NOT NULL,
  size         INTEGER NOT NULL,
  downloadable INTEGER NOT NULL,
  path         TEXT    NOT NULL,
  created_at   INTEGER NOT NULL,
  expires_at   INTEGER NOT NULL
) STRICT;

CREATE INDEX files_list    ON files (created_at, id);
CREATE INDEX files_session ON files (session, created_at, id);

CREATE TABLE checkpoints (
  id         TEXT    PRIMARY KEY,
  session    TEXT    NOT NULL,
  seq        INTEGER NOT NULL,
  call       TEXT    NOT NULL,
  parent     TEXT    NOT NULL,
  depth      INTEGER NOT NULL,
  digest     TEXT    NOT NULL,
  size       INTEGER NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX checkpoints_session ON checkpoints (session, seq);

CREATE TABLE sandboxes (
  id         TEXT    PRIMARY KEY,
  session    TEXT    NOT NULL,
  provider   TEXT    NOT NULL,
  host       TEXT    NOT NULL,
  generation TEXT    NOT NULL,
  state      TEXT    NOT NULL,
  checkpoint TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE INDEX sandboxes_live ON sandboxes (host, session) WHERE state <> 'destroyed';

CREATE TABLE keys (
  id         TEXT    PRIMARY KEY,
  name       TEXT    NOT NULL,
  hash       TEXT    NOT NULL UNIQUE,
  role       TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER NOT NULL
) STRICT;
