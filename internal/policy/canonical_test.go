package policy

import "testing"

// If this fails, an input can show one value to a person and another to the client that runs it, or an honest
// one is refused.
func TestRepeated(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{}`, ""}, {`[]`, ""}, {`"a"`, ""}, {``, ""}, {`{"a":`, ""},
		{`{"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}],"d":"a"}`, ""},
		{`{"a":"b","b":"a","A":1}`, ""},
		{`{"a":["a","a",{"x":"x"}],"x":[]}`, ""},
		{`{"a":{},"b":[],"a":null}`, "a"},
		{`{"a":1,"\u0061":2}`, "a"},
		{`[{"x":{"a":[{"b":1,"b":1}]}}]`, "b"},
		{`{"a":{"b":1},"c":{"d":[[[{"e":{}}]]]},"c":2}`, "c"},
	} {
		if got := Repeated([]byte(c.text)); got != c.want {
			t.Errorf("%s: %q, want %q", c.text, got, c.want)
		}
	}
}
