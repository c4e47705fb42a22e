// Package registry holds the definitions of the built-in tools. A definition says everything about a tool but
// how it works: its name and input, what policies judge of a call, how a lost call is treated, what a terminal
// shows of it, and its step in a script. The packages that decide, show, check or replay calls ask the registry,
// and none of them has a list of names.
//
// A new tool is its definition, in Tools, and its handler: a function of package guest for a tool of the
// sandbox, or Run for one that needs nothing but its input. docs/reference/script.md describes its step.
//
// A definition's fields are the only description of its input: the JSON Schema that a model gets is made from
// them, and Validate enforces them. Nothing in this package holds state.
package registry

import (
	"encoding/json"
	"path"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Place says where a tool's calls run.
type Place int

// The places.
const (
	InSandbox Place = iota // by the guest, through fleet
	InControl              // in the server's process: Run, or a fetcher
)

// Subject is what a call names and policies judge.
type Subject int

// The subjects. Target is the field that holds it.
const (
	Nothing   Subject = iota // policies judge the whole input
	Command                  // a command for a shell
	File                     // the path of a file
	Directory                // the path that a search begins at; what the search finds is judged once more
	Address                  // a URL
)

// Tool is one built-in tool.
type Tool struct {
	Name        string
	Description string // for the model
	Schema      json.RawMessage
	Fields      []Field

	Class     outboard.CallClass // what may be done when the outcome of a call is lost
	Place     Place
	MayChange bool // a call may change the workspace, so a checkpoint is due after it
	// Shell says that calls run commands in the thread's shell, one after the other. They reach whatever the sandbox
	// reaches: the network, and every mounted file.
	Shell bool
	// Leaves puts the action into the group of those that can carry data outside.
	Leaves bool
	// Taint is what every call adds to the session's, whatever it names.
	Taint outboard.Taint

	Subject Subject
	Target  string // the field with the Subject
	// Globs says that the pattern of a search is one of paths. An absolute one says where the search begins, whatever
	// the Target says.
	Globs bool

	// Optional keeps the tool off unless a toolset has an entry with its name. Clients that know the standard toolset
	// only never see it.
	Optional bool
	// Unbuilt is for a tool of the wire that agents can configure, and this server cannot run: what to use instead.
	Unbuilt string

	// Short is the key of the script step that a plain value stands for; "" = the step is always a mapping.
	Short string
	// Replaced and Replacement are the fields that a terminal shows as a change: the text before and after.
	Replaced, Replacement string

	// Run is the handler of a tool that needs nothing but its input. last is the input of the newest call of the tool
	// that ended well, as far as the conversation reaches back; nil = none. The text is for the model.
	Run func(input, last outboard.Raw) (string, error)

	title func(args) string // what a terminal shows beside the name; nil = the Target
	check func(args) error  // what the fields cannot say; nil = nothing
}

var all = build(definitions)

// build makes the schemas.
func build(definitions []Tool) []Tool {
	for i := range definitions {
		definitions[i].Schema = objectSchema(definitions[i].Fields)
	}
	return definitions
}

// All returns every tool that an agent can configure, in the order a model is offered them. The caller must not
// change it.
func All() []Tool { return all }

// Lookup returns the tool of that name.
func Lookup(name string) (Tool, bool) {
	for i := range all {
		if all[i].Name == name {
			return all[i], true
		}
	}
	return Tool{}, false
}

// Built returns the tools that this server runs, in the order a model is offered them.
func Built() []Tool {
	var out []Tool
	for _, t := range all {
		if t.Unbuilt == "" {
			out = append(out, t)
		}
	}
	return out
}

// Names returns the names of tools.
func Names(tools []Tool) []string {
	names := make([]string, len(tools))
	for i := range tools {
		names[i] = tools[i].Name
	}
	return names
}

// Searches reports whether calls find paths by themselves, each of which is judged.
func (t Tool) Searches() bool { return t.Subject == Directory }

// Opens reports whether calls name a file or a directory of the sandbox that they open.
func (t Tool) Opens() bool { return t.Subject == File || t.Subject == Directory }

// Title describes a call in a few words: what it acts on. An input that is not as it should be is shown whole.
func (t Tool) Title(input []byte) string {
	var in args
	if json.Unmarshal(input, &in) != nil || len(in) == 0 {
		return string(input)
	}
	switch {
	case t.title != nil:
		return t.title(in)
	case t.Subject == Directory:
		return strings.TrimSpace(in.text("pattern") + " " + ShortPath(in.text(t.Target)))
	case t.Subject == File:
		return ShortPath(in.text(t.Target))
	case t.Target != "":
		return in.text(t.Target)
	}
	return string(input)
}

// workspace is where paths of a sandbox begin.
const workspace = "/workspace/"

// ShortPath drops the workspace's own path, which every path inside has.
func ShortPath(p string) string {
	if rest, ok := strings.CutPrefix(path.Clean("/"+p), workspace); ok && p != "" {
		return rest
	}
	return p
}
