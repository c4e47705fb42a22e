package guest

import (
	"encoding/json"
	"strings"
	"testing"
)

// If this fails, what a guest rehearses is not what a host sends: a field was renamed, and the first call of each sandbox pays for it again.
func TestRehearsalIsOfMessages(t *testing.T) {
	read := func(text string, into any) error {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		return d.Decode(into)
	}
	for _, r := range rehearsal() {
		if err := read(r.text, r.into); err != nil {
			t.Errorf("%s is no %T: %v", r.text, r.into, err)
		}
	}
	if err := read(`{"nothing":1}`, new(Start)); err == nil {
		t.Error("a field that there is not was read")
	}
}
