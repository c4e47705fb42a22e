-- Vaults. A credential's body is not secret; its sealed part opens only with a key that is not in the database.

CREATE TABLE vaults (
  id          TEXT COLLATE "C" PRIMARY KEY,
  org         TEXT    NOT NULL,
  created_at  BIGINT  NOT NULL,
  archived_at BIGINT  NOT NULL,
  body        TEXT    NOT NULL              -- JSON
);

CREATE INDEX vaults_list ON vaults (created_at, id);

CREATE TABLE credentials (
  id            TEXT COLLATE "C" PRIMARY KEY,
  org           TEXT    NOT NULL,
  vault         TEXT COLLATE "C" NOT NULL,
  created_at    BIGINT  NOT NULL,
  archived_at   BIGINT  NOT NULL,
  uniq          TEXT    NOT NULL,             -- what no two living credentials of a vault share
  version       BIGINT  NOT NULL,
  body          TEXT    NOT NULL,             -- JSON
  key_id        TEXT    NOT NULL,             -- the data key, '' = purged
  sealed        BYTEA   NOT NULL,
  renewed_until BIGINT  NOT NULL DEFAULT 0     -- until when one process is renewing it with its issuer
);

CREATE INDEX credentials_list ON credentials (vault, created_at, id);
CREATE UNIQUE INDEX credentials_uniq ON credentials (vault, uniq) WHERE archived_at = 0;

CREATE TABLE vault_keys (
  org      TEXT    PRIMARY KEY,
  id       TEXT    NOT NULL,                -- of the data key
  wrapping TEXT    NOT NULL,                -- JSON: how the next column opens
  wrapped  BYTEA   NOT NULL,
  sequence BIGINT  NOT NULL,
  tag      BYTEA   NOT NULL                  -- over the sequence and every credential's id and version
);
