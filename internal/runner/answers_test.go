//go:build linux

package runner

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// chats serves a model by answer, which gets the body of each request, and keeps the bodies.
func chats(t *testing.T,
	answer func(n int, body string, w http.ResponseWriter, r *http.Request)) (llm.Config, <-chan string) {
	bodies := make(chan string, 100)
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies <- string(b)
		answer(int(n.Add(1)), string(b), w, r)
	}))
	t.Cleanup(server.Close)
	return llm.Config{Providers: []llm.Provider{{Name: "p", Type: llm.TypeChat, BaseURL: server.URL}}}, bodies
}

// chunk is a piece of an answer.
func chunk(w http.ResponseWriter, text, finish string) {
	w.Header().Set("Content-Type", "text/event-stream")
	if finish != "" {
		finish = `,"finish_reason":"` + finish + `"`
	}
	fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{%s}%s}]}\n\n", text, finish)
	if finish != "" {
		fmt.Fprint(w, "data: [DONE]\n\n")
	}
	w.(http.Flusher).Flush()
}

// If this fails, a model does not know what it had said when the user interrupted it, or reads its own thinking
// as what it said.
func TestInterruptedAnswerIsKept(t *testing.T) {
	const shown = "I will now delete the old migrations"
	models, bodies := chats(t, func(n int, _ string, w http.ResponseWriter, r *http.Request) {
		if n == 1 {
			chunk(w, `"reasoning_content":"a secret thought"`, "")
			chunk(w, `"content":"`+shown+`"`, "")
			<-r.Context().Done()
			return
		}
		chunk(w, `"content":"as you like"`, "stop")
	})
	r := newRig(t, models)
	first := r.start(nil)
	id := r.session("p/m", allTools)
	deltas := r.hub.Follow(t.Context(), id)
	r.send(id, &outboard.InputMessage{Content: []outboard.Content{outboard.Text("clean up")}})
	for d := range deltas {
		if strings.Contains(d.Text, shown) {
			break
		}
	}
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	<-bodies
	first.Stop()
	r.advance(outboard.LeaseTTL + time.Second)
	r.start(nil) // the log is all that is left
	r.send(id, &outboard.InputMessage{Content: []outboard.Content{outboard.Text("no, not those")}})
	r.until(id, "second turn", func(s *outboard.State) bool { return s.Turn == 2 && s.Phase == outboard.PhaseIdle })
	body := <-bodies
	said, next := strings.Index(body, shown), strings.Index(body, "no, not those")
	if said < 0 || next < said || !strings.Contains(body[said:next], "user interrupted") ||
		!strings.Contains(body[said:next], `"role":"assistant"`) {
		t.Errorf("the next request: %s", body[max(0, len(body)-900):])
	}
	if strings.Contains(body, "secret thought") {
		t.Error("thinking that was cut off is in the next request")
	}
	if f := payloads[*outboard.ModelFinished](r, id); len(f) != 2 || f[0].Stop != "interrupted" ||
		f[0].Usage.Tokens() == 0 {
		t.Errorf("%+v", f)
	}
}

// If this fails, a picture that the provider refuses makes every later message of a session fail, or one that it
// takes is left out.
func TestRefusedPicturesAreLeftOut(t *testing.T) {
	models, bodies := chats(t, func(_ int, body string, w http.ResponseWriter, _ *http.Request) {
		if strings.Contains(body, "QkFE") {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"type":"invalid_request_error","message":"messages.2.content.1.image.source: image exceeds 5 MB maximum"}}`)
			return
		}
		chunk(w, `"content":"I see"`, "stop")
	})
	r := newRig(t, models)
	r.start(nil)
	id := r.session("p/m", allTools)
	show := func(data string) {
		turn := len(payloads[*outboard.TurnStarted](r, id)) + 1
		r.send(id, &outboard.InputMessage{Content: []outboard.Content{outboard.Text("look"),
			{Type: "image", Source: &outboard.Source{Type: "base64", MediaType: "image/png", Data: data}}}})
		s := r.until(id, "the turn",
			func(s *outboard.State) bool { return s.Turn == turn && s.Phase == outboard.PhaseIdle })
		if s.Stop.Type != "end_turn" {
			t.Fatalf("ended with %s\n%s", s.Stop.Type, r.dump(id))
		}
	}
	show("R09PRA==") // the control: taken, and stays
	show("QkFE")
	show("R09PRA==")
	var last string
	for len(bodies) > 0 {
		last = <-bodies
	}
	if strings.Contains(last, "QkFE") || strings.Count(last, "R09PRA==") != 2 ||
		strings.Count(last, "was left out") != 1 {
		t.Errorf("the last request: %s", last)
	}
	if f := payloads[*outboard.ModelFailed](r, id); len(f) != 1 || !f[0].Pictures ||
		!strings.Contains(f[0].Error.Message, "outboard rewind") {
		t.Errorf("%+v", f)
	}
}
