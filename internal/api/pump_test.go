package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Fails if a message overtakes its own deltas, which were published before it was appended.
func TestDeltasComeBeforeTheirMessage(t *testing.T) {
	for range 20 { // either channel may be read first
		e := outboard.NewEvent("sthr_01",
			&outboard.AgentMessage{Content: []outboard.Content{{Type: "text", Text: "whole"}}})
		deltas, items := make(chan control.Delta, 2), make(chan logItem, 1)
		deltas <- control.Delta{Event: e.ID, Kind: outboard.TypeAgentMessage, Start: true}
		deltas <- control.Delta{Event: e.ID, Kind: outboard.TypeAgentMessage, Text: "who"}
		items <- logItem{e: e}
		close(items)
		rec := httptest.NewRecorder()
		src := &logSource{}
		st := &streamer{s: &server{keepalive: time.Hour, writeTimeout: time.Minute}, w: rec,
			rc: http.NewResponseController(rec), src: src,
			tr: &translator{src: src, agent: "a"}, previews: newPreviews([]string{string(outboard.TypeAgentMessage)})}
		st.pump(t.Context(), items, deltas)
		body := rec.Body.String()
		start, delta, whole := strings.Index(body, `"event_start"`), strings.Index(body,
			`"event_delta"`), strings.Index(body, `"whole"`)
		if start < 0 || delta < start || whole < delta {
			t.Fatalf("written in the wrong order, or not at all:\n%s", body)
		}
	}
}

// Fails if a preview comes before the beginning of its model request, which a reader of the log may learn of
// later than of the preview.
func TestDeltasComeAfterWhatWasBeforeThem(t *testing.T) {
	for range 20 { // either channel may be read first
		e := outboard.NewEvent("sthr_01",
			&outboard.AgentMessage{Content: []outboard.Content{{Type: "text", Text: "whole"}}})
		before := outboard.NewEvent("sthr_01",
			&outboard.AgentMessage{Content: []outboard.Content{{Type: "text", Text: "earlier"}}})
		began := outboard.NewEvent("sthr_01", &outboard.ModelStarted{Model: "m"})
		before.Seq, began.Seq, e.Seq = 1, 2, 3
		deltas, items := make(chan control.Delta, 2), make(chan logItem, 3)
		deltas <- control.Delta{Event: e.ID, Kind: outboard.TypeAgentMessage, After: 2, Start: true}
		deltas <- control.Delta{Event: e.ID, Kind: outboard.TypeAgentMessage, After: 2, Text: "who"}
		items <- logItem{e: before}
		items <- logItem{e: began}
		items <- logItem{e: e}
		close(items)
		rec := httptest.NewRecorder()
		src := &logSource{}
		st := &streamer{s: &server{keepalive: time.Hour, writeTimeout: time.Minute}, w: rec,
			rc: http.NewResponseController(rec), src: src,
			tr: &translator{src: src, agent: "a"}, previews: newPreviews([]string{string(outboard.TypeAgentMessage)})}
		st.pump(t.Context(), items, deltas)
		body, at := rec.Body.String(), -1
		for _, part := range []string{`"earlier"`, `"span.model_request_start"`, `"event_start"`, `"event_delta"`,
			`"whole"`} {
			i := strings.Index(body, part)
			if i <= at {
				t.Fatalf("%s is in the wrong place, or not there:\n%s", part, body)
			}
			at = i
		}
	}
}
