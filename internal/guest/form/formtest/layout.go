package formtest

import (
	"reflect"
	"strings"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// Layout returns how a message is written down, in one line: its fields in order, by the names and types that they
// have in Go, and those of what is in them.
func Layout(m form.Message) string {
	v := reflect.ValueOf(m).Elem()
	names := map[any]string{}
	nameFields(v, "", names)
	var fields []string
	for _, f := range m.Fields() {
		p := reflect.ValueOf(f)
		wrapper, nested := "", ""
		if p.Kind() == reflect.Struct { // a form.Field: it has the pointer
			wrapper, _, _ = strings.Cut(p.Type().Name(), "[")
			wrapper += " "
			p = p.Field(0)
			nested = elements(p.Type())
		}
		name, ok := names[fieldKey(p)]
		if !ok {
			name = "(not of the struct)"
		}
		fields = append(fields, name+" "+wrapper+p.Type().Elem().String()+nested)
	}
	return v.Type().String() + ": " + strings.Join(fields, ", ")
}

// fieldKey tells pointers apart: a struct and its first field are at the same address.
func fieldKey(p reflect.Value) any {
	return [2]any{p.Pointer(), p.Type().String()}
}

// nameFields notes the fields of a struct, and of those embedded in it.
func nameFields(v reflect.Value, prefix string, names map[any]string) {
	for i := range v.NumField() {
		f, name := v.Field(i), prefix+v.Type().Field(i).Name
		names[fieldKey(f.Addr())] = name
		if f.Kind() == reflect.Struct {
			nameFields(f, name+".", names)
		}
	}
}

// elements is the layout of the message that a field holds, if it holds any: p is the type of a pointer to a slice
// or to a pointer.
func elements(p reflect.Type) string {
	if k := p.Elem().Kind(); k != reflect.Slice && k != reflect.Pointer {
		return ""
	}
	m, ok := reflect.New(p.Elem().Elem()).Interface().(form.Message)
	if !ok {
		return ""
	}
	return " {" + Layout(m) + "}"
}
