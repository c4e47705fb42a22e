package llm

import (
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/outboard-dev/outboard/internal/text"
)

// rule is one entry of a named script: the response to give when every condition holds.
type rule struct {
	line  int
	when  []condition
	steps []step
}

// condition is one key of a rule's when. Miss says why it does not hold, or "".
type condition struct {
	key  string
	miss func(*position) string
}

// parseRules reads a named script: a list of {when, do}.
func parseRules(text []byte) ([]rule, error) {
	n, err := parseYAML(text)
	if err != nil {
		return nil, err
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return nil, badLine(n, "a script is a list of {when, do}, got %s", kindName(n))
	}
	if len(n.Content) > maxSteps {
		return nil, badLine(n, "%d rules; at most %d are allowed", len(n.Content), maxSteps)
	}
	rules := make([]rule, len(n.Content))
	for i, c := range n.Content {
		if rules[i], err = parseRule(c); err != nil {
			return nil, err
		}
	}
	return rules, nil
}

func parseRule(n *yaml.Node) (r rule, err error) {
	r.line = n.Line
	var do *yaml.Node
	if n.Kind != yaml.MappingNode {
		return r, badLine(n, "a rule is a mapping with \"when\" and \"do\", got %s", kindName(n))
	}
	for k, v := range pairs(n) {
		switch k.Value {
		case "when":
			r.when, err = parseWhen(v)
		case "do":
			do = v
			r.steps, err = parseSteps(v)
		default:
			err = badLine(k, "a rule has no key %q; it has when, do", k.Value)
		}
		if err != nil {
			return r, err
		}
	}
	if r.steps == nil {
		return r, badLine(n, "a rule needs \"do\"")
	}
	for i, s := range r.steps[:len(r.steps)-1] {
		if s.kind == "stop" || s.kind == "call" && r.steps[i+1].kind != "call" {
			return r, badLine(do.Content[i+1], "a rule is one response: after a call only calls may follow, and "+
				"nothing after a stop")
		}
	}
	return r, nil
}

func parseWhen(n *yaml.Node) ([]condition, error) {
	if n.Kind != yaml.MappingNode {
		return nil, badLine(n, "when needs a mapping, got %s", kindName(n))
	}
	var when []condition
	for k, v := range pairs(n) {
		miss, err := parseCondition(k, v)
		if err != nil {
			return nil, err
		}
		when = append(when, condition{k.Value, miss})
	}
	return when, nil
}

func parseCondition(k, v *yaml.Node) (func(*position) string, error) {
	switch k.Value {
	case "turn", "step":
		want, err := parseCount(k.Value, v.Value, v, 1, 1_000_000)
		return func(p *position) string {
			have := p.responses + 1
			if k.Value == "step" {
				have = p.since + 1
			}
			return unless(have == want, "it is %d, not %d", have, want)
		}, err
	case "contains":
		want, err := textOf(k.Value, v)
		return func(p *position) string {
			return unless(strings.Contains(p.user, want), "the message %q lacks %q", text.Clip(p.user, 60), want)
		}, err
	case "tool_result_contains":
		want, err := textOf(k.Value, v)
		return func(p *position) string {
			return unless(strings.Contains(p.result, want), "the result %q lacks %q", text.Clip(p.result, 60), want)
		}, err
	case "matches", "tool_result_matches":
		re, err := regexp.Compile(v.Value)
		if v.Kind != yaml.ScalarNode || err != nil {
			return nil, badLine(v, "%s needs a regular expression: %v", k.Value, err)
		}
		return func(p *position) string {
			have := p.user
			if k.Value == "tool_result_matches" {
				have = p.result
			}
			return unless(re.MatchString(have), "%q does not match %s", text.Clip(have, 60), re)
		}, nil
	case "tool_result_is_error":
		if v.ShortTag() != "!!bool" {
			return nil, badLine(v, "%s is true or false", k.Value)
		}
		want := isTrue(v)
		return func(p *position) string {
			return unless(len(p.tools) > 0 && p.isError == want, "there is no such result")
		}, nil
	case "last_tool":
		want, err := textOf(k.Value, v)
		return func(p *position) string {
			last := ""
			if len(p.tools) > 0 {
				last = p.tools[len(p.tools)-1]
			}
			return unless(last == want, "it is %q, not %q", last, want)
		}, err
	}
	return nil, badLine(k, "when has no key %q; it has contains, last_tool, matches, step, tool_result_contains, "+
		"tool_result_is_error, tool_result_matches, turn", k.Value)
}

// unless returns "" when ok, else the reason.
func unless(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// match returns the first rule whose conditions all hold. With none it names the one that was nearest.
func (s *script) match(p *position) (*rule, error) {
	best, most, why := -1, -1, ""
	for i := range s.rules {
		var misses []string
		for _, c := range s.rules[i].when {
			if m := c.miss(p); m != "" {
				misses = append(misses, c.key+": "+m)
			}
		}
		if len(misses) == 0 {
			return &s.rules[i], nil
		}
		if held := len(s.rules[i].when) - len(misses); held > most {
			best, most, why = i, held, strings.Join(misses, "; ")
		}
	}
	return nil, s.failed("no rule matches response %d; the nearest is rule %d (line %d), but %s", p.responses+1, best+1,
		s.rules[best].line, why)
}
