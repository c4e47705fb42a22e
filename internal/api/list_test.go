package api_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"testing"

	"github.com/outboard-dev/outboard"
	"pgregory.net/rapid"
)

// walk reads a list page by page and returns the ids.
func (b *bench) walk(path string, q url.Values) []string {
	b.t.Helper()
	var ids []string
	for n := 0; ; n++ {
		var page struct {
			Data []struct{ ID string }
			Next *string `json:"next_page"`
		}
		if err := json.Unmarshal(b.ok("GET", path+"?"+q.Encode(), nil).body, &page); err != nil {
			b.t.Fatal(err)
		}
		for _, d := range page.Data {
			ids = append(ids, d.ID)
		}
		if page.Next == nil {
			return ids
		}
		if n > 2000 {
			b.t.Fatalf("%s %v does not end", path, q)
		}
		q.Set("page", *page.Next)
	}
}

// lively appends a log with turns, calls and waiting inputs, and returns the session.
func (b *bench) lively() string {
	id := b.session()
	events := "/v1/sessions/" + id + "/events"
	for turn := range 3 {
		sent := b.ok("POST", events, send(message("one"), message("two")))
		b.append(id, &outboard.TurnStarted{Turn: turn + 1})
		for i := range 2 {
			b.append(id, &outboard.InputProcessed{Input: outboard.EventID(sent.str(fmt.Sprintf("data.%d.id", i))),
				Of: outboard.TypeInputMessage})
		}
		start := b.append(id, &outboard.ModelStarted{Model: "m"})[0].ID
		call := b.append(id, &outboard.AgentThinking{},
			&outboard.AgentMessage{Content: []outboard.Content{outboard.Text("hi")}},
			&outboard.CallRequested{Name: "bash", Kind: "builtin", Input: []byte(`{}`), Decision: outboard.Allow,
				Policy: outboard.AlwaysAllow})[2].ID
		b.append(id, &outboard.ModelFinished{Request: start, Usage: outboard.Usage{Input: 7, Output: int64(turn)}},
			&outboard.CallFinished{Call: call, Outcome: outboard.OutcomeOK},
			&outboard.TurnEnded{Turn: turn + 1, Stop: outboard.StopReason{Type: "end_turn"}})
	}
	b.ok("POST", events, send(message("waits"), map[string]any{"type": "user.interrupt"}))
	return id
}

// Fails if paging through a history, in any order, with any page size and filter, gives other events than one
// big page: an event lost or repeated at a page's edge.
func TestEventPages(t *testing.T) {
	b := newBench(t)
	id := b.lively()
	path := "/v1/sessions/" + id + "/events"
	whole := b.list(id, "")
	kinds := []string{"user.message", "session.status_idle", "session.usage", "agent.tool_use",
		"session.thread_status_running", "workflow_run.error"}
	rapid.Check(t, func(rt *rapid.T) {
		q := url.Values{"limit": {fmt.Sprint(rapid.IntRange(1, 12).Draw(rt, "limit"))}}
		desc := rapid.Bool().Draw(rt, "desc")
		if desc {
			q.Set("order", "desc")
		}
		types := rapid.SliceOfNDistinct(rapid.SampledFrom(kinds), 0, 3, rapid.ID[string]).Draw(rt, "types")
		q["types[]"] = types
		from := rapid.IntRange(-1, len(whole)-1).Draw(rt, "from")
		var after string
		if from >= 0 && whole[from]["processed_at"] != nil {
			after = whole[from]["processed_at"].(string)
			q.Set("created_at[gt]", after)
		}
		var want []string
		for _, e := range whole {
			at, _ := e["processed_at"].(string)
			if (len(types) == 0 || slices.Contains(types, e["type"].(string))) && (after == "" || at > after) {
				want = append(want, e["id"].(string))
			}
		}
		if desc {
			slices.Reverse(want)
		}
		if got := b.walk(path, q); !slices.Equal(got, want) {
			rt.Fatalf("%v:\n got %v\nwant %v", q, got, want)
		}
	})
	first := b.ok("GET", path+"?limit=3", nil)
	b.refused(400, "order", "GET", path+"?order=desc&limit=3&page="+url.QueryEscape(first.str("next_page")), nil)
	b.refused(400, "cursor", "GET", "/v1/sessions/"+b.session()+"/events?page="+url.QueryEscape(first.str("next_page")),
		nil)
}

// Fails if an input that is processed while a client pages through the history is lost: each must be seen,
// queued or processed.
func TestPagesWhileProcessing(t *testing.T) {
	for _, order := range []string{"asc", "desc"} {
		b := newBench(t)
		id := b.session()
		path := "/v1/sessions/" + id + "/events"
		sent := b.ok("POST", path, send(message("a"), message("b"), message("c"), message("d")))
		first := b.ok("GET", path+"?limit=2&order="+order, nil)
		for i := range 4 {
			b.append(id, &outboard.InputProcessed{Input: outboard.EventID(sent.str(fmt.Sprintf("data.%d.id", i))),
				Of: outboard.TypeInputMessage})
		}
		seen := map[string]bool{first.str("data.0.id"): true, first.str("data.1.id"): true}
		for _, i := range b.walk(path, url.Values{"limit": {"2"}, "order": {order}, "page": {first.str("next_page")}}) {
			seen[i] = true
		}
		if len(seen) != 4 {
			t.Errorf("%s: %d of 4 inputs were seen", order, len(seen))
		}
	}
}

// Fails if a usage snapshot in a history depends on where its page begins or on the order it is read in.
func TestUsageSnapshots(t *testing.T) {
	b := newBench(t)
	id := b.lively()
	want := []float64{0, 1, 3} // the output tokens of turns 0, 1, 2 add up
	for _, query := range []string{"?types[]=session.usage", "?types[]=session.usage&order=desc", ""} {
		var got []float64
		for _, e := range b.list(id, query) {
			if e["type"] == "session.usage" {
				got = append(got, e["usage"].(map[string]any)["output_tokens"].(float64))
			}
		}
		if query != "" && query[len(query)-1] == 'c' {
			slices.Reverse(got)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
}

// Fails if a list of resources loses or repeats rows at a page's edge, forwards or, for sessions, backwards.
func TestResourcePages(t *testing.T) {
	b := newBench(t)
	agent, env := b.agent(), b.environment()
	var agents, envs, sessions []string
	for range 7 {
		agents = append(agents, b.agent())
		envs = append(envs, b.environment())
		sessions = append(sessions, b.ok("POST", "/v1/sessions",
			map[string]any{"agent": agent, "environment_id": env}).str("id"))
		b.ok("POST", "/v1/agents/"+agent, map[string]any{"description": fmt.Sprint(len(agents))})
	}
	agents, envs = append([]string{agent}, agents...), append([]string{env}, envs...)
	for path, want := range map[string][]string{"/v1/agents": agents, "/v1/environments": envs,
		"/v1/sessions": sessions} {
		slices.Reverse(want)
		for _, limit := range []string{"1", "3", "8", "100"} {
			if got := b.walk(path, url.Values{"limit": {limit}}); !slices.Equal(got, want) {
				t.Errorf("%s by %s: %v, want %v", path, limit, got, want)
			}
		}
	}
	if n := len(b.walk("/v1/agents/"+agent+"/versions", url.Values{"limit": {"3"}})); n != 8 {
		t.Errorf("%d versions, want 8", n)
	}
	oldestFirst := b.walk("/v1/sessions", url.Values{"limit": {"2"}, "order": {"asc"}})
	slices.Reverse(oldestFirst)
	if !slices.Equal(oldestFirst, sessions) {
		t.Errorf("ascending: %v", oldestFirst)
	}

	second := b.ok("GET",
		"/v1/sessions?limit=3&page="+url.QueryEscape(b.ok("GET", "/v1/sessions?limit=3", nil).str("next_page")), nil)
	back := b.ok("GET", "/v1/sessions?limit=3&page="+url.QueryEscape(second.str("prev_page")), nil)
	if back.str("data.0.id") != sessions[0] || back.str("data.2.id") != sessions[2] || back.get("prev_page") != nil ||
		back.str("next_page") == "" {
		t.Errorf("going back: %s", back.body)
	}
}

// Fails if a client that deletes what it lists, page by page, gets an error or skips rows.
func TestDeleteWhileListing(t *testing.T) {
	b := newBench(t)
	for range 5 {
		b.environment()
	}
	left, q := 0, url.Values{"limit": {"2"}}
	for {
		page := b.ok("GET", "/v1/environments?"+q.Encode(), nil)
		for _, e := range page.get("data").([]any) {
			b.ok("DELETE", "/v1/environments/"+e.(map[string]any)["id"].(string), nil)
			left++
		}
		if page.str("next_page") == "" {
			break
		}
		q.Set("page", page.str("next_page"))
	}
	if left != 5 {
		t.Errorf("%d of 5 environments were listed", left)
	}
}

// Fails if a filter of the session list lets a session through that it should not, or holds one back.
func TestSessionFilters(t *testing.T) {
	b := newBench(t)
	idle, busy, gone := b.session(), b.session(), b.session()
	b.ok("POST", "/v1/sessions/"+busy+"/events", send(message("x")))
	b.ok("POST", "/v1/sessions/"+gone+"/archive", nil)
	made := b.ok("GET", "/v1/sessions/"+busy, nil)
	for query, want := range map[string][]string{
		"":                      {busy, idle},
		"include_archived=true": {gone, busy, idle},
		"statuses[]=running":    {busy},
		"statuses[]=idle":       {idle},
		"include_archived=true&statuses[]=terminated&statuses[]=idle": {gone, idle},
		"agent_id=" + made.str("agent.id"):                            {busy},
		"agent_id=" + made.str("agent.id") + "&agent_version=2":       {},
		"agent_version=2": {busy, idle},
		"created_at[gte]=" + made.str("created_at"): {busy},
		"created_at[gt]=" + made.str("created_at"):  {},
		"created_at[lt]=" + made.str("created_at"):  {idle},
		"created_at[lte]=" + made.str("created_at"): {busy, idle},
		"deployment_id=depl_01x":                    {},
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.walk("/v1/sessions", q); !slices.Equal(got, want) && len(got)+len(want) > 0 {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
}

// Fails if a page that is asked for behind a row which its created_at filters leave out comes back empty, as if
// it were the last.
func TestCursorOutsideOfItsFilters(t *testing.T) {
	b := newBench(t)
	b.session()
	id := b.session()
	b.append(id, &outboard.AgentThinking{}, &outboard.AgentThinking{})
	for _, list := range []string{"/v1/sessions", "/v1/agents", "/v1/sessions/" + id + "/events"} {
		first := b.ok("GET", list+"?limit=1", nil)
		row := first.get("data").([]any)[0].(map[string]any)
		at, _ := row["created_at"].(string)
		if at == "" {
			at = row["processed_at"].(string)
		}
		next := list + "?limit=1&page=" + first.str("next_page")
		if got := b.ok("GET", next+"&created_at[gte]=2020-01-01T00:00:00Z&created_at[lte]=2100-01-01T00:00:00Z",
			nil).get("data").([]any); len(got) != 1 {
			t.Errorf("%s: a filter that the cursor's row passes gives %v", list, got)
		}
		for _, filter := range []string{"gt", "lt"} {
			b.refused(400, "outside of created_at", "GET", next+"&created_at["+filter+"]="+at, nil)
		}
	}
}
