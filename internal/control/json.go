package control

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strconv"
)

// WhyJSON says in plain words why JSON could not be decoded: for whoever wrote it, in whatever language.
func WhyJSON(err error) string {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		s := "expected " + jsonType(t.Type) + ", got " + t.Value
		if t.Field != "" {
			s = t.Field + ": " + s
		}
		return s
	}
	if errors.Is(err, io.EOF) {
		return "it is empty, where JSON is expected"
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "the JSON ends too early"
	}
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		if s.Error() == "unexpected end of JSON input" {
			return "the JSON ends too early"
		}
		return "malformed JSON at byte " + strconv.FormatInt(s.Offset, 10) + ": " + s.Error()
	}
	return err.Error()
}

func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "a boolean"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "an integer"
}
