package config

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// check compares a document with the type it is to fill, so that decoding cannot fail, and so that messages name
// keys of the file instead of types of the program. No message quotes a value, which may be a key in the wrong
// place.
func check(doc *yaml.Node, target any) error {
	return checkNode(doc.Content[0], reflect.TypeOf(target).Elem(), "")
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// forms is a type that is text in YAML, or a mapping of the keys of a struct.
type forms interface {
	YAMLForms() (mapping any)
}

func checkNode(n *yaml.Node, t reflect.Type, path string) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return at(n, "anchors and aliases are not allowed")
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil // "key:" with nothing behind it leaves the default
	}
	if f, ok := reflect.Zero(t).Interface().(forms); ok && n.Kind == yaml.MappingNode {
		mapping := f.YAMLForms()
		return checkStruct(n, reflect.TypeOf(mapping), path)
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == durationType:
		if d, err := time.ParseDuration(n.Value); n.Kind != yaml.ScalarNode || err != nil || d < 0 {
			return at(n, "%s needs a duration such as 30s or 5m", path)
		}
		return nil
	case reflect.PointerTo(t).Implements(textType):
		return checkScalar(n, path, "text")
	}
	switch t.Kind() {
	case reflect.Struct:
		return checkStruct(n, t, path)
	case reflect.Map:
		for i := 1; i < len(n.Content); i += 2 { // an entry has no default
			if v := n.Content[i]; n.Kind == yaml.MappingNode && v.ShortTag() == "!!null" {
				return at(v, "%s.%s needs a value", path, n.Content[i-1].Value)
			}
		}
		return checkMap(n, path, func(k *yaml.Node) (reflect.Type, error) { return t.Elem(), nil })
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			return at(n, "%s needs a list", path)
		}
		for i, c := range n.Content {
			if err := checkNode(c, t.Elem(), path+"["+strconv.Itoa(i)+"]"); err != nil {
				return err
			}
		}
		return nil
	case reflect.Int, reflect.Int64:
		if err := checkScalar(n, path, "a whole number"); err != nil {
			return err
		}
		if err := n.Decode(reflect.New(t).Interface()); n.ShortTag() != "!!int" || err != nil {
			return at(n, "%s needs a whole number", path)
		}
		return nil
	}
	return checkScalar(n, path, "text")
}

func checkScalar(n *yaml.Node, path, what string) error {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!binary" {
		return at(n, "%s needs %s", path, what)
	}
	return nil
}

func checkStruct(n *yaml.Node, t reflect.Type, path string) error {
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name != "" && name != "-" {
			fields[name] = f.Type
		}
	}
	return checkMap(n, path, func(k *yaml.Node) (reflect.Type, error) {
		ft, ok := fields[k.Value]
		if !ok {
			where := path
			if where == "" {
				where = "the configuration"
			}
			return nil, at(k, "%s has no key %q; it has %s", where, k.Value,
				strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		return ft, nil
	})
}

// checkMap checks a mapping whose values have the types that typeOf gives for their keys.
func checkMap(n *yaml.Node, path string, typeOf func(k *yaml.Node) (reflect.Type, error)) error {
	if n.Kind != yaml.MappingNode {
		if path == "" {
			return at(n, "the configuration must be a mapping of keys to values")
		}
		return at(n, "%s needs a mapping of keys to values", path)
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.ShortTag() == "!!merge" || k.Anchor != "" {
			return at(k, "a key must be plain text")
		}
		t, err := typeOf(k)
		if err != nil {
			return err
		}
		if seen[k.Value] {
			return at(k, "key %q is given twice", k.Value)
		}
		seen[k.Value] = true
		if err := checkNode(v, t, strings.TrimPrefix(path+"."+k.Value, ".")); err != nil {
			return err
		}
	}
	return nil
}

func at(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: %s", n.Line, fmt.Sprintf(format, args...))
}
