package api_test

import (
	"encoding/json"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// pagesOf reads a list of a session's events, page by page.
func (b *bench) pagesOf(id string, q url.Values) (out []map[string]any) {
	b.t.Helper()
	for {
		var page struct {
			Data []map[string]any
			Next *string `json:"next_page"`
		}
		if err := json.Unmarshal(b.ok("GET", "/v1/sessions/"+id+"/events?"+q.Encode(), nil).body, &page); err != nil {
			b.t.Fatal(err)
		}
		out = append(out, page.Data...)
		if page.Next == nil {
			return out
		}
		q.Set("page", *page.Next)
	}
}

// If this fails, the history of a long session costs several reads of its log, or says something else in one
// order than in the other: what turns came to, or what they were allowed to.
func TestListOfALongSession(t *testing.T) {
	b := newBench(t)
	id := b.session()
	budget := outboard.Cost(0)
	for turn := range 300 {
		in := b.append(id, &outboard.InputMessage{Content: []outboard.Content{outboard.Text("m")}})[0]
		ps := []outboard.Payload{&outboard.TurnStarted{Turn: turn + 1},
			&outboard.InputProcessed{Input: in.ID, Of: in.Type},
			&outboard.ModelFinished{Stop: "end_turn", Usage: outboard.Usage{Input: int64(turn)}}}
		if turn%100 == 50 {
			budget += 1_000_000_000
			ps = append(ps, &outboard.SessionUpdated{Budget: &budget}, &outboard.SessionUpdated{Title: new("t")})
		}
		b.append(id, append(ps, &outboard.TurnEnded{Turn: turn + 1, Stop: outboard.StopReason{Type: "end_turn"}})...)
	}
	h, err := b.store.Session(t.Context(), outboard.SessionID(id))
	if err != nil {
		t.Fatal(err)
	}
	rows := func(q url.Values) ([]map[string]any, int64) {
		t.Helper()
		began := b.store.EventsRead()
		out := b.pagesOf(id, q)
		return out, b.store.EventsRead() - began
	}
	list, n := rows(url.Values{"limit": {"500"}})
	if n < h.Head || n > h.Head*3/2 {
		t.Errorf("a log of %d events was listed with %d rows read", h.Head, n)
	}
	back, _ := rows(url.Values{"limit": {"70"}, "order": {"desc"}})
	slices.Reverse(back)
	if len(list) < 300*7 || !reflect.DeepEqual(list, back) {
		t.Errorf("%d events in order, %d backwards, or not the same", len(list), len(back))
	}
	var budgets, uses []any
	for _, e := range list {
		if e["type"] == "session.usage" {
			uses = append(uses, e["usage"])
			if b := e["budget"]; len(budgets) == 0 || !reflect.DeepEqual(budgets[len(budgets)-1], b) {
				budgets = append(budgets, b)
			}
		}
	}
	// positive control: there is something to be told
	if len(uses) != 300 || reflect.DeepEqual(uses[100], uses[200]) || len(budgets) != 4 {
		t.Errorf("%d sums, %d budgets %v", len(uses), len(budgets), budgets)
	}
	if _, n := rows(url.Values{"limit": {"500"}, "types[]": {"session.usage"}}); n < 300 {
		t.Errorf("the ends of 300 turns were listed with %d rows read: this counts something else", n)
	}
}

// If this fails, a page of large events takes as much memory as 1,000 of them, or pages that end early lose or
// repeat one.
func TestListOfLargeEvents(t *testing.T) {
	b := newBench(t)
	id := b.session()
	for range 6 {
		b.ok("POST", "/v1/sessions/"+id+"/events", send(message(strings.Repeat("x", 9<<20))))
	}
	waiting, err := b.store.Waiting(t.Context(), outboard.SessionID(id))
	if err != nil || len(waiting) != 6 {
		t.Fatalf("%d messages wait, %v", len(waiting), err)
	}
	b.append(id, &outboard.TurnStarted{Turn: 1}, &outboard.InputProcessed{Input: waiting[0].ID, Of: waiting[0].Type},
		&outboard.InputProcessed{Input: waiting[1].ID,
			Of: waiting[1].Type}, &outboard.InputProcessed{Input: waiting[2].ID, Of: waiting[2].Type})
	lists := map[string][]any{}
	for _, order := range []string{"asc", "desc"} {
		q, pages := url.Values{"order": {order}}, 0
		for more := true; more; pages++ {
			r := b.ok("GET", "/v1/sessions/"+id+"/events?"+q.Encode(), nil)
			for _, e := range r.get("data").([]any) {
				lists[order] = append(lists[order], e.(map[string]any)["id"])
			}
			if len(r.body) > 50<<20 {
				t.Errorf("a page has %d bytes", len(r.body))
			}
			next, _ := r.get("next_page").(string)
			q.Set("page", next)
			more = next != ""
		}
		if pages != 2 {
			t.Errorf("%d pages in order %s", pages, order)
		}
	}
	slices.Reverse(lists["desc"])
	if len(lists["asc"]) != 8 || !slices.Equal(lists["asc"], lists["desc"]) {
		t.Errorf("in order: %v\nbackwards: %v", lists["asc"], lists["desc"])
	}
}
