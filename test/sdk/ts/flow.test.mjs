// The official TypeScript SDK drives a whole session. Started by TestTypeScript, which records and validates every response;
// OUTBOARD_URL and OUTBOARD_API_KEY say where to.
import Anthropic from '@anthropic-ai/sdk';
import assert from 'node:assert/strict';
import test from 'node:test';

const client = new Anthropic({ baseURL: process.env.OUTBOARD_URL, apiKey: process.env.OUTBOARD_API_KEY, maxRetries: 0 });
const { agents, environments, sessions } = client.beta;

const say = (script) => ({ type: 'user.message', content: [{ type: 'text', text: script }] });

// until sends events on an open stream and reads to the first event of a type. It returns what it read.
async function until(session, kind, ...events) {
  const stream = await sessions.events.stream(session, { event_deltas: ['agent.message', 'agent.thinking'] });
  await sessions.events.send(session, { events });
  const seen = [];
  for await (const event of stream) {
    seen.push(event);
    if (event.type === kind) return seen;
  }
  assert.fail(`the stream ended before ${kind}`);
}

function ended(seen, ...kinds) {
  const types = seen.map((e) => e.type);
  for (const kind of kinds) assert.ok(types.includes(kind), `no ${kind} in ${types}`);
  assert.equal(seen.at(-1).stop_reason.type, 'end_turn');
}

function pending(seen) {
  const { stop_reason: reason } = seen.at(-1);
  assert.equal(reason.type, 'requires_action');
  assert.equal(reason.event_ids.length, 1);
  return reason.event_ids[0];
}

// Fails if the TypeScript SDK cannot drive a whole session.
test('a whole session', { timeout: 120_000 }, async () => {
  const agent = await agents.create({
    name: 'proof',
    model: { id: 'script/steps' },
    metadata: { team: 'sdk' },
    tools: [
      {
        type: 'agent_toolset_20260401',
        configs: [{ name: 'bash', permission_policy: { type: 'always_ask' } }],
      },
      { type: 'custom', name: 'lookup', description: 'Looks a value up.', input_schema: { type: 'object' } },
    ],
  });
  assert.equal((await agents.retrieve(agent.id)).name, 'proof');
  await assert.rejects(agents.update(agent.id, { version: 7, name: 'x' }), { status: 409 });
  assert.equal((await agents.update(agent.id, { version: 1, name: 'proof 2' })).version, 2);

  const environment = await environments.create({ name: 'proof' });
  const session = await sessions.create({ agent: agent.id, environment_id: environment.id, title: 'proof' });
  assert.equal(session.status, 'idle');
  await assert.rejects(sessions.retrieve('sesn_011111111111111111111111'), { status: 404 });

  const first = await until(session.id, 'session.status_idle', say('- think: hm\n- write: {path: /workspace/a.txt, content: hello}\n- say: done\n'));
  ended(first, 'session.status_running', 'user.message', 'agent.thinking', 'agent.tool_use', 'agent.tool_result', 'agent.message',
    'session.usage', 'event_start', 'event_delta');

  const asked = await until(session.id, 'session.status_idle', say('- bash: cat /workspace/a.txt\n- say: done\n'));
  ended(
    await until(session.id, 'session.status_idle', { type: 'user.tool_confirmation', tool_use_id: pending(asked), result: 'allow' }),
    'user.tool_confirmation', 'agent.tool_result', 'agent.message',
  );

  const called = await until(session.id, 'session.status_idle', say('- call: {name: lookup, input: {key: k}}\n- say: done\n'));
  ended(
    await until(session.id, 'session.status_idle', {
      type: 'user.custom_tool_result',
      custom_tool_use_id: pending(called),
      content: [{ type: 'text', text: '42' }],
    }),
    'user.custom_tool_result', 'agent.message',
  );

  await until(session.id, 'span.model_request_start', say('- sleep: 90s\n- say: never\n'));
  ended(await until(session.id, 'session.status_idle', { type: 'user.interrupt' }), 'user.interrupt');

  const ids = [];
  for await (const event of sessions.events.list(session.id, { limit: 7 })) ids.push(event.id);
  assert.equal(new Set(ids).size, ids.length);
  for (const event of first) {
    if (event.id) assert.ok(ids.includes(event.id), `${event.type} ${event.id} was streamed and is not listed`);
  }

  assert.equal((await sessions.archive(session.id)).status, 'terminated');
  await assert.rejects(sessions.events.send(session.id, { events: [say('x')] }), { status: 400 });
  await sessions.delete(session.id);
  await environments.archive(environment.id);
  await agents.archive(agent.id);
});
