package schema

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/outboard-dev/outboard/internal/text"
)

// measure holds a schema's text to its limits, before anything is made of it.
func measure(doc any) error {
	if _, err := plain(doc, maxSchemaDepth); err != nil {
		return err
	}
	var n extent
	n.add(doc, 0)
	switch {
	case n.nodes > maxNodes:
		return fmt.Errorf("it has %d objects and booleans, over the limit of %d", n.nodes, maxNodes)
	case n.paths > maxPaths:
		return fmt.Errorf("its property names and nesting make %d bytes of paths, over the limit of %d", n.paths,
			maxPaths)
	case n.refs*n.nodes > maxRefs:
		return fmt.Errorf("it has too many references: %d, beside %d objects and booleans", n.refs, n.nodes)
	}
	return nil
}

// extent is how large a schema is: its objects and booleans, the bytes of the paths to them, and its references.
type extent struct{ nodes, paths, refs int }

func (n *extent) add(v any, path int) {
	switch v := v.(type) {
	case map[string]any:
		n.nodes, n.paths = n.nodes+1, n.paths+path
		if _, ok := v["$ref"].(string); ok {
			n.refs++
		}
		for k, m := range v {
			n.add(m, path+1+len(k))
		}
	case []any:
		for _, m := range v {
			n.add(m, path+5)
		}
	case bool:
		n.nodes, n.paths = n.nodes+1, n.paths+path
	}
}

// plain returns how deeply a value nests. It refuses more than that many levels, and numbers that only an
// attacker writes.
func plain(v any, most int) (int, error) {
	if most == 0 {
		return 0, fmt.Errorf("it nests too deeply: the limits are %d levels for an input and %d for a schema",
			maxInputDepth, maxSchemaDepth)
	}
	var inner iter.Seq[any]
	switch v := v.(type) {
	case map[string]any:
		inner = maps.Values(v)
	case []any:
		inner = slices.Values(v)
	case json.Number:
		return 1, number(string(v))
	default:
		return 1, nil
	}
	deepest := 0
	for m := range inner {
		n, err := plain(m, most-1)
		if err != nil {
			return 0, err
		}
		deepest = max(deepest, n)
	}
	return 1 + deepest, nil
}

func number(n string) error {
	digits, exponent := n, 0
	if i := strings.IndexAny(n, "eE"); i >= 0 {
		var err error
		digits = n[:i]
		if exponent, err = strconv.Atoi(n[i+1:]); err != nil {
			exponent = maxExponent + 1
		}
	}
	if len(digits) > maxDigits || exponent > maxExponent || exponent < -maxExponent {
		return fmt.Errorf("the number %s is too large, too small or too exact", text.Clip(n, 40))
	}
	return nil
}

// errPatterns is what a pattern is refused with that is one too many.
var errPatterns = fmt.Errorf("the patterns of the schema are too large together: with repetitions written out they "+
	"come to over %d steps", maxProgram)

// patterns compiles the regular expressions of one schema.
type patterns struct {
	work *meter
	size int
}

func (p *patterns) compile(text string) (jsonschema.Regexp, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	size := instructions(parsed)
	if p.size += size; p.size > maxProgram {
		return nil, errPatterns
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	return &pattern{Regexp: re, size: size, work: p.work}, nil
}

// instructions is about how many a compiled expression has. It is compared with a limit, so it does not count
// beyond it.
func instructions(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(1, re.Min, re.Max)
	}
	return min(n, maxProgram+1)
}

// pattern is a regular expression whose use counts as work.
type pattern struct {
	*regexp.Regexp
	size int
	work *meter
}

// MatchString implements jsonschema.Regexp. It takes time in proportion to both lengths.
func (p *pattern) MatchString(s string) bool {
	p.work.spend(1 + len(s)*p.size/128)
	return p.Regexp.MatchString(s)
}
