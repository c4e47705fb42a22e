// Package tool runs the built-in tools of package registry: it owns how a call becomes a request to
// the guest, and how the guest's answer becomes what the model reads. The file tools and bash run
// inside the sandbox, by package guest. web_fetch runs on the server and can reach public addresses
// only. Nothing here holds state.
//
// It never decides whether a call is allowed. Start reading at package registry.
package tool

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/text"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

const (
	// FileTimeout bounds one call of a file tool. Reading and writing take milliseconds; a grep through a large
	// tree on a busy disk may take tens of seconds, and more than a minute of it is a pattern the model should
	// narrow.
	FileTimeout = 60 * time.Second
	// FetchTimeout bounds one web_fetch with all its redirects.
	FetchTimeout = 30 * time.Second
	// searchOutput is more than any search of the guest answers.
	searchOutput = 512 << 10
)

// Def is one built-in tool.
type Def struct{ registry.Tool }

// Builtins returns all built-in tools, in the order a model is offered them. The caller may change the slice.
func Builtins() []Def {
	var defs []Def
	for _, t := range registry.Built() {
		defs = append(defs, Def{t})
	}
	return defs
}

// Lookup returns the built-in tool of that name.
func Lookup(name string) (Def, bool) {
	t, ok := registry.Lookup(name)
	return Def{t}, ok && t.Unbuilt == ""
}

// Timeout returns how long a call with this valid input may take.
func (d Def) Timeout(input outboard.Raw) time.Duration {
	switch {
	case d.Place == registry.InControl:
		return FetchTimeout
	case !d.Shell:
		return FileTimeout
	}
	var in struct {
		TimeoutMs int64 `json:"timeout_ms"`
	}
	if json.Unmarshal(input, &in) != nil || in.TimeoutMs <= 0 {
		return outboard.DefaultBashTimeout
	}
	return time.Duration(min(in.TimeoutMs, outboard.MaxBashTimeout.Milliseconds())) * time.Millisecond
}

// At is a call's input as the guest gets it: with the one path, judged, that may be opened in the place of the
// one that the call names.
func (d Def) At(input outboard.Raw, opens string) outboard.Raw {
	var args map[string]json.RawMessage
	if opens == "" || !d.Opens() || json.Unmarshal(input, &args) != nil {
		return input
	}
	var pattern string
	if d.Globs && json.Unmarshal(args["pattern"], &pattern) == nil && strings.HasPrefix(pattern, "/") {
		_, pattern = guest.SplitPattern(pattern)
		args["pattern"] = quote(pattern)
	}
	args[d.Target], args["judged"] = quote(opens), json.RawMessage("true")
	out, err := json.Marshal(args)
	if err != nil {
		return input
	}
	return out
}

func quote(s string) json.RawMessage {
	b, _ := json.Marshal(s) // no string fails
	return b
}

// Start returns the request to the guest for a call with this valid input. Only bash has state between calls:
// each thread has its own shell.
func (d Def) Start(key string, epoch int64, generation string, thread outboard.ThreadID,
	input outboard.Raw) guest.Start {
	limit := outboard.MaxToolOutput
	if d.Searches() { // what it finds is judged first, and cut afterwards
		limit = searchOutput
	}
	s := guest.Start{
		Key:         key,
		Epoch:       epoch,
		Generation:  generation,
		Digest:      Digest(d.Name, input),
		Op:          d.Name,
		Input:       input,
		TimeoutMs:   d.Timeout(input).Milliseconds(),
		OutputLimit: limit,
	}
	if d.Shell {
		s.Shell = string(thread)
	}
	return s
}

// Answer runs a call of a tool with a Run to its outcome; last is as there.
func (d Def) Answer(call outboard.CallID, input, last outboard.Raw) outboard.CallFinished {
	begun := time.Now()
	text, err := d.Run(input, last)
	if err != nil {
		return Failed(call, outboard.OutcomeError, err.Error())
	}
	body, cut := Fit(Clean(text), outboard.MaxToolOutput, maxEncoded)
	return outboard.CallFinished{Call: call, Outcome: outboard.OutcomeOK, Truncated: cut, DurationUs: time.Since(begun).
		Microseconds(),
		Content: []outboard.Content{outboard.Text(join(body, ""))}}
}

// Digest identifies a call's tool and input: the hex SHA-256 of the name and the canonical form of the JSON.
// Spacing, escapes and the order of keys do not matter, because an input that has been through the log may
// differ in these.
func Digest(name string, input outboard.Raw) string {
	canonical := []byte(input)
	dec := json.NewDecoder(bytes.NewReader(input))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) == nil {
		if b, err := json.Marshal(v); err == nil {
			canonical = b
		}
	}
	h := sha256.New()
	h.Write([]byte(name))
	h.Write([]byte{0})
	h.Write(canonical)
	return hex.EncodeToString(h.Sum(nil))
}

// clip shortens foreign text for an error message.
func clip(s string) string { return text.Clip(s, 100) }
