// Package tool owns the built-in tools: what a model is told about them, what input they take, how
// a call becomes a request to the guest, and how the guest's answer becomes what the model reads.
// The file tools and bash run inside the sandbox, by package guest. web_fetch runs on the server
// and can reach public addresses only.
//
// Invariants: a definition's fields are the only description of its input. The JSON Schema that a
// model gets is made from them, and Validate enforces them. Nothing here holds state.
//
// It never decides whether a call is allowed. Start reading at Def and Builtins.
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
)

// Place says where a tool's calls run.
type Place int

// The places.
const (
	InSandbox Place = iota // by the guest, through fleet
	InControl              // in this process, by a Fetcher
)

const (
	// FileTimeout bounds one call of a file tool. Reading and writing take milliseconds; a grep through a large tree on a busy
	// disk may take tens of seconds, and more than a minute of it is a pattern the model should narrow.
	FileTimeout = 60 * time.Second
	// FetchTimeout bounds one web_fetch with all its redirects.
	FetchTimeout = 30 * time.Second
	// searchOutput is more than any search of the guest answers.
	searchOutput = 512 << 10
)

// Def is one built-in tool.
type Def struct {
	Name        string
	Description string // for the model
	Schema      json.RawMessage
	Class       outboard.CallClass
	Place       Place
	MayChange   bool // a call may change the workspace, so a checkpoint is due after it

	fields []field
	check  func(args) error // what the fields cannot say; nil = nothing
}

// Builtins returns all built-in tools, in the order a model is offered them. The caller may change the slice.
func Builtins() []Def {
	return []Def{bash(), read(), write(), edit(), glob(), grep(), webFetch()}
}

// Lookup returns the built-in tool of that name.
func Lookup(name string) (Def, bool) {
	for _, d := range Builtins() {
		if d.Name == name {
			return d, true
		}
	}
	return Def{}, false
}

// Timeout returns how long a call with this valid input may take.
func (d Def) Timeout(input outboard.Raw) time.Duration {
	switch {
	case d.Place == InControl:
		return FetchTimeout
	case d.Name != "bash":
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

// Searches reports whether calls find paths by themselves, each of which is judged.
func (d Def) Searches() bool { return d.Name == "glob" || d.Name == "grep" }

// Opens reports whether calls name a file or a directory of the sandbox that they open.
func (d Def) Opens() bool { return d.Place == InSandbox && d.Name != "bash" }

// At is a call's input as the guest gets it: with the one path, judged, that may be opened in the place of the one that the call names.
func (d Def) At(input outboard.Raw, opens string) outboard.Raw {
	var args map[string]json.RawMessage
	if opens == "" || !d.Opens() || json.Unmarshal(input, &args) != nil {
		return input
	}
	field := "file_path"
	if d.Searches() {
		field = "path"
	}
	var pattern string
	if d.Name == "glob" && json.Unmarshal(args["pattern"], &pattern) == nil && strings.HasPrefix(pattern, "/") {
		_, pattern = guest.SplitPattern(pattern)
		args["pattern"] = encode(pattern)
	}
	args[field], args["judged"] = encode(opens), json.RawMessage("true")
	out, err := json.Marshal(args)
	if err != nil {
		return input
	}
	return out
}

// Start returns the request to the guest for a call with this valid input. Only bash has state between calls: each thread has
// its own shell.
func (d Def) Start(key string, epoch int64, generation string, thread outboard.ThreadID, input outboard.Raw) guest.Start {
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
	if d.Name == "bash" {
		s.Shell = string(thread)
	}
	return s
}

// Digest identifies a call's tool and input: the hex SHA-256 of the name and the canonical form of the JSON. Spacing, escapes
// and the order of keys do not matter, because an input that has been through the log may differ in these.
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
