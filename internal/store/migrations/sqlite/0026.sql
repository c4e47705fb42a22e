-- One person can be of several organizations, with one row of each. Which one they sign in to is their choice.
DROP INDEX users_subject;
CREATE UNIQUE INDEX users_subject ON users (issuer, subject, org) WHERE subject <> '';
