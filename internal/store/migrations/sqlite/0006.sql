-- Boxes: sandboxes that clients made for themselves, and their saved states.
CREATE TABLE boxes (
  id         TEXT   PRIMARY KEY,
  host       TEXT   NOT NULL,
  state      TEXT   NOT NULL,
  machine    TEXT   NOT NULL,               -- sandboxes.id, '' = none now
  end_at     INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  body       TEXT   NOT NULL                -- JSON
) STRICT;

CREATE INDEX boxes_due     ON boxes (host, end_at) WHERE state = 'running';
CREATE INDEX boxes_machine ON boxes (machine)      WHERE machine <> '';

CREATE TABLE box_snapshots (
  id         TEXT   PRIMARY KEY,
  name       TEXT   NOT NULL,
  created_at INTEGER NOT NULL,
  body       TEXT   NOT NULL                -- JSON
) STRICT;

CREATE UNIQUE INDEX box_snapshots_name ON box_snapshots (name) WHERE name <> '';
