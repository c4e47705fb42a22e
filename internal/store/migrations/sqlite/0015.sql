-- SQLite makes a table of the values of each IN with three or more, for every statement that may touch the index: to insert one event
-- it made three. The same conditions without IN take a fifth of the time.
DROP INDEX events_ref;
CREATE UNIQUE INDEX events_ref ON events (session, ref, type,
  (CASE type WHEN 'call.finished' THEN 0 WHEN 'input.processed' THEN 0 WHEN 'input.confirmation' THEN 0 WHEN 'input.tool_result' THEN 0
   ELSE seq END))
  WHERE ref <> '';

DROP INDEX events_inputs;
CREATE INDEX events_inputs ON events (session, seq)
  WHERE (type = 'input.message' OR type = 'input.system' OR type = 'input.interrupt' OR type = 'input.confirmation' OR type = 'input.tool_result');

DROP INDEX events_rare;
CREATE INDEX events_rare ON events (session, seq)
  WHERE type <> 'call.requested' AND type <> 'call.started' AND type <> 'call.finished' AND type <> 'model.started' AND
    type <> 'model.finished' AND type <> 'agent.message' AND type <> 'agent.thinking' AND type <> 'checkpoint.created' AND
    type <> 'input.message' AND type <> 'input.processed' AND type <> 'turn.started' AND type <> 'turn.ended' AND type <> 'input.system' AND
    type <> 'input.interrupt' AND type <> 'input.confirmation' AND type <> 'input.tool_result';
