-- Times are microseconds since 1970 UTC, 0 = none. JSON is used only for what is never queried. Ids compare as bytes.

CREATE TABLE sessions (
  num            BIGINT  GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- what events refer to: short, so that their keys are
  id             TEXT COLLATE "C" NOT NULL UNIQUE,
  thread         TEXT    NOT NULL,
  head           BIGINT  NOT NULL,
  last_at        BIGINT  NOT NULL,
  phase          TEXT    NOT NULL,
  stop           TEXT    NOT NULL,          -- JSON, '' = none
  inbox          BIGINT  NOT NULL,
  urgent         BIGINT  NOT NULL,
  wake_at        BIGINT  NOT NULL,
  input          BIGINT  NOT NULL,          -- tokens
  output         BIGINT  NOT NULL,
  cache_read     BIGINT  NOT NULL,
  cache_write_5m BIGINT  NOT NULL,
  cache_write_1h BIGINT  NOT NULL,
  active         BIGINT  NOT NULL,          -- microseconds
  running_since  BIGINT  NOT NULL,
  title          TEXT    NOT NULL,
  metadata       TEXT    NOT NULL,          -- JSON, '' = none
  agent          TEXT    NOT NULL,
  agent_version  BIGINT  NOT NULL,
  environment    TEXT    NOT NULL,
  created_at     BIGINT  NOT NULL,
  updated_at     BIGINT  NOT NULL,
  archived_at    BIGINT  NOT NULL,
  epoch          BIGINT  NOT NULL,
  worker         TEXT    NOT NULL,          -- '' = nobody holds it
  ready_at       BIGINT  NOT NULL,          -- from when on a worker should claim it, 0 = nothing to do
  deleted_at     BIGINT  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);                   -- room for the new version of a row beside the old one

CREATE INDEX sessions_list  ON sessions (created_at, id) WHERE deleted_at = 0;
CREATE INDEX sessions_ready ON sessions (ready_at)       WHERE ready_at > 0 AND worker = '';
CREATE INDEX sessions_held  ON sessions (worker)         WHERE worker <> '';

CREATE TABLE session_configs (
  session BIGINT  PRIMARY KEY,
  config  TEXT    NOT NULL                  -- JSON
);

-- The log. No foreign key: the only writer holds the session's row when it inserts.
CREATE TABLE events (
  key     BIGINT  PRIMARY KEY,              -- session << 32 | seq
  session BIGINT  NOT NULL,                 -- sessions.num
  seq     BIGINT  NOT NULL,
  id      TEXT COLLATE "C" NOT NULL,
  thread  TEXT    NOT NULL,
  type    TEXT COLLATE "C" NOT NULL,
  ref     TEXT COLLATE "C" NOT NULL,                 -- the event this one is about, '' = none
  at      BIGINT  NOT NULL,
  data    BYTEA   NOT NULL                  -- JSON, byte for byte
) WITH (toast_tuple_target = 4080);         -- an ordinary event stays in its row, uncompressed

CREATE UNIQUE INDEX events_id ON events (session, id);
-- Of some types there is one event about another at most. One index serves that and the search.
CREATE UNIQUE INDEX events_ref ON events (session, ref, type,
  (CASE WHEN type IN ('call.finished', 'input.processed', 'input.confirmation', 'input.tool_result') THEN 0 ELSE seq END))
  WHERE ref <> '';
CREATE INDEX events_inputs ON events (session, seq)
  WHERE type IN ('input.message', 'input.system', 'input.interrupt', 'input.confirmation', 'input.tool_result');

CREATE FUNCTION events_insert_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'events are insert-only'; END $$;

CREATE TRIGGER events_no_update BEFORE UPDATE OR DELETE ON events FOR EACH ROW EXECUTE FUNCTION events_insert_only();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events FOR EACH STATEMENT EXECUTE FUNCTION events_insert_only();

CREATE TABLE workers (
  id          TEXT COLLATE "C" PRIMARY KEY,
  host        TEXT    NOT NULL,
  started_at  BIGINT  NOT NULL,
  lease_until BIGINT  NOT NULL
);

CREATE TABLE agents (
  id          TEXT COLLATE "C" PRIMARY KEY,
  version     BIGINT  NOT NULL,             -- the latest
  created_at  BIGINT  NOT NULL,
  archived_at BIGINT  NOT NULL
);

CREATE INDEX agents_list ON agents (created_at, id);

CREATE TABLE agent_versions (
  agent   TEXT    NOT NULL,
  version BIGINT  NOT NULL,
  body    TEXT    NOT NULL,                 -- JSON
  PRIMARY KEY (agent, version)
);

CREATE TABLE environments (
  id          TEXT COLLATE "C" PRIMARY KEY,
  created_at  BIGINT  NOT NULL,
  archived_at BIGINT  NOT NULL,
  body        TEXT    NOT NULL              -- JSON
);

CREATE INDEX environments_list ON environments (created_at, id);

CREATE TABLE files (
  id           TEXT COLLATE "C" PRIMARY KEY,
  session      TEXT    NOT NULL,            -- '' = an upload
  filename     TEXT    NOT NULL,
  media_type   TEXT    NOT NULL,
  digest       TEXT    NOT NULL,
  size         BIGINT  NOT NULL,
  downloadable BIGINT  NOT NULL,
  path         TEXT    NOT NULL,
  created_at   BIGINT  NOT NULL,
  expires_at   BIGINT  NOT NULL
);

CREATE INDEX files_list    ON files (created_at, id);
CREATE INDEX files_session ON files (session, created_at, id);

CREATE TABLE checkpoints (
  id         TEXT COLLATE "C" PRIMARY KEY,
  session    TEXT    NOT NULL,
  seq        BIGINT  NOT NULL,
  call       TEXT    NOT NULL,
  parent     TEXT    NOT NULL,
  depth      BIGINT  NOT NULL,
  digest     TEXT    NOT NULL,
  size       BIGINT  NOT NULL,
  created_at BIGINT  NOT NULL
);

CREATE INDEX checkpoints_session ON checkpoints (session, seq);

CREATE TABLE sandboxes (
  id         TEXT COLLATE "C" PRIMARY KEY,
  session    TEXT    NOT NULL,
  provider   TEXT    NOT NULL,
  host       TEXT    NOT NULL,
  generation TEXT    NOT NULL,
  state      TEXT    NOT NULL,
  checkpoint TEXT    NOT NULL,
  created_at BIGINT  NOT NULL,
  updated_at BIGINT  NOT NULL
);

CREATE INDEX sandboxes_live ON sandboxes (host, session) WHERE state <> 'destroyed';

CREATE TABLE keys (
  id         TEXT COLLATE "C" PRIMARY KEY,
  name       TEXT    NOT NULL,
  hash       TEXT    NOT NULL UNIQUE,
  role       TEXT    NOT NULL,
  created_at BIGINT  NOT NULL,
  revoked_at BIGINT  NOT NULL
);
