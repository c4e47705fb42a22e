//go:build linux

package runner

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/harness"
	"github.com/outboard-dev/outboard/internal/llm"
)

// narrow is a model server that refuses what its window does not hold: the prompt and the room asked for the
// response, as many do. It has a token to each per bytes.
type narrow struct {
	window, per int

	mu      sync.Mutex
	refused int
	asked   []string // the bodies it answered
}

func (n *narrow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var req struct {
		MaxTokens int `json:"max_tokens"`
		Messages  []struct{ Role, Content string }
	}
	_ = json.Unmarshal(body, &req)
	prompt := len(body) / n.per
	n.mu.Lock()
	defer n.mu.Unlock()
	if prompt+req.MaxTokens > n.window {
		n.refused++
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"error":{"message":"This model's maximum context length is %d tokens"}}`, n.window)
		return
	}
	n.asked = append(n.asked, string(body))
	text := "Understood."
	if strings.HasPrefix(req.Messages[len(req.Messages)-1].Content, "The conversation is about to exceed") ||
		strings.Contains(req.Messages[len(req.Messages)-1].Content, "\nThe conversation is about to exceed") {
		text = "SUMMARY"
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = fmt.Fprintf(w,
		"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n",
		text, prompt)
}

// windowRig runs sessions of a model that n serves, which is taken to have a window of 20,000 tokens.
func windowRig(t *testing.T, n *narrow) (*rig, outboard.SessionID) {
	srv := httptest.NewServer(n)
	t.Cleanup(srv.Close)
	r := newRig(t, llm.Config{Providers: []llm.Provider{{Name: "p", Type: llm.TypeChat, BaseURL: srv.URL,
		Models: []llm.ModelInfo{{Name: "m", Context: 20_000, Output: 8_000}}}}})
	r.start(nil)
	return r, r.session("p/m", allTools)
}

// Fails if a conversation that has room in the window is refused for the response that is asked for beside it.
func TestResponsesFitIntoTheWindow(t *testing.T) {
	n := &narrow{window: 20_000, per: 4}
	r, id := windowRig(t, n)
	for i := range 12 {
		r.say(id, strings.Repeat("word ", 1500))
		r.until(id, "the answer", func(s *outboard.State) bool { return s.Turn == i+1 && !s.InTurn })
	}
	r.rests(id, "end_turn")
	if f := payloads[*outboard.TurnFailed](r, id); len(f) > 0 || n.refused > 0 {
		t.Errorf("%d turns failed, %d requests were refused\n%s", len(f), n.refused, r.dump(id))
	}
	if c := payloads[*outboard.ContextCompacted](r, id); len(c) == 0 { // else the window was never filled
		t.Error("nothing was compacted")
	}
}

// Fails if a session whose conversation is more than its model takes can never go on.
func TestConversationLongerThanTheWindow(t *testing.T) {
	for name, c := range map[string]struct {
		n    *narrow
		text string
	}{
		"one long message": {&narrow{window: 20_000, per: 4}, "begin " + strings.Repeat("word ", 40_000) +
			" end."},
		"more tokens than expected": {&narrow{window: 20_000, per: 1}, "begin " + strings.Repeat("0f1e2d ", 3_000) +
			" end."},
	} {
		t.Run(name, func(t *testing.T) {
			n := c.n
			r, id := windowRig(t, n)
			r.say(id, c.text)
			r.rests(id, "end_turn")
			r.say(id, "And now?")
			s := r.until(id, "the second answer", func(s *outboard.State) bool { return s.Turn == 2 && !s.InTurn })
			if f := payloads[*outboard.TurnFailed](r, id); len(f) > 0 || n.refused == 0 {
				t.Fatalf("%d turns failed, %d requests were refused\n%s", len(f), n.refused, r.dump(id))
			}
			if s.History[0].Role != "summary" || len(payloads[*outboard.ContextCompacted](r, id)) != 1 {
				t.Errorf("the model's view begins with %s\n%s", s.History[0].Role, r.dump(id))
			}
			for _, want := range []string{"user: begin ", "bytes are left out here", " end."} {
				if !strings.Contains(n.asked[0], want) {
					t.Errorf("the transcript lacks %q: %.300s", want, n.asked[0])
				}
			}
		})
	}
}

// If this fails, summaries that come to nothing are free: a budget lets a session have the longest prompts it
// has sent again and again.
func TestFailedSummariesAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		tokens int64 // of one; 0 = as guessed, but many
	}{
		"empty": {`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":5}}` +
			"\n\ndata: [DONE]\n\n", 1005},
		"broken off": {`data: {"choices":[{"index":0,"delta":{"content":"We"}}]}` + "\n\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, c.answer)
			}))
			t.Cleanup(srv.Close)
			r := newRig(t, llm.Config{Providers: []llm.Provider{{Name: "p", Type: llm.TypeChat, BaseURL: srv.URL,
				Models: []llm.ModelInfo{{Name: "m", Context: 20_000, Output: 8_000}}}}})
			id := r.session("p/m", allTools)
			r.raise(id, outboard.Spend{Tokens: 10_000_000})
			r.start(func(cfg *Config) {
				cfg.Harness = &harness.Builtin{Now: r.now, Backoff: func(int) time.Duration { return 0 },
					Patience: 50 * time.Millisecond}
			})
			r.say(id, strings.Repeat("word ", 14_000))
			r.rests(id, "retries_exhausted")
			if n := len(payloads[*outboard.ModelStarted](r, id)); n > 0 {
				t.Fatalf("%d model calls: no summary was asked for", n)
			}
			h, err := r.store.Session(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			b, n := r.budget(id), asked.Load()
			if c.tokens > 0 && b.Spent.Tokens != n*c.tokens || b.Spent.Tokens < 1000*n ||
				b.Spent.Tokens != h.Usage.Tokens() || n == 0 || !b.Held.IsZero() {
				t.Errorf("%d summaries: %d tokens of the budget and %d of the session; held %+v", n, b.Spent.Tokens,
					h.Usage.Tokens(), b.Held)
			}
		})
	}
}

// Fails if a summary that is interrupted is in no usage and no budget, or if the session does not go on after it.
func TestInterruptedSummariesAreCounted(t *testing.T) {
	const answer = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Understood.\"},\"finish_reason\":\"stop\"}]," +
		"\"usage\":{\"prompt_tokens\":1000,\"completion_tokens\":5}}\n\ndata: [DONE]\n\n"
	var calls atomic.Int64
	begun := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if calls.Add(1) > 1 {
			_, _ = io.WriteString(w, answer)
			return
		}
		_, _ = io.ReadAll(r.Body) // or the server does not see that the client left
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"The user\"}}]}\n\n")
		w.(http.Flusher).Flush()
		close(begun)
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	r := newRig(t, llm.Config{Providers: []llm.Provider{{Name: "p", Type: llm.TypeChat, BaseURL: srv.URL,
		Models: []llm.ModelInfo{{Name: "m", Context: 20_000, Output: 8_000}}}}})
	id := r.session("p/m", allTools)
	r.raise(id, outboard.Spend{Tokens: 10_000_000})
	r.start(nil)
	r.say(id, strings.Repeat("word ", 14_000))
	<-begun
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	h, err := r.store.Session(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if b := r.budget(id); b.Spent.Tokens < 14_000 || b.Spent.Tokens != h.Usage.Tokens() || !b.Held.IsZero() {
		t.Errorf("%d tokens of the budget and %d of the session; held %+v\n%s", b.Spent.Tokens, h.Usage.Tokens(),
			b.Held, r.dump(id))
	}
	if f := payloads[*outboard.ModelFailed](r, id); len(f) != 1 || len(payloads[*outboard.ModelStarted](r, id)) != 1 {
		t.Errorf("the log has not one call that was cut: %v\n%s", f, r.dump(id))
	}
	r.say(id, "And now?")
	r.until(id, "the answer", func(s *outboard.State) bool { return s.Turn == 2 && !s.InTurn && s.Failed == nil })
	if n := calls.Load(); n != 3 { // the summary anew, then the answer
		t.Errorf("the model was called %d times\n%s", n, r.dump(id))
	}
}
