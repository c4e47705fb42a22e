-- Whose a sandbox is: quotas and kills over a person hold with whatever key it was made. '' = a program's key alone.
ALTER TABLE sandboxes ADD COLUMN person TEXT NOT NULL DEFAULT '';
UPDATE sandboxes SET person = COALESCE((SELECT k.person FROM keys AS k WHERE k.id = sandboxes.owner), '');

CREATE INDEX sandboxes_person ON sandboxes (person) WHERE state IN ('creating', 'live', 'stopping');

ALTER TABLE boxes ADD COLUMN person TEXT NOT NULL DEFAULT '';
UPDATE boxes SET person = COALESCE((SELECT MIN(k.person) FROM keys AS k WHERE boxes.body LIKE '{"id":"' || boxes.id || '","owner":"' || k.id || '"%'), '');

-- Which key a key was made with: who ends one that others know wants those as well. '' = none, or nobody knows.
ALTER TABLE keys ADD COLUMN made_with TEXT NOT NULL DEFAULT '';
UPDATE keys SET made_with = maker WHERE maker LIKE 'apikey_%';
