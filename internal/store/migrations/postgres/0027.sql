-- Two environments of an organization cannot have one name while they are not archived. Of those that have one already the oldest keeps it.
ALTER TABLE environments ADD COLUMN taken TEXT; -- the name, NULL = it is not this environment's alone
UPDATE environments SET taken = body::json ->> 'name' WHERE archived_at = 0;
UPDATE environments SET taken = NULL WHERE EXISTS (SELECT 1 FROM environments AS o WHERE o.org = environments.org AND o.taken = environments.taken
	AND (o.created_at < environments.created_at OR o.created_at = environments.created_at AND o.id < environments.id));
CREATE UNIQUE INDEX environments_taken ON environments (org, taken);

-- An environment that sessions name cannot be deleted.
CREATE INDEX sessions_environment ON sessions (environment) WHERE deleted_at = 0;
