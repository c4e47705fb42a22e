-- What logins that have ended were renewed with, sealed, on its way back to the identity provider. The login's row may go meanwhile.
CREATE TABLE login_withdrawals (
  key     TEXT    PRIMARY KEY, -- of the login
  org     TEXT    NOT NULL,
  person  TEXT    NOT NULL,
  issuer  TEXT    NOT NULL, -- it goes to nobody else
  why     TEXT    NOT NULL, -- the login has ended
  key_id  TEXT    NOT NULL, -- of the data key it is sealed with
  sealed  BLOB    NOT NULL,
  until   INTEGER NOT NULL, -- it is given up then
  next_at INTEGER NOT NULL, -- nobody is at it, and the next attempt is due
  tries   INTEGER NOT NULL  -- how often it was taken; whoever has taken it before changes nothing
) STRICT;
CREATE INDEX login_withdrawals_next ON login_withdrawals (next_at);
