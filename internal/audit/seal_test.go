package audit

import (
	"bytes"
	"testing"
	"time"
)

// If this fails, the signature of an export can be changed without that showing, is believed of another key, or
// a checkpoint of the audit passes for one: whoever may see checkpoints could then forge exports.
func TestSeal(t *testing.T) {
	now := func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }
	w, err := OpenWitness(t.TempDir(), nil, now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenWitness(t.TempDir(), nil, now)
	if err != nil {
		t.Fatal(err)
	}
	tail, err := w.Seal(Seal{Session: "sesn_x", Seq: 7, SHA256: "abc"})
	if err != nil || !Sealed(tail) {
		t.Fatalf("%q, %v", tail, err)
	}
	keys := []string{other.Public(), w.Public(), w.Public()}
	s, key, err := OpenSeal(tail, keys)
	if err != nil || key != w.Public() || s.Session != "sesn_x" || s.Seq != 7 || s.SHA256 != "abc" ||
		!s.At.Equal(now()) {
		t.Errorf("%+v by %s, %v", s, key, err)
	}
	if s, key, err := OpenSeal(tail, keys[:1]); err != nil || key != "" || s.Signer == "" {
		t.Errorf("without the key: %+v by %q, %v", s, key, err)
	}
	for i := range tail {
		for bit := range 8 {
			changed := bytes.Clone(tail)
			changed[i] ^= 1 << bit
			if !Sealed(changed) {
				continue
			}
			if _, key, err := OpenSeal(changed, keys); err == nil && key != "" {
				t.Errorf("byte %d, bit %d: believed", i, bit)
			}
		}
	}
	if _, _, err := OpenSeal(tail, []string{"nonsense"}); err == nil {
		t.Error("a key that is none")
	}
	if _, err := Open(w.Public(), bytes.TrimRight(tail[8:], "\x00")); err == nil {
		t.Error("a seal passes for a checkpoint")
	}
	var log memory
	log.add(t, records(3)...)
	if _, err := w.Update(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	note, err := w.Checkpoint()
	if err != nil || len(note) == 0 {
		t.Fatalf("no checkpoint: %v", err)
	}
	forged := bytes.Clone(tail)
	clear(forged[8:])
	copy(forged[8:], note)
	if _, _, err := OpenSeal(forged, keys); err == nil {
		t.Error("a checkpoint passes for a seal")
	}
}
