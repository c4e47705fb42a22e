-- The kill switch: what is stopped, and what was.
CREATE TABLE kills (
  id        TEXT   PRIMARY KEY,
  scope     TEXT   NOT NULL,
  target    TEXT   NOT NULL,
  org       TEXT   NOT NULL,
  level     TEXT   NOT NULL,
  reason    TEXT   NOT NULL,
  actor     TEXT   NOT NULL,
  at        INTEGER NOT NULL,
  lifted_at INTEGER NOT NULL DEFAULT 0,
  lifted_by TEXT   NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX kills_active ON kills (at) WHERE lifted_at = 0;
