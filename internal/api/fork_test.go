package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// whole returns a session's whole event list, Outboard's own events included.
func (b *bench) whole(id string) []map[string]any {
	b.t.Helper()
	var out []map[string]any
	for _, e := range b.ok("GET", "/v1/sessions/"+id+"/events?include[]=outboard&limit=1000", nil).get("data").([]any) {
		out = append(out, e.(map[string]any))
	}
	return out
}

// seqOf is the position of the n-th event of a type.
func (b *bench) seqOf(id, kind string, n int) int64 {
	b.t.Helper()
	found := of(b.whole(id), kind)
	if len(found) <= n {
		b.t.Fatalf("%s has %d events of type %s: %v", id, len(found), kind, types(b.whole(id)))
	}
	return int64(found[n]["seq"].(float64))
}

// resume is a talk with an existing session.
func (b *bench) resume(id string) *talk {
	b.t.Helper()
	return &talk{b, id, "/v1/sessions/" + id + "/events", b.follow(id, "")}
}

// fork makes forks and returns their ids and where they begin.
func (b *bench) fork(id string, body map[string]any) (ids []string, seq int64) {
	b.t.Helper()
	r := b.ok("POST", "/v1/sessions/"+id+"/fork", body)
	for _, s := range r.get("data").([]any) {
		ids = append(ids, s.(map[string]any)["id"].(string))
	}
	return ids, int64(r.get("seq").(float64))
}

// If this fails, a fork does not begin with the conversation and the files of its parent as they were at that
// point, or shares more with it than that, or dies with it.
func TestForkGoesOnFromAPoint(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	k.turn("- bash: echo one > f", "- say: first")
	first := b.seqOf(k.id, "session.status_idle", 0)
	k.turn("- bash: echo two > f; echo x > g", "- say: second")
	ids, seq := b.fork(k.id, map[string]any{"seq": first, "count": 3, "title": "try",
		"metadata": map[string]string{"a": "b"}})
	if len(ids) != 3 || seq != first {
		t.Fatalf("forks %v at %d, want 3 at %d", ids, seq, first)
	}
	shared := b.whole(k.id)
	for i, id := range ids {
		s := b.ok("GET", "/v1/sessions/"+id+"?include[]=outboard", nil)
		if s.str("title") != "try" || s.str("metadata.a") != "b" || s.str("status") != "idle" ||
			s.str("outboard.parent_id") != k.id ||
			s.get("outboard.forked_at_seq").(float64) != float64(first) || s.get("usage.input_tokens").(float64) != 0 {
			t.Errorf("fork %d is %s", i, s.body)
		}
		if strings.Contains(string(b.ok("GET", "/v1/sessions/"+id, nil).body), "outboard") {
			t.Error("a session shows more than the wire has to a client that did not ask")
		}
		f := b.resume(id)
		evs := f.turn(fmt.Sprintf("- bash: cat f; ls; echo fork%d > f", i), "- say: third")
		if got := strings.Join(strings.Fields(texts(evs, "agent.tool_result")[0]), " "); got != "one f" {
			t.Errorf("fork %d sees the files %q", i, got)
		}
		own := b.whole(id)
		for j, e := range own {
			if int64(e["seq"].(float64)) > first {
				if e["type"] != "outboard.session.forked" {
					t.Errorf("the fork's own events begin with %v", e)
				}
				break
			}
			if e["id"] != shared[j]["id"] || e["type"] != shared[j]["type"] ||
				e["processed_at"] != shared[j]["processed_at"] {
				t.Errorf("event %d of the fork is %v, of the parent %v", j, e, shared[j])
			}
			if th, ok := e["session_thread_id"]; ok && th == shared[j]["session_thread_id"] {
				t.Errorf("event %d of the fork is on its parent's thread", j)
			}
		}
	}
	if got := texts(k.turn("- bash: cat f; ls", "- say: x"), "agent.tool_result")[0]; strings.Join(strings.Fields(got),
		" ") != "two f g" {
		t.Errorf("the parent's files are %q", got)
	}
	b.ok("DELETE", "/v1/sessions/"+k.id, nil)
	again, _ := b.fork(ids[0], map[string]any{"prompt": "- bash: cat f\n- say: y\n"})
	f := b.resume(again[0])
	evs := b.whole(again[0])
	for len(of(evs, "session.status_idle")) < 3 {
		f.feed.until("session.status_idle")
		evs = b.whole(again[0])
	}
	results := texts(evs, "agent.tool_result")
	if got := strings.TrimSpace(results[len(results)-1]); got != "fork0" {
		t.Errorf("a fork of a fork, its first parent deleted, sees %q", got)
	}
}

// If this fails, a fork takes over what was half done: a call that runs, an ask and its answer, a message that waits.
func TestForkInTheMiddle(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_ask")
	k.say("- bash: echo x > f", "- say: done")
	_, stop, waiting := k.rest()
	if stop != "requires_action" {
		t.Fatalf("the session rests with %s", stop)
	}
	ids, seq := b.fork(k.id, map[string]any{})
	if want := b.seqOf(k.id, "agent.tool_use", 0); seq >= want {
		t.Errorf("the fork begins at %d, not before the ask at %d", seq, want)
	}
	evs := b.whole(ids[0])
	if len(of(evs, "agent.tool_use")) != 0 || evs[len(evs)-1]["type"] != "outboard.turn.ended" {
		t.Errorf("the fork of a parked session has %v", types(evs))
	}
	r := b.do("POST", "/v1/sessions/"+ids[0]+"/events", map[string]any{"events": []any{confirm(waiting[0], "allow")}})
	if r.status != 400 {
		t.Errorf("the parent's ask, answered in the fork: %d %s", r.status, r.body)
	}
	k.ok("POST", k.events, map[string]any{"events": []any{confirm(waiting[0], "allow")}})
	k.rest()
	if l := types(b.whole(ids[0])); len(l) != len(evs) {
		t.Errorf("the fork changed with its parent: %v", l)
	}

	l := newLatch(t)
	busy := b.talk("always_allow")
	busy.say("- bash: "+l.command(), "- say: done")
	busy.feed.until("agent.tool_use")
	busy.ok("POST", busy.events, send(message("- say: later\n")))
	ids, _ = b.fork(busy.id, map[string]any{"prompt": "- say: hello\n"})
	f := b.resume(ids[0])
	for len(texts(b.whole(ids[0]), "agent.message")) == 0 {
		f.feed.until("session.status_idle")
	}
	evs = b.whole(ids[0])
	if got := texts(evs, "agent.message"); len(got) != 1 || got[0] != "hello" || len(of(evs, "agent.tool_use")) != 0 {
		t.Errorf("the fork of a running session said %q: %v", got, types(evs))
	}
	l.open(t)
	for len(texts(b.whole(busy.id), "agent.message")) < 2 {
		busy.rest()
	}
}

func confirm(id, result string) map[string]any {
	return map[string]any{"type": "user.tool_confirmation", "tool_use_id": id, "result": result}
}

// If this fails, a session that is taken back keeps what it should not, or loses what it should keep.
func TestRewindSession(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	for _, c := range []struct {
		body        map[string]any
		files, talk string
	}{
		{map[string]any{}, "one f", "first third"},
		{map[string]any{"conversation": true}, "two f g", "first third"},
		{map[string]any{"machine": true}, "one f", "first second third"},
	} {
		k := b.talk("always_allow")
		k.turn("- bash: echo one > f", "- say: first")
		first := b.seqOf(k.id, "session.status_idle", 0)
		k.turn("- bash: echo two > f; echo x > g", "- say: second")
		c.body["seq"] = first
		r := b.ok("POST", "/v1/sessions/"+k.id+"/rewind", c.body)
		if r.get("seq").(float64) != float64(first) || r.str("session.status") != "idle" {
			t.Errorf("%v: %s", c.body, r.body)
		}
		evs := k.turn("- bash: cat f; ls", "- say: third")
		if got := strings.Join(strings.Fields(texts(evs, "agent.tool_result")[0]), " "); got != c.files {
			t.Errorf("%v: the files are %q, want %q", c.body, got, c.files)
		}
		if n := len(of(b.whole(k.id), "outboard.session.rewound")); n != 1 {
			t.Errorf("%v: %d rewinds in the log", c.body, n)
		}
		if n := len(texts(b.whole(k.id), "agent.message")); n != 3 {
			t.Errorf("%v: %d messages in the log, want all of them", c.body, n)
		}
		if got := b.sees(k.id); got != c.talk {
			t.Errorf("%v: the model sees %q, want %q", c.body, got, c.talk)
		}
	}
}

// sees is what the assistant said, as the model remembers it.
func (b *bench) sees(id string) string {
	b.t.Helper()
	var events []outboard.Event
	for e, err := range b.store.Read(b.t.Context(), outboard.SessionID(id), 0) {
		if err != nil {
			b.t.Fatal(err)
		}
		events = append(events, e)
	}
	s, err := outboard.Fold(events)
	if err != nil {
		b.t.Fatal(err)
	}
	var said []string
	for _, m := range s.History {
		if m.Role == "assistant" && len(m.Uses) == 0 {
			said = append(said, outboard.PlainText(m.Content))
		}
	}
	return strings.Join(said, " ")
}

// If this fails, a rewind pulls the ground from under a turn, or a wrong request gets anything but one clear answer.
func TestForkAndRewindRefusals(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_ask")
	path := "/v1/sessions/" + k.id
	for _, c := range []struct {
		verb, body, says string
	}{
		{"rewind", ``, "JSON"},
		{"rewind", `{}`, "seq: required, or checkpoint_id"},
		{"rewind", `{"seq":"1"}`, "seq"},
		{"rewind", `{"seq":0}`, "seq"},
		{"rewind", `{"seq":99}`, "seq must be 1 to 1"},
		{"rewind", `{"seq":1,"conversation":false,"machine":false}`, "neither"},
		{"rewind", `{"seq":1,"to":2}`, "to: unknown field"},
		{"fork", `{"seq":-1}`, "seq"},
		{"fork", `{"seq":2}`, "seq must be 1 to 1"},
		{"fork", `{"seq":1.5}`, "seq"},
		{"fork", `{"count":0}`, "count"},
		{"fork", `{"count":101}`, "count must be 1 to 100"},
		{"fork", `{"title":"` + strings.Repeat("x", 501) + `"}`, "title"},
		{"fork", `{"secrets":[]}`, "secrets: unknown field"},
	} {
		if r := b.do("POST", path+"/"+c.verb, c.body); r.status != 400 || !strings.Contains(string(r.body), c.says) {
			t.Errorf("%s %s: %d %s, want 400 with %q", c.verb, c.body, r.status, r.body, c.says)
		}
	}
	for _, verb := range []string{"fork", "rewind"} {
		if r := b.do("POST", "/v1/sessions/sesn_01none/"+verb, `{"seq":1}`); r.status != 404 {
			t.Errorf("%s of no session: %d %s", verb, r.status, r.body)
		}
	}
	k.say("- bash: echo x > f", "- say: done")
	_, _, waiting := k.rest()
	if r := b.do("POST", path+"/rewind", `{"seq":1}`); r.status != 400 ||
		!strings.Contains(string(r.body), "waits for an answer") {
		t.Errorf("rewinding a parked session: %d %s", r.status, r.body)
	}
	k.ok("POST", k.events, map[string]any{"events": []any{confirm(waiting[0], "deny")}})
	k.rest()
	b.ok("POST", path+"/rewind", map[string]any{"seq": 1})
	b.ok("POST", path+"/archive", nil)
	if r := b.do("POST", path+"/rewind", `{"seq":1}`); r.status != 400 ||
		!strings.Contains(string(r.body), "archived") {
		t.Errorf("rewinding an archived session: %d %s", r.status, r.body)
	}
	ids, _ := b.fork(k.id, map[string]any{})
	if s := b.ok("GET", "/v1/sessions/"+ids[0], nil); s.str("status") != "idle" || s.get("archived_at") != nil {
		t.Errorf("the fork of an archived session: %s", s.body)
	}
}

// If this fails, what a checkpoint holds and what changed between two of them is told wrong, or one cannot be restored.
func TestCheckpoints(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	k := b.talk("always_allow")
	path := "/v1/sessions/" + k.id + "/outboard/checkpoints"
	if n := len(b.ok("GET", path, nil).get("data").([]any)); n != 0 {
		t.Errorf("%d checkpoints before the first call", n)
	}
	k.turn("- bash: printf 'a\\nb\\n' > kept; printf 'one\\ntwo\\nthree\\n' > f; mkdir d; echo x > d/gone; ln -s f "+
		"l; printf '\\000' > bin; touch 'odd name'", "- say: x")
	k.turn("- bash: cat f", "- say: nothing changed")
	k.turn("- bash: printf 'one\\n2\\nthree\\n' > f; rm -r d; ln -sf kept l; printf '\\001' > bin; chmod 600 kept; "+
		"touch 'odd name'; echo new > added", "- say: y")
	list := b.ok("GET", path, nil)
	if n := len(list.get("data").([]any)); n != 2 {
		t.Fatalf("%d checkpoints, want 2: %s", n, list.body)
	}
	sum := b.ok("GET", path+"?stored=true", nil)
	if n := list.get("data.0.size_bytes").(float64) +
		list.get("data.1.size_bytes").(float64); sum.get("stored_bytes") != n || list.get("stored_bytes") != nil {
		t.Errorf("%.0f bytes are %s", n, sum.body)
	}
	one, two := list.str("data.0.id"), list.str("data.1.id")
	if list.get("data.0.current") != false || list.get("data.1.current") != true ||
		list.get("data.1.durable") != true || list.str("data.1.parent_id") != one {
		t.Errorf("the list is %s", list.body)
	}
	cmp := b.ok("GET", path+"/diff?patch=true&from="+one+"&to="+two, nil)
	got := map[string]string{}
	patch := ""
	for _, c := range cmp.get("data").([]any) {
		m := c.(map[string]any)
		got[strings.TrimPrefix(m["path"].(string), "workspace/")] = m["change"].(string)
		if m["path"] == "workspace/f" {
			patch = m["patch"].(string)
		}
	}
	for name, want := range map[string]string{"f": "changed", "d": "removed", "d/gone": "removed", "l": "changed",
		"bin": "changed", "kept": "changed",
		"added": "added", "odd name": "", "workspace": ""} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if want := "--- a/workspace/f\n+++ b/workspace/f\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"; patch != want {
		t.Errorf("the patch is %q, want %q", patch, want)
	}
	if n := len(b.ok("GET", path+"/diff?from="+two+"&to="+two, nil).get("data").([]any)); n != 0 {
		t.Errorf("a checkpoint differs from itself in %d paths", n)
	}
	if c := b.ok("GET", path+"/diff?from=1&to="+one, nil); c.get("from") != nil || c.str("data.0.change") != "added" {
		t.Errorf("from nothing: %s", c.body)
	}
	b.refused(404, "there is no checkpoint", "GET", path+"/diff?from=ckpt_01x&to="+two, nil)
	b.refused(400, "neither a checkpoint", "GET", path+"/diff?from="+one, nil)
	b.refused(400, "1 to", "GET", path+"/diff?from=1&to=9999", nil)
	rewind := "/v1/sessions/" + k.id + "/rewind"
	b.refused(404, "there is no checkpoint", "POST", rewind, `{"checkpoint_id":"ckpt_01x"}`)
	b.refused(400, "nothing else", "POST", rewind, `{"checkpoint_id":"`+one+`","conversation":true}`)
	b.ok("POST", rewind, map[string]any{"checkpoint_id": one})
	if now := b.ok("GET", path, nil); now.get("data.0.current") != true || now.get("data.1.current") != false {
		t.Errorf("after a restore: %s", now.body)
	}
	evs := k.turn("- bash: cat f d/gone; readlink l", "- say: z")
	if got := strings.Join(strings.Fields(texts(evs, "agent.tool_result")[0]), " "); got != "one two three x f" {
		t.Errorf("the files after a restore are %q", got)
	}
}
