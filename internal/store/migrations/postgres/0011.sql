-- Budgets: limits over sessions, agents and owners, what was spent of them, and what model calls under way have reserved.
ALTER TABLE sessions ADD COLUMN cost BIGINT NOT NULL DEFAULT 0; -- list cost, in billionths of a dollar

CREATE TABLE budgets (
  id         TEXT   PRIMARY KEY,            -- scope:target
  scope      TEXT   NOT NULL,
  target     TEXT   NOT NULL,
  org        TEXT   NOT NULL,
  limits     TEXT   NOT NULL,               -- JSON
  cost       BIGINT NOT NULL DEFAULT 0,
  tokens     BIGINT NOT NULL DEFAULT 0,
  steps      BIGINT NOT NULL DEFAULT 0,
  running    BIGINT NOT NULL DEFAULT 0,     -- µs
  sandbox    BIGINT NOT NULL DEFAULT 0,     -- µs
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
);

CREATE TABLE budget_holds (
  budget  TEXT   NOT NULL,
  session TEXT   NOT NULL,
  cost    BIGINT NOT NULL,
  tokens  BIGINT NOT NULL,
  steps   BIGINT NOT NULL,
  PRIMARY KEY (budget, session)
);

CREATE INDEX budget_holds_session ON budget_holds (session);
