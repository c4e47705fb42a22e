-- The name of this database. A data directory keeps it and refuses any other database.
CREATE TABLE identity (one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
