package llm

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
	builtin "github.com/outboard-dev/outboard/internal/tool/registry"
	"go.yaml.in/yaml/v3"
)

// Limits of a script, against one that would keep a worker busy for ever.
const (
	maxSteps     = 10_000
	maxSleep     = 24 * time.Hour
	maxFailTimes = 1000
)

// step is one entry of a script. Kind is "say", "think" (Text), "sleep" (Wait), "fail" (Fail), "stop" (Text: the
// stop reason) or "call" (Calls: one, or several that are made in parallel).
type step struct {
	kind  string
	text  string
	wait  time.Duration
	fail  failure
	calls []call
	src   json.RawMessage // the step as JSON, which is YAML too: how it survives a compaction
}

// call is one tool call to make.
type call struct {
	name  string
	input json.RawMessage
}

// failure is a scripted error: the first Times attempts of the response fail with Status after After bytes of text.
type failure struct {
	status     int // 0 = the connection breaks
	after      int
	times      int
	retryAfter time.Duration
}

// ends reports whether no step after s belongs to the same response.
func (s *step) ends() bool { return s.kind == "call" || s.kind == "stop" }

// tools are the steps that call a built-in tool.
var tools = stepTools()

func stepTools() map[string]builtin.Tool {
	out := map[string]builtin.Tool{}
	for _, t := range builtin.Built() {
		out[t.Name] = t
	}
	return out
}

// keys are the fields of a tool by their keys in a step.
func keys(t builtin.Tool) map[string]builtin.Field {
	out := map[string]builtin.Field{}
	for _, f := range t.Fields {
		out[f.Key()] = f
	}
	return out
}

// otherSteps are the steps that are no tool call of their own.
var otherSteps = []string{"parallel", "say", "think", "sleep", "fail", "stop"}

// stepNames lists every step, for error messages.
func stepNames() string {
	names := slices.Concat(slices.Collect(maps.Keys(tools)), otherSteps, []string{"call"})
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// parseSteps reads a list of steps.
func parseSteps(n *yaml.Node) ([]step, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, badLine(n, "expected a list of steps, got %s", kindName(n))
	}
	if len(n.Content) == 0 {
		return nil, badLine(n, "the list of steps is empty")
	}
	if len(n.Content) > maxSteps {
		return nil, badLine(n, "%d steps; at most %d are allowed", len(n.Content), maxSteps)
	}
	steps := make([]step, len(n.Content))
	for i, c := range n.Content {
		var err error
		if steps[i], err = parseStep(c); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

func parseStep(n *yaml.Node) (s step, err error) {
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 {
		return s, badLine(n, "a step is one \"name: value\", such as \"bash: ls\"; got %s", kindName(n))
	}
	name, v := n.Content[0], n.Content[1]
	if s.src, err = appendJSON(nil, n); err != nil {
		return s, err
	}
	s.kind = name.Value
	switch name.Value {
	case "say", "think":
		s.text, err = textOf(name.Value, v)
	case "stop":
		if s.text, err = textOf("stop", v); err == nil && s.text != "refusal" && s.text != "max_tokens" {
			err = badLine(v, "stop is refusal or max_tokens, not %q", s.text)
		}
	case "sleep":
		s.wait, err = parseDuration("sleep", v, maxSleep)
	case "fail":
		s.fail, err = parseFail(v)
	case "parallel":
		s.kind = "call"
		s.calls, err = parseParallel(v)
	default:
		var c call
		s.kind = "call"
		c, err = parseCall(name, v)
		s.calls = []call{c}
	}
	return s, err
}

func parseParallel(n *yaml.Node) ([]call, error) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return nil, badLine(n, "parallel needs a list of tool steps, got %s", kindName(n))
	}
	if len(n.Content) > maxSteps {
		return nil, badLine(n, "%d calls; at most %d are allowed", len(n.Content), maxSteps)
	}
	var calls []call
	for _, c := range n.Content {
		if c.Kind != yaml.MappingNode || len(c.Content) != 2 {
			return nil, badLine(c, "parallel needs tool steps, such as \"bash: ls\"; got %s", kindName(c))
		}
		if name := c.Content[0]; slices.Contains(otherSteps, name.Value) {
			return nil, badLine(name, "parallel makes tool calls, and %s is none", name.Value)
		}
		one, err := parseCall(c.Content[0], c.Content[1])
		if err != nil {
			return nil, err
		}
		calls = append(calls, one)
	}
	return calls, nil
}

// parseCall reads a step that is a tool call: "call", or the name of a built-in tool.
func parseCall(name, v *yaml.Node) (c call, err error) {
	if name.Value == "call" {
		return parseAnyCall(v)
	}
	t, ok := tools[name.Value]
	if !ok {
		return c, badLine(name, "unknown step %q; steps are %s", name.Value, stepNames())
	}
	c.name = name.Value
	fields := keys(t)
	if v.Kind == yaml.ScalarNode && t.Short != "" {
		text, err := textOf(name.Value, v)
		c.input = append(appendString(append(appendString([]byte("{"), fields[t.Short].Name), ':'), text), '}')
		return c, err
	}
	if v.Kind != yaml.MappingNode {
		return c, badLine(v, "%s needs a mapping with %s", name.Value, fieldNames(fields))
	}
	in := []byte{'{'}
	have := map[string]bool{}
	for k, fv := range pairs(v) {
		f, ok := fields[k.Value]
		if !ok {
			return c, badLine(k, "%s has no key %q; it has %s", name.Value, k.Value, fieldNames(fields))
		}
		have[k.Value] = true
		if len(in) > 1 {
			in = append(in, ',')
		}
		in = append(appendString(in, f.Name), ':')
		if in, err = appendField(in, name.Value+"."+k.Value, f.Kind, fv); err != nil {
			return c, err
		}
	}
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if fields[k].Required && !have[k] {
			return c, badLine(v, "%s needs %q", name.Value, k)
		}
	}
	c.input = append(in, '}')
	return c, nil
}

// parseAnyCall reads {name, input}.
func parseAnyCall(v *yaml.Node) (c call, err error) {
	if v.Kind != yaml.MappingNode {
		return c, badLine(v, "call needs {name, input}, got %s", kindName(v))
	}
	c.input = json.RawMessage("{}")
	named := false
	for k, fv := range pairs(v) {
		switch k.Value {
		case "name": // "" is what a model does that goes wrong
			if named = true; fv.Tag != "!!str" || fv.Value != "" {
				c.name, err = textOf("call.name", fv)
			}
		case "input":
			switch {
			case fv.Kind == yaml.ScalarNode && fv.Tag == "!!str": // what a model writes that goes wrong
				c.input = toolInput(fv.Value)
			case fv.Kind == yaml.MappingNode:
				c.input, err = appendJSON(nil, fv)
			default:
				return c, badLine(fv, "call.input must be a mapping, or the text that the model writes in its "+
					"place, got %s", kindName(fv))
			}
		default:
			err = badLine(k, "call has no key %q; it has name, input", k.Value)
		}
		if err != nil {
			return c, err
		}
	}
	if !named {
		return c, badLine(v, "call needs \"name\"")
	}
	return c, nil
}

// appendField appends a tool step's value as JSON of the wanted type.
func appendField(dst []byte, what string, kind builtin.Kind, v *yaml.Node) ([]byte, error) {
	switch kind {
	case builtin.Text, builtin.Path:
		if v.Kind != yaml.ScalarNode || v.ShortTag() == "!!null" {
			return nil, badLine(v, "%s needs text, got %s", what, kindName(v))
		}
		return appendString(dst, v.Value), nil
	case builtin.Flag:
		if v.ShortTag() != "!!bool" {
			return nil, badLine(v, "%s is true or false, not %s", what, kindName(v))
		}
	case builtin.Whole:
		if v.ShortTag() != "!!int" {
			return nil, badLine(v, "%s needs a whole number, got %s", what, kindName(v))
		}
	case builtin.Lines:
		if v.Kind != yaml.SequenceNode {
			return nil, badLine(v, "%s needs a list such as [1, 20], got %s", what, kindName(v))
		}
		for _, c := range v.Content {
			if c.ShortTag() != "!!int" {
				return nil, badLine(c, "%s needs whole numbers, got %s", what, kindName(c))
			}
		}
	case builtin.List:
		if v.Kind != yaml.SequenceNode {
			return nil, badLine(v, "%s needs a list, got %s", what, kindName(v))
		}
	}
	return appendJSON(dst, v)
}

// parseFail reads "529", "529 after 40 bytes", "connection" or {status, after, times, retry_after}.
func parseFail(n *yaml.Node) (f failure, err error) {
	f.times = 1
	if n.Kind == yaml.ScalarNode {
		words := strings.Fields(n.Value)
		if len(words) == 4 && words[1] == "after" && words[3] == "bytes" {
			if f.after, err = parseCount("fail", words[2], n, 0, outboard.MaxModelOutput); err != nil {
				return f, err
			}
			words = words[:1]
		}
		if len(words) != 1 {
			return f, badLine(n, "fail is a status, \"STATUS after N bytes\", \"connection\" or a mapping; got %q",
				n.Value)
		}
		f.status, err = parseStatus(words[0], n)
		return f, err
	}
	if n.Kind != yaml.MappingNode {
		return f, badLine(n, "fail needs a status or a mapping, got %s", kindName(n))
	}
	given := false
	for k, v := range pairs(n) {
		switch k.Value {
		case "status":
			given = true
			f.status, err = parseStatus(v.Value, v)
		case "after":
			f.after, err = parseCount("fail.after", v.Value, v, 0, outboard.MaxModelOutput)
		case "times":
			f.times, err = parseCount("fail.times", v.Value, v, 1, maxFailTimes)
		case "retry_after":
			f.retryAfter, err = parseDuration("fail.retry_after", v, maxSleep)
		default:
			err = badLine(k, "fail has no key %q; it has after, retry_after, status, times", k.Value)
		}
		if err != nil {
			return f, err
		}
	}
	if !given {
		return f, badLine(n, "fail needs \"status\"")
	}
	return f, nil
}

func parseStatus(s string, n *yaml.Node) (int, error) {
	if s == "connection" {
		return 0, nil
	}
	status, err := strconv.Atoi(s)
	if err != nil || status < 400 || status > 599 {
		return 0, badLine(n, "fail needs a status from 400 to 599 or \"connection\", got %q", s)
	}
	return status, nil
}

func parseCount(what, s string, n *yaml.Node, least, most int) (int, error) {
	v, err := strconv.Atoi(s)
	if err != nil || v < least || v > most {
		return 0, badLine(n, "%s needs a whole number from %d to %d, got %q", what, least, most, s)
	}
	return v, nil
}

func parseDuration(what string, n *yaml.Node, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || d < 0 || d > most {
		return 0, badLine(n, "%s needs a duration such as 2s or 150ms, at most %v, got %s", what, most, kindName(n))
	}
	return d, nil
}

// textOf returns a scalar's text as written: "say: 42" says 42.
func textOf(what string, n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" || n.Value == "" {
		return "", badLine(n, "%s needs text, got %s", what, kindName(n))
	}
	return n.Value, nil
}

// kindName describes a node to the person who wrote it.
func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		var keys []string
		for k := range pairs(n) {
			keys = append(keys, strconv.Quote(k.Value))
		}
		return "a mapping with keys [" + strings.Join(keys[:min(len(keys), 8)], " ") + "]"
	case yaml.SequenceNode:
		return fmt.Sprintf("a list of %d", len(n.Content))
	}
	if n.ShortTag() == "!!null" {
		return "nothing"
	}
	return "the text " + strconv.Quote(text.Clip(n.Value, 60))
}

func fieldNames(m map[string]builtin.Field) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// tokens estimates tokens from bytes, the same way everywhere.
func tokens(bytes int64) int64 { return int64(math.Ceil(float64(bytes) / 4)) }
