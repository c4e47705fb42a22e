package schema

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/outboard-dev/outboard/internal/text"
)

const (
	maxText   = 600 // bytes of a sentence
	maxFaults = 4   // of the faults named in it
	maxNamed  = 12  // of the values of an enum named in it
	maxValue  = 60  // bytes of each foreign value
)

// fault is one thing that is wrong.
type fault struct{ path, text string }

func (f fault) String() string { return where(f.path) + ": " + f.text }

// where is a JSON pointer for reading; the whole value is "/".
func where(path string) string { return cmp.Or(text.Clip(path, 2*maxValue), "/") }

// explain puts an error of the compiler or the validator into one sentence.
func explain(err error) error {
	if e, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return errors.New(sentence(faults(e)))
	}
	if e, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		return explain(e.Err)
	}
	if e, ok := errors.AsType[*jsonschema.InvalidRegexError](err); ok {
		return errors.New(badPattern(e.Err))
	}
	if e, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		return fmt.Errorf("it refers to %s, and nothing outside the schema is loaded", quote(inside(e.URL)))
	}
	if e, ok := errors.AsType[*jsonschema.JSONPointerNotFoundError](err); ok {
		return fmt.Errorf("it refers to %s, which is not there", quote(inside(e.URL)))
	}
	if e, ok := errors.AsType[*jsonschema.AnchorNotFoundError](err); ok {
		return fmt.Errorf("it refers to %s, which is not there", quote(inside(e.Reference)))
	}
	return errors.New(text.Clip(strings.ReplaceAll(err.Error(), base, ""), maxText))
}

// sentence names the first faults by path. The validator goes through maps, so the order they come in means nothing.
func sentence(list []fault) string {
	list = tidy(list)
	var parts []string
	for _, f := range list[:min(len(list), maxFaults)] {
		parts = append(parts, f.String())
	}
	text := text.Clip(strings.Join(parts, "; "), maxText)
	if more := len(list) - len(parts); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// tidy sorts faults, each once.
func tidy(list []fault) []fault {
	slices.SortFunc(list,
		func(a, b fault) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.text, b.text)) })
	return slices.Compact(list)
}

// faults are what an error comes down to.
func faults(e *jsonschema.ValidationError) []fault {
	path := pointer(e.InstanceLocation)
	one := func(format string, args ...any) []fault { return []fault{{path, fmt.Sprintf(format, args...)}} }
	each := func(names []string, format string, args ...any) (out []fault) {
		for _, name := range names {
			out = append(out, fault{path + pointer([]string{name}), fmt.Sprintf(format, args...)})
		}
		return out
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.AllOf, *kind.Reference:
		return causes(e)
	case *kind.AnyOf:
		return none(e, path)
	case *kind.OneOf:
		if len(k.Subschemas) == 0 {
			return none(e, path)
		}
		return one("fits more than one of the forms of which it must fit exactly one")
	case *kind.Required:
		return each(k.Missing, "is required")
	case *kind.Dependency:
		return each(k.Missing, "is required, because %s is given", quote(k.Prop))
	case *kind.DependentRequired:
		return each(k.Missing, "is required, because %s is given", quote(k.Prop))
	case *kind.AdditionalProperties:
		return each(k.Properties, "is not a known field")
	case *kind.FalseSchema:
		return one("is not allowed")
	case *kind.Type:
		return one("must be %s, not %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.Enum:
		return one("must be one of %s, not %s", named(k.Want), show(k.Got))
	case *kind.Const:
		return one("must be %s, not %s", show(k.Want), show(k.Got))
	case *kind.Pattern:
		return one("must match the pattern %s, which %s does not", text.Clip(k.Want, 2*maxValue), quote(k.Got))
	case *kind.Format:
		return one("%s", badPattern(k.Err))
	case *kind.PropertyNames:
		return one("the name %s is not allowed: %s", quote(k.Property), text.Clip(sentence(causes(e)), 3*maxValue))
	case *kind.RefCycle:
		return one("its schema refers to itself without end")
	}
	if text := limit(e.ErrorKind); text != "" {
		return one("%s", text)
	}
	return one("does not satisfy %s", cmp.Or(strings.Join(e.ErrorKind.KeywordPath(), "/"), "not"))
}

// limit puts a bound that was not kept into words.
func limit(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.MinLength:
		return fmt.Sprintf("must have at least %d characters, not %d", k.Want, k.Got)
	case *kind.MaxLength:
		return fmt.Sprintf("must have at most %d characters, not %d", k.Want, k.Got)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %d items, not %d", k.Want, k.Got)
	case *kind.MaxItems:
		return fmt.Sprintf("must have at most %d items, not %d", k.Want, k.Got)
	case *kind.AdditionalItems:
		return fmt.Sprintf("has %d items too many", k.Count)
	case *kind.MinProperties:
		return fmt.Sprintf("must have at least %d fields, not %d", k.Want, k.Got)
	case *kind.MaxProperties:
		return fmt.Sprintf("must have at most %d fields, not %d", k.Want, k.Got)
	case *kind.UniqueItems:
		return fmt.Sprintf("must have no item twice, and items %d and %d are equal", k.Duplicates[0], k.Duplicates[1])
	case *kind.Contains:
		return "has none of the items that one of them must be"
	case *kind.MinContains:
		return fmt.Sprintf("must have at least %d of certain items, not %d", k.Want, len(k.Got))
	case *kind.MaxContains:
		return fmt.Sprintf("must have at most %d of certain items, not %d", k.Want, len(k.Got))
	case *kind.Minimum:
		return fmt.Sprintf("must be at least %s, not %s", rat(k.Want), rat(k.Got))
	case *kind.Maximum:
		return fmt.Sprintf("must be at most %s, not %s", rat(k.Want), rat(k.Got))
	case *kind.ExclusiveMinimum:
		return fmt.Sprintf("must be more than %s, not %s", rat(k.Want), rat(k.Got))
	case *kind.ExclusiveMaximum:
		return fmt.Sprintf("must be less than %s, not %s", rat(k.Want), rat(k.Got))
	case *kind.MultipleOf:
		return fmt.Sprintf("must be a multiple of %s, not %s", rat(k.Want), rat(k.Got))
	}
	return ""
}

func causes(e *jsonschema.ValidationError) []fault {
	var out []fault
	for _, c := range e.Causes {
		out = append(out, faults(c)...)
	}
	return out
}

// none says that a value fits none of several forms: which types they want, where that is all, else what is
// wrong by the nearest one, which is the one with the fewest faults.
func none(e *jsonschema.ValidationError, path string) []fault {
	var types []string
	var nearest []fault
	got := ""
	for _, c := range e.Causes {
		list := tidy(faults(c))
		if len(list) > 0 && (nearest == nil || len(list) < len(nearest)) {
			nearest = list
		}
		if k, ok := c.ErrorKind.(*kind.Type); ok && pointer(c.InstanceLocation) == path {
			types, got = append(types, k.Want...), k.Got
		}
	}
	if len(e.Causes) > 0 && len(types) >= len(e.Causes) {
		return []fault{{path, fmt.Sprintf("must be %s, not %s", strings.Join(types, " or "), got)}}
	}
	return []fault{{path, fmt.Sprintf("fits none of the %d forms it may have; by the nearest, %s", len(e.Causes),
		text.Clip(sentence(nearest), maxText/2))}}
}

func badPattern(err error) string {
	if errors.Is(err, errPatterns) {
		return "is refused: " + err.Error()
	}
	return fmt.Sprintf("is not a pattern of RE2, which knows no look-around and no back references: %s",
		text.Clip(err.Error(), 3*maxValue))
}

// named lists values.
func named(list []any) string {
	var parts []string
	for _, v := range list[:min(len(list), maxNamed)] {
		parts = append(parts, show(v))
	}
	if more := len(list) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, ", ")
}

// show is a value as JSON, clipped.
func show(v any) string {
	if s, ok := v.(string); ok {
		return quote(s)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "what it is"
	}
	return text.Clip(string(b), maxValue)
}

// quote is a foreign string, clipped, with what is not printable escaped.
func quote(s string) string { return fmt.Sprintf("%q", text.Clip(s, maxValue)) }

func rat(r *big.Rat) string {
	return text.Clip(strings.TrimSuffix(strings.TrimRight(r.FloatString(12), "0"), "."), maxValue)
}

// pointer is a JSON pointer. A token that is not printable is shown escaped.
func pointer(tokens []string) string {
	var b strings.Builder
	for _, t := range tokens {
		t = strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f || r == utf8.RuneError {
				return '?'
			}
			return r
		}, text.Clip(t, maxValue))
		b.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(t))
	}
	return b.String()
}
