-- The audit as a Merkle log: numbers without gaps, and with each record what ties it to the tree. The hashes of the records that are
-- here already are computed by the program in the same transaction.
CREATE TABLE audit_log (
  num      BIGINT  PRIMARY KEY,             -- 1, 2, 3...
  at       BIGINT  NOT NULL,
  org      TEXT    NOT NULL,
  actor    TEXT    NOT NULL,                -- who wanted it: a session, a key
  action   TEXT    NOT NULL,
  resource TEXT    NOT NULL,
  decision TEXT    NOT NULL,
  rule     TEXT    NOT NULL,                -- what decided
  detail   TEXT    NOT NULL,                -- JSON, '' = none
  proof    BYTEA   NOT NULL,                -- the salt, or what stands for redacted fields
  hashes   BYTEA   NOT NULL                 -- the leaf, then the subtrees that it completes
);

INSERT INTO audit_log SELECT row_number() OVER (ORDER BY num), at, org, actor, action, resource, decision, rule, detail,
  decode(replace(gen_random_uuid()::text, '-', ''), 'hex'), ''::bytea FROM audit ORDER BY num;

DROP TABLE audit;
ALTER TABLE audit_log RENAME TO audit;
ALTER INDEX audit_log_pkey RENAME TO audit_pkey;

CREATE INDEX audit_actor ON audit (actor, num);

-- A record may lose the text of fields, once and for good. That the hash stays what it was is for the verifier to find out.
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit FOR EACH ROW WHEN (NOT (length(OLD.hashes) = 0 OR
    NEW.num = OLD.num AND NEW.at = OLD.at AND NEW.org = OLD.org AND NEW.action = OLD.action AND NEW.decision = OLD.decision
    AND NEW.hashes = OLD.hashes AND NEW.proof <> OLD.proof AND length(NEW.proof) > 16
    AND NEW.actor IN (OLD.actor, '[redacted]') AND NEW.resource IN (OLD.resource, '[redacted]')
    AND NEW.rule IN (OLD.rule, '[redacted]') AND NEW.detail IN (OLD.detail, '"[redacted]"')))
  EXECUTE FUNCTION audit_insert_only();
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_insert_only();
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_insert_only();
