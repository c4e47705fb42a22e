package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxScript bounds the text of one script: a message is at most outboard.MaxBody, but steps are read again at
// every model call.
const maxScript = 1 << 20

// maxDepth bounds the nesting of a script's values, so that reading one cannot exhaust the stack.
const maxDepth = 64

// lineError is a mistake at a line of a script.
type lineError struct {
	line int
	msg  string
}

// Error returns "line N: what".
func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.msg) }

func badLine(n *yaml.Node, format string, args ...any) error {
	return &lineError{n.Line, fmt.Sprintf(format, args...)}
}

// parseYAML reads exactly one YAML document. It refuses aliases (a few bytes of them expand to anything) and
// repeated keys, which the node form of the parser lets through.
func parseYAML(text []byte) (*yaml.Node, error) {
	if len(text) > maxScript {
		return nil, fmt.Errorf("the script is %d bytes long; at most %d are allowed", len(text), maxScript)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("the script is empty")
	} else if err != nil {
		return nil, SyntaxError(text, err)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("the script has more than one YAML document")
	}
	if len(doc.Content) != 1 {
		return nil, errors.New("the script is empty")
	}
	if err := checkNode(doc.Content[0], 0); err != nil {
		return nil, err
	}
	return doc.Content[0], nil
}

// maxSearched bounds the text in which SyntaxError looks for the line, since it reads it some times over.
const maxSearched = 128 << 10

// parserMark is how the YAML parser begins its errors.
var parserMark = regexp.MustCompile(`^yaml: (line \d+: )?`)

// SyntaxError returns an error of the YAML parser with the line where text stops to be readable. The parser's
// own line is the one where the construct began, or the one before it, and missing in the first; so it is looked
// for: the first line up to which the parser says the same as of the whole.
func SyntaxError(text []byte, err error) error {
	what := unreadable(text)
	if what == "" || len(text) > maxSearched {
		return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var ends []int
	end := 0
	for line := range bytes.Lines(text) {
		end += len(line)
		ends = append(ends, end)
	}
	line := 1 + sort.Search(len(ends)-1, func(i int) bool { return unreadable(text[:ends[i]]) == what })
	return &lineError{line, what}
}

// unreadable returns what the parser has against the syntax of text's first document, without a line, or "".
func unreadable(text []byte) string {
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return parserMark.ReplaceAllString(err.Error(), "")
	}
	return ""
}

// checkNode refuses what the rest of the package need not handle then.
func checkNode(n *yaml.Node, depth int) error {
	if depth > maxDepth {
		return badLine(n, "nested more than %d deep", maxDepth)
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return badLine(n, "anchors and aliases are not allowed")
	}
	if n.Kind == yaml.MappingNode {
		seen := map[string]bool{}
		for i := 0; i < len(n.Content); i += 2 {
			k := n.Content[i]
			switch {
			case k.Kind != yaml.ScalarNode || k.Tag == "!!merge":
				return badLine(k, "a key must be plain text")
			case seen[k.Value]:
				return badLine(k, "key %q is given twice", k.Value)
			}
			seen[k.Value] = true
		}
	}
	for _, c := range n.Content {
		if err := checkNode(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// pairs yields the keys and values of a mapping in order.
func pairs(n *yaml.Node) func(yield func(k, v *yaml.Node) bool) {
	return func(yield func(k, v *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// appendJSON appends the JSON of a checked node, keys in their order.
func appendJSON(dst []byte, n *yaml.Node) ([]byte, error) {
	switch n.Kind {
	case yaml.MappingNode:
		dst = append(dst, '{')
		for k, v := range pairs(n) {
			if dst[len(dst)-1] != '{' {
				dst = append(dst, ',')
			}
			dst = append(appendString(dst, k.Value), ':')
			var err error
			if dst, err = appendJSON(dst, v); err != nil {
				return nil, err
			}
		}
		return append(dst, '}'), nil
	case yaml.SequenceNode:
		dst = append(dst, '[')
		for i, v := range n.Content {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = appendJSON(dst, v); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	}
	return appendScalar(dst, n)
}

func appendScalar(dst []byte, n *yaml.Node) ([]byte, error) {
	switch n.ShortTag() {
	case "!!null":
		return append(dst, "null"...), nil
	case "!!bool":
		return strconv.AppendBool(dst, isTrue(n)), nil
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return append(dst, n.Value...), nil // as written: no digit is lost
		}
		var i int64
		if n.Decode(&i) == nil {
			return strconv.AppendInt(dst, i, 10), nil
		}
		var f float64
		if err := n.Decode(&f); err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return nil, badLine(n, "%s is not a number JSON can hold", n.Value)
		}
		return strconv.AppendFloat(dst, f, 'g', -1, 64), nil
	case "!!str", "!!timestamp":
		return appendString(dst, n.Value), nil
	}
	return nil, badLine(n, "a value of type %s is not allowed", n.ShortTag())
}

func isTrue(n *yaml.Node) bool { return strings.EqualFold(n.Value, "true") }

// appendString appends s as a JSON string without escaping <, > and &, so that commands stay readable in the log.
func appendString(dst []byte, s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string cannot fail
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}
