-- Sandboxes are counted per environment and per owner, and say why they were stopped.
ALTER TABLE sandboxes ADD COLUMN environment TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN owner       TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN why         TEXT NOT NULL DEFAULT '';

CREATE INDEX sandboxes_environment ON sandboxes (environment) WHERE state IN ('creating', 'live', 'stopping');
CREATE INDEX sandboxes_owner       ON sandboxes (owner)       WHERE state IN ('creating', 'live', 'stopping');

-- A row is locked by whoever counts, so that two who count at the same time do not both find room.
CREATE TABLE quotas (
  name TEXT PRIMARY KEY -- "environment ID" or "owner ID"
) STRICT;
