-- Approvals that several people must give: how many (0 = one), and who has, as JSON; '' = nobody. A grant that came of one has them too.
ALTER TABLE approvals ADD COLUMN needs BIGINT NOT NULL DEFAULT 0;
ALTER TABLE approvals ADD COLUMN votes TEXT NOT NULL DEFAULT '';
ALTER TABLE grants    ADD COLUMN votes TEXT NOT NULL DEFAULT '';
