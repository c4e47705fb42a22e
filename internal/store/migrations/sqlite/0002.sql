-- What was decided about every effect, in the order it was decided.
CREATE TABLE audit (
  num      INTEGER PRIMARY KEY,
  at       INTEGER NOT NULL,
  org      TEXT    NOT NULL,
  actor    TEXT    NOT NULL,                -- who wanted it: a session, a key
  action   TEXT    NOT NULL,
  resource TEXT    NOT NULL,
  decision TEXT    NOT NULL,
  rule     TEXT    NOT NULL,                -- what decided
  detail   TEXT    NOT NULL                 -- JSON, '' = none
) STRICT;

CREATE INDEX audit_actor ON audit (actor, num);

CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'audit rows are insert-only'); END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit rows are insert-only'); END;

-- Hosts that a person let one session reach, beyond what its environment allows.
CREATE TABLE net_grants (
  id         TEXT    PRIMARY KEY,
  session    TEXT    NOT NULL,
  host       TEXT    NOT NULL,
  port       INTEGER NOT NULL,              -- 0 = 80 and 443
  uses       INTEGER NOT NULL,              -- requests left, -1 = without end
  granted_by TEXT    NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX net_grants_session ON net_grants (session, created_at);
