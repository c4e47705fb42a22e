-- Public keys that let their holders into sandboxes.
CREATE TABLE ssh_keys (
  id          TEXT    PRIMARY KEY,
  org         TEXT    NOT NULL,
  person      TEXT    NOT NULL, -- '' = a machine's
  holder      TEXT    NOT NULL, -- the API key that it hangs on; '' = the person alone
  name        TEXT    NOT NULL,
  public      TEXT    NOT NULL,
  fingerprint TEXT    NOT NULL,
  role        TEXT    NOT NULL,
  scopes      TEXT    NOT NULL, -- JSON
  created_at  BIGINT NOT NULL,
  expires_at  BIGINT NOT NULL, -- 0 = never
  revoked_at  BIGINT NOT NULL  -- 0 = not
);

CREATE UNIQUE INDEX ssh_keys_held    ON ssh_keys (org, fingerprint, person, holder) WHERE revoked_at = 0;
CREATE INDEX        ssh_keys_list    ON ssh_keys (org, created_at, id);
CREATE INDEX        ssh_keys_person  ON ssh_keys (person)     WHERE person <> '';
CREATE INDEX        ssh_keys_revoked ON ssh_keys (revoked_at) WHERE revoked_at <> 0;
