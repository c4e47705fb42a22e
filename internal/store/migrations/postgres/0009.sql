-- Events of types that a turn may come without, for lists of them: without this, to find that there are none is to read the log.
-- The types left out are in nearly every turn, and inputs have an index of their own.
CREATE INDEX events_rare ON events (session, seq)
  WHERE type NOT IN ('input.message', 'input.system', 'input.interrupt', 'input.confirmation', 'input.tool_result', 'input.processed',
    'turn.started', 'turn.ended', 'model.started', 'model.finished', 'agent.message', 'agent.thinking', 'call.requested',
    'call.started', 'call.finished', 'checkpoint.created');
