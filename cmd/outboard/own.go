package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/outboard-dev/outboard/internal/client"
)

// ownPrefix starts the types of Outboard's own events, which are the log's own types.
const ownPrefix = "outboard."

// ownPayload is the union of the fields of Outboard's own events that a timeline shows.
type ownPayload struct {
	Call       string `json:"call"`
	Outcome    string `json:"outcome"`
	ExitCode   *int   `json:"exit_code"`
	IsError    bool   `json:"is_error"`
	DurationUs int64  `json:"duration_us"`
	Truncated  bool   `json:"truncated"`
	Sandbox    string `json:"sandbox"`
	Isolation  string `json:"isolation"`
	User       string `json:"user"`
	Note       string `json:"note"`
	Provider   string `json:"provider"`
	From       string `json:"from"`
	Reason     string `json:"reason"`
	Path       string `json:"path"`
	Turn       int    `json:"turn"`
	Parent     string `json:"parent"`
	Seq        int64  `json:"seq"`
	To         int64  `json:"to"`
	Talk       bool   `json:"conversation"`
	Machine    bool   `json:"machine"`
	Import     string `json:"import"`

	Stop json.RawMessage `json:"stop"` // of a response a word, of a turn an object
}

// decodeOwn reads one of Outboard's own events.
func decodeOwn(ev client.Event) (ownPayload, error) {
	var body struct {
		Payload ownPayload `json:"payload"`
	}
	if err := ev.Decode(&body); err != nil {
		return body.Payload, fmt.Errorf("reading event %s: %w", ev.ID, err)
	}
	return body.Payload, nil
}

// outcome is how a call ended, in a word or two.
func (t *timeline) outcome(p ownPayload) string {
	text := strings.ReplaceAll(p.Outcome, "_", " ")
	switch {
	case p.ExitCode != nil && *p.ExitCode == 0:
		return "exit 0"
	case p.ExitCode != nil:
		return t.st.Bad(fmt.Sprintf("exit %d", *p.ExitCode))
	case p.Outcome == "unknown":
		return t.st.Warn("outcome unknown")
	case p.Outcome == "ok" && !p.IsError:
		return ""
	case p.Outcome == "ok":
		return t.st.Bad("error")
	}
	return t.st.Bad(text)
}

// own shows one of Outboard's own events.
func (t *timeline) own(kind string, ev client.Event) error {
	p, err := decodeOwn(ev)
	if err != nil {
		return err
	}
	switch {
	case kind == "call.finished":
		return t.finished(ev, p)
	case kind == "call.started":
		if c := t.calls[p.Call]; c != nil {
			c.since = ev.ProcessedAt
		}
		return nil
	case kind == "turn.started":
		t.cut = false
		return nil
	case kind == "model.finished":
		if t.cut = string(p.Stop) == `"max_tokens"`; !t.cut || t.tools {
			return nil
		}
		return t.line(ev.ProcessedAt, "note", "the response was cut at its length limit", "")
	case t.tools:
		return nil
	}
	switch kind {
	case "sandbox.ready":
		what := "ready: " + p.Provider + ", " + p.Isolation
		if p.From != "" {
			what += "; restored from checkpoint " + p.From
		}
		if p.User != "" {
			what += "; tools run as " + p.User
		}
		if p.Note != "" {
			what += "; " + p.Note
		}
		return t.line(ev.ProcessedAt, "box", what, "")
	case "sandbox.lost":
		return t.line(ev.ProcessedAt, "box", "lost: "+p.Reason, "")
	case "session.forked":
		if p.Import != "" {
			return t.line(ev.ProcessedAt, "import", fmt.Sprintf("of %s at %d, from a file", sessionName(p.Parent),
				p.Seq), "")
		}
		return t.line(ev.ProcessedAt, "fork", fmt.Sprintf("of %s at %d", sessionName(p.Parent), p.Seq), "")
	case "session.rewound":
		return t.line(ev.ProcessedAt, "rewind", fmt.Sprintf("%s back at %d", whatIsBack(p.Talk, p.Machine), p.To), "")
	case "file.harvested":
		return t.line(ev.ProcessedAt, "file", p.Path, "")
	}
	return nil
}
