-- Checkpoints begin as layers on a host, and become durable later.
ALTER TABLE checkpoints ADD COLUMN prior      TEXT    NOT NULL DEFAULT ''; -- the state before it
ALTER TABLE checkpoints ADD COLUMN host       TEXT    NOT NULL DEFAULT ''; -- is to store the delta; '' = done, or lost when there is no digest
ALTER TABLE checkpoints ADD COLUMN durable_at INTEGER NOT NULL DEFAULT 0;

UPDATE checkpoints SET durable_at = created_at, prior = parent WHERE digest <> '';

CREATE INDEX checkpoints_local ON checkpoints (host, created_at) WHERE host <> '';
