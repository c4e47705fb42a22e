-- Of a session's old checkpoints some are given up: first marked, then without what is stored of them.
ALTER TABLE checkpoints ADD COLUMN thinned_at INTEGER NOT NULL DEFAULT 0; -- 0 = it can be restored, as far as it is durable
