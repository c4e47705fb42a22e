-- Forks. A fork's log begins with rows of other sessions: for each stretch of it, from the one before up to upto, whose they are.
ALTER TABLE sessions ADD COLUMN parent TEXT    NOT NULL DEFAULT ''; -- '' = not a fork
ALTER TABLE sessions ADD COLUMN shared INTEGER NOT NULL DEFAULT 0;  -- the last event that is not its own

CREATE TABLE lineage (
  session INTEGER NOT NULL,                 -- sessions.num of the fork
  upto    INTEGER NOT NULL,
  source  INTEGER NOT NULL,                 -- sessions.num of whose rows they are
  PRIMARY KEY (session, upto)
) STRICT;

CREATE INDEX lineage_source ON lineage (source);

CREATE INDEX events_rewound ON events (session, seq) WHERE type = 'session.rewound';
