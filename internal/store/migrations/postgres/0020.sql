-- What logins that have ended were renewed with, sealed, on its way back to the identity provider. The login's row may go meanwhile.
CREATE TABLE login_withdrawals (
  key     TEXT    PRIMARY KEY, -- of the login
  org     TEXT    NOT NULL,
  person  TEXT    NOT NULL,
  issuer  TEXT    NOT NULL, -- it goes to nobody else
  why     TEXT    NOT NULL, -- the login has ended
  key_id  TEXT    NOT NULL, -- of the data key it is sealed with
  sealed  BYTEA   NOT NULL,
  until   BIGINT  NOT NULL, -- it is given up then
  next_at BIGINT  NOT NULL, -- nobody is at it, and the next attempt is due
  tries   BIGINT  NOT NULL  -- how often it was taken; whoever has taken it before changes nothing
);
CREATE INDEX login_withdrawals_next ON login_withdrawals (next_at);
