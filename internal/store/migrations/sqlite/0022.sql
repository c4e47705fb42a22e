-- What a deleted session leaves is removed by and by, when no fork needs it. Its row stays: numbers of rows are not used twice.
ALTER TABLE sessions ADD COLUMN purge INTEGER NOT NULL DEFAULT 0; -- of a deleted one: 0 = all is there, 1 = it is being removed, 2 = it is gone

CREATE INDEX sessions_purge  ON sessions (deleted_at) WHERE deleted_at > 0 AND purge < 2;
CREATE INDEX sessions_forks  ON sessions (parent)     WHERE parent <> '' AND purge = 0;
CREATE INDEX sandboxes_gone  ON sandboxes (updated_at) WHERE state = 'destroyed';

DROP TRIGGER events_no_delete;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events
  WHEN NOT EXISTS (SELECT 1 FROM sessions WHERE num = OLD.session AND deleted_at > 0 AND purge = 1)
  BEGIN SELECT RAISE(ABORT, 'events are insert-only'); END;
