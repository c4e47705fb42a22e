package schema

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// meter counts the work of one check. The validator knows no limit, so it is told through the one thing it asks
// of every schema before it goes deeper: the format. Formats are remarks here, so their place is free.
type meter struct{ left int }

// spent is what a check that has used up its work panics with: there is no other way out of the validator's recursion.
type spent struct{}

func (m *meter) spend(n int) {
	if m.left -= n; m.left < 0 {
		panic(spent{})
	}
}

// fit puts the meter into a schema and all that it leads to, and refuses what can recurse without end.
func (m *meter) fit(root *jsonschema.Schema) error {
	seen := map[*jsonschema.Schema]bool{root: true}
	for todo := []*jsonschema.Schema{root}; len(todo) > 0; {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if s.DynamicRef != nil || s.RecursiveRef != nil {
			return fmt.Errorf("%s: $dynamicRef and $recursiveRef are not supported; use $ref",
				where(inside(s.Location)))
		}
		m.watch(s)
		for c := range inner(s) {
			if !seen[c] {
				seen[c] = true
				todo = append(todo, c)
			}
		}
	}
	lengths := map[*jsonschema.Schema]int{}
	for _, s := range slices.SortedFunc(maps.Keys(seen),
		func(a, b *jsonschema.Schema) int { return cmp.Compare(a.Location, b.Location) }) {
		if _, err := chain(s, lengths); err != nil {
			return err
		}
	}
	return nil
}

// chain is how many schemas are asked about one and the same value, one inside the other, beginning with s.
func chain(s *jsonschema.Schema, known map[*jsonschema.Schema]int) (int, error) {
	n, ok := known[s]
	if n < 0 {
		return 0, fmt.Errorf("%s: it refers to itself without end", where(inside(s.Location)))
	}
	if ok {
		return n, nil
	}
	known[s] = -1 // under way
	n = 0
	for c := range beside(s) {
		more, err := chain(c, known)
		if err != nil {
			return 0, err
		}
		n = max(n, more)
	}
	if n++; n > maxChain {
		return 0, fmt.Errorf("more than %d schemas follow one from another by $ref, allOf and the like", maxChain)
	}
	known[s] = n
	return n, nil
}

// watch makes a schema count what it is asked.
func (m *meter) watch(s *jsonschema.Schema) {
	same := 1
	for c := range beside(s) {
		same += price(c)
	}
	s.Format = &jsonschema.Format{Name: "work", Validate: func(v any) error {
		m.spend(same)
		switch v := v.(type) {
		case map[string]any:
			m.spend(ofMembers(s, v))
		case []any:
			m.spend(ofItems(s, v))
		case string:
			m.spend(len(v) / 256)
		}
		return nil
	}}
}

// price is what it takes to ask a schema before it counts by itself: the comparisons with its enum and const.
func price(s *jsonschema.Schema) int {
	n := 1
	if s.Enum != nil {
		n += values(s.Enum.Values) / 2
	}
	if s.Const != nil {
		n += values(*s.Const) / 2
	}
	return n
}

// values is how many values are in one, itself included.
func values(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, m := range v {
			n += values(m)
		}
	case []any:
		for _, m := range v {
			n += values(m)
		}
	}
	return n
}

func ofMembers(s *jsonschema.Schema, v map[string]any) int {
	each := 1
	for c := range every(s.PropertyNames, s.UnevaluatedProperties) {
		each += price(c)
	}
	if c, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
		each += price(c)
	}
	for _, c := range s.PatternProperties {
		each += price(c)
	}
	n := each * len(v)
	for k := range v {
		if c := s.Properties[k]; c != nil {
			n += price(c)
		}
	}
	return n
}

func ofItems(s *jsonschema.Schema, v []any) int {
	each := 1
	for c := range every(s.Items2020, s.Contains, s.UnevaluatedItems) {
		each += price(c)
	}
	for _, a := range []any{s.Items, s.AdditionalItems} {
		if c, ok := a.(*jsonschema.Schema); ok {
			each += price(c)
		}
	}
	n := each * len(v)
	fixed, _ := s.Items.([]*jsonschema.Schema)
	for _, c := range slices.Concat(s.PrefixItems, fixed) {
		n += price(c)
	}
	if s.UniqueItems {
		n += 20 * values(v)
	}
	return n
}

// every yields those that are not nil.
func every(list ...*jsonschema.Schema) iter.Seq[*jsonschema.Schema] {
	return func(yield func(*jsonschema.Schema) bool) {
		for _, s := range list {
			if s != nil && !yield(s) {
				return
			}
		}
	}
}

// beside yields the schemas that are asked about the same value as s.
func beside(s *jsonschema.Schema) iter.Seq[*jsonschema.Schema] {
	list := slices.Concat([]*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else}, s.AllOf, s.AnyOf, s.OneOf,
		slices.Collect(maps.Values(s.DependentSchemas)))
	for _, d := range s.Dependencies {
		if c, ok := d.(*jsonschema.Schema); ok {
			list = append(list, c)
		}
	}
	return every(list...)
}

// inner yields every schema that s leads to.
func inner(s *jsonschema.Schema) iter.Seq[*jsonschema.Schema] {
	list := slices.Concat(slices.Collect(beside(s)), s.PrefixItems, slices.Collect(maps.Values(s.Properties)),
		slices.Collect(maps.Values(s.PatternProperties)),
		[]*jsonschema.Schema{s.PropertyNames, s.UnevaluatedProperties, s.Contains, s.Items2020, s.UnevaluatedItems,
			s.ContentSchema})
	for _, a := range []any{s.AdditionalProperties, s.Items, s.AdditionalItems} {
		switch a := a.(type) {
		case *jsonschema.Schema:
			list = append(list, a)
		case []*jsonschema.Schema:
			list = append(list, a...)
		}
	}
	return every(list...)
}
