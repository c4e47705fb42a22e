package api

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/outboard-dev/outboard/internal/control"
)

// Fails if splitting an object gives other members than decoding it: a client's field would be lost, or half of
// one read.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{`{}`, ` { "a" : 1 , "b":"x,}\"" ,"c":[{"d":"]"}],"e":null,"\u0061a":true}`,
		`{"a":{"b":{}},"c":-1.5e3}`, "{\"a\"\n:\t\"\\\\\"}", `[]`, `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if control.CheckJSON(b) != nil {
			return
		}
		got, err := members("", b)
		var want map[string]json.RawMessage
		if json.Unmarshal(b, &want) != nil || want == nil {
			if err == nil {
				t.Fatalf("%q is taken for an object: %q", b, got)
			}
			return
		}
		if err != nil {
			return // a name twice
		}
		if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
			t.Fatalf("%q: %q, want %q", b, got, want)
		}
		for k := range want {
			if string(got[k]) != string(want[k]) {
				t.Fatalf("%q: %s is %q, want %q", b, k, got[k], want[k])
			}
		}
	})
}
