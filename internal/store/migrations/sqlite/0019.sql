-- What the identity provider gave to renew a login with, sealed. One row per login; none = it cannot be renewed.
CREATE TABLE login_renewals (
  key     TEXT    PRIMARY KEY REFERENCES keys (id) ON DELETE CASCADE,
  until   INTEGER NOT NULL, -- no renewal reaches further
  key_id  TEXT    NOT NULL, -- of the data key it is sealed with
  sealed  BLOB    NOT NULL,
  claimed INTEGER NOT NULL  -- somebody is at it until then; 0 = nobody
) STRICT;
