//go:build linux

package runner

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/store"
)

// silent is a model server that never answers, and what it was asked.
func silent(t *testing.T) (llm.Config, <-chan struct{}) {
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return llm.Config{Providers: []llm.Provider{{Name: "p", Type: llm.TypeChat, BaseURL: server.URL}}}, asked
}

// silentJudge is a session whose calls are judged by a silent model.
func silentJudge(t *testing.T, change func(*Config)) (*rig, outboard.SessionID, <-chan struct{}) {
	models, asked := silent(t)
	r := newRig(t, models)
	r.start(func(cfg *Config) {
		cfg.Judge = "p/judge"
		change(cfg)
	})
	sets := slices.Clone(allTools)
	sets[0].Default.Policy = outboard.AutoPolicy
	id := r.session("script/steps", sets)
	r.say(id, append([]string{"- parallel:"}, slices.Repeat([]string{"    - bash: 'true'"}, 10)...)...)
	return r, id, asked
}

// If this fails, an interrupt ends one judgement only: the turn goes on for a minute with each of the calls behind it.
func TestInterruptEndsAllJudgements(t *testing.T) {
	r, id, asked := silentJudge(t, func(*Config) {})
	<-asked
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	if n := len(asked); n > 0 {
		t.Errorf("the judge was asked %d more times after the interrupt", n)
	}
	for _, f := range r.outcomes(id) {
		if f.Outcome != outboard.OutcomeCanceled {
			t.Errorf("a call of a response that was interrupted while it was judged: %s", f.Outcome)
		}
	}
}

// If this fails, an approval waits for days though its call ended in the commit that asked, and everybody who answers is refused.
func TestAskedAndInterruptedInOneCommit(t *testing.T) {
	r, id, asked := silentJudge(t, func(*Config) {})
	<-asked
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	list, err := r.store.Approvals(t.Context(), store.ApprovalFilter{})
	if err != nil || len(list) != 10 {
		t.Fatalf("%d approvals, %v; want one for each call", len(list), err)
	}
	for _, a := range list {
		if a.State != outboard.ApprovalClosed {
			t.Errorf("the approval of a call that has ended is %s", a.State)
		}
	}
}

// If this fails, a judge that does not answer holds a response back once for each of its calls.
func TestASilentJudgeIsAskedOnce(t *testing.T) {
	r, id, asked := silentJudge(t, func(cfg *Config) { cfg.silence = 50 * time.Millisecond })
	r.until(id, "all calls ask", func(s *outboard.State) bool { return len(s.Calls) == 10 })
	if n := len(asked); n != 1 {
		t.Errorf("the judge was asked %d times about one response, want once", n)
	}
	judged := payloads[*outboard.CallJudged](r, id)
	if len(judged) != 10 || judged[9].Verdict != "" || !strings.Contains(judged[9].Reason, "did not answer in time") {
		t.Errorf("judgements: %d, the last is %+v", len(judged), judged[len(judged)-1])
	}
}
