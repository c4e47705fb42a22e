package boot

import (
	"reflect"
	"testing"
)

// fill gives everything below v a value of its own.
func fill(v reflect.Value, next *int) {
	*next++
	switch v.Kind() {
	case reflect.String:
		v.SetString(string(rune('a' + *next%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*next) << 7)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
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
			if v.Type().Field(i).Tag.Get("json") != "-" {
				fill(v.Field(i), next)
			}
		}
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

// If this fails, a sandbox starts with a part of its configuration missing: a limit, a filter, a path that is to be hidden.
func TestMessagesAreWhole(t *testing.T) {
	for _, m := range []Message{new(Config), new(Identity)} {
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
		if err := Decode(Encode(m), got); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("of %#v there is %#v: %v", m, got, err)
		}
		next := 0
		fill(reflect.ValueOf(m).Elem(), &next)
		if err := Decode(Encode(m), got); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("of %#v there is %#v: %v", m, got, err)
		}
	}
}

// If this fails, a guest takes a message of another version, or one that is cut off, for a configuration.
func TestMessagesThatAreNone(t *testing.T) {
	c, next := new(Config), 0
	fill(reflect.ValueOf(c).Elem(), &next)
	whole := Encode(c)
	for n := range whole {
		if Decode(whole[:n], new(Config)) == nil {
			t.Errorf("the first %d of %d bytes are taken", n, len(whole))
		}
	}
	if Decode(append(whole, 0), new(Config)) == nil {
		t.Error("a message with something after it is taken")
	}
	if whole[0]++; Decode(whole, new(Config)) == nil {
		t.Error("a message of another version is taken")
	}
}
