// Package formtest checks in tests that messages have all of their fields. Nothing that ships
// imports it.
package formtest

import (
	"reflect"
	"testing"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// Whole fails the test when a message that was written and read is not what it was: empty, or with a value in
// every field that is meant to be sent. Those that are not have the tag `form:"-"` or `json:"-"`.
func Whole(t *testing.T, messages ...form.Message) {
	t.Helper()
	for _, m := range messages {
		for _, full := range []bool{false, true} {
			if full {
				Fill(m)
			}
			for name, decode := range map[string]func([]byte, form.Message) error{"Decode": form.Decode,
				"DecodeText": form.DecodeText} {
				got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(form.Message)
				if err := decode(form.Encode(m), got); err != nil || !reflect.DeepEqual(got, m) {
					t.Errorf("%s: of %#v there is %#v: %v", name, m, got, err)
				}
			}
		}
	}
}

// Fill gives every field that is meant to be sent a value of its own.
func Fill(m form.Message) {
	next := 0
	fill(reflect.ValueOf(m).Elem(), &next)
}

func fill(v reflect.Value, next *int) {
	*next++
	switch v.Kind() {
	case reflect.String:
		v.SetString(string(rune('a' + *next%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*next) << 7)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*next))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), next)
		fill(v.Index(1), next)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, next)
		fill(value, next)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), next)
	case reflect.Struct:
		for i := range v.NumField() {
			if tag := v.Type().Field(i).Tag; tag.Get("json") != "-" && tag.Get("form") != "-" {
				fill(v.Field(i), next)
			}
		}
	default:
		panic("a field of kind " + v.Kind().String())
	}
}
