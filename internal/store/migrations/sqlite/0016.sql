-- Templates: names for prepared stacks of layers, the builds that make them, what these say, and what was uploaded for them.
CREATE TABLE templates (
  id         TEXT    PRIMARY KEY,
  org        TEXT    NOT NULL,
  name       TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  deleted_at INTEGER NOT NULL, -- 0 = it is there
  body       TEXT    NOT NULL  -- JSON
) STRICT;

CREATE UNIQUE INDEX templates_name ON templates (org, name) WHERE deleted_at = 0;

CREATE TABLE template_builds (
  id         TEXT    PRIMARY KEY,
  template   TEXT    NOT NULL,
  org        TEXT    NOT NULL,
  host       TEXT    NOT NULL,
  state      TEXT    NOT NULL,
  created_at INTEGER NOT NULL,
  body       TEXT    NOT NULL -- JSON
) STRICT;

CREATE INDEX template_builds_of   ON template_builds (template, created_at);
CREATE INDEX template_builds_open ON template_builds (host) WHERE state = 'building';

CREATE TABLE template_logs (
  build   TEXT    NOT NULL,
  n       INTEGER NOT NULL, -- of the line, from 0
  at      INTEGER NOT NULL,
  level   TEXT    NOT NULL,
  step    INTEGER NOT NULL,
  message TEXT    NOT NULL,
  PRIMARY KEY (build, n)
) STRICT;

CREATE TABLE template_files (
  template   TEXT    NOT NULL,
  hash       TEXT    NOT NULL, -- as its client calls it
  digest     TEXT    NOT NULL, -- of the blob
  size       INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (template, hash)
) STRICT;
