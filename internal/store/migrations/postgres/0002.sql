-- What was decided about every effect, in the order it was decided.
CREATE TABLE audit (
  num      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at       BIGINT  NOT NULL,
  org      TEXT    NOT NULL,
  actor    TEXT    NOT NULL,                -- who wanted it: a session, a key
  action   TEXT    NOT NULL,
  resource TEXT    NOT NULL,
  decision TEXT    NOT NULL,
  rule     TEXT    NOT NULL,                -- what decided
  detail   TEXT    NOT NULL                 -- JSON, '' = none
);

CREATE INDEX audit_actor ON audit (actor, num);

CREATE FUNCTION audit_insert_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'audit rows are insert-only'; END $$;

CREATE TRIGGER audit_no_update BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_insert_only();
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_insert_only();

-- Hosts that a person let one session reach, beyond what its environment allows.
CREATE TABLE net_grants (
  id         TEXT    COLLATE "C" PRIMARY KEY,
  session    TEXT    NOT NULL,
  host       TEXT    NOT NULL,
  port       BIGINT  NOT NULL,              -- 0 = 80 and 443
  uses       BIGINT  NOT NULL,              -- requests left, -1 = without end
  granted_by TEXT    NOT NULL,
  created_at BIGINT NOT NULL
);

CREATE INDEX net_grants_session ON net_grants (session, created_at);
