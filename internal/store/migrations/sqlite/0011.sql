-- Budgets: limits over sessions, agents and owners, what was spent of them, and what model calls under way have reserved.
ALTER TABLE sessions ADD COLUMN cost INTEGER NOT NULL DEFAULT 0; -- list cost, in billionths of a dollar

CREATE TABLE budgets (
  id         TEXT   PRIMARY KEY,            -- scope:target
  scope      TEXT   NOT NULL,
  target     TEXT   NOT NULL,
  org        TEXT   NOT NULL,
  limits     TEXT   NOT NULL,               -- JSON
  cost       INTEGER NOT NULL DEFAULT 0,
  tokens     INTEGER NOT NULL DEFAULT 0,
  steps      INTEGER NOT NULL DEFAULT 0,
  running    INTEGER NOT NULL DEFAULT 0,     -- µs
  sandbox    INTEGER NOT NULL DEFAULT 0,     -- µs
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE TABLE budget_holds (
  budget  TEXT   NOT NULL,
  session TEXT   NOT NULL,
  cost    INTEGER NOT NULL,
  tokens  INTEGER NOT NULL,
  steps   INTEGER NOT NULL,
  PRIMARY KEY (budget, session)
) STRICT;

CREATE INDEX budget_holds_session ON budget_holds (session);
