-- Workers claim by organization where there are several.
CREATE INDEX sessions_ready_org ON sessions (org, ready_at) WHERE ready_at > 0 AND worker = '';

-- What the files of an organization take is counted before one more is stored. Content that several have counts once.
CREATE INDEX files_content ON files (org, digest, size);
