package native

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Broken if a range of uids that a process was killed over is nobody's until the host is started again, or one that is in use is given away.
func TestReservationsOfTheKilled(t *testing.T) {
	pool, err := newUIDPool(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mine := owner{dir: t.TempDir(), group: "sbx_1"}
	base, err := pool.reserve(mine)
	if err != nil {
		t.Fatal(err)
	}
	if o, err := pool.read(base); err != nil || o != mine {
		t.Errorf("the reservation is of %+v, %v", o, err)
	}
	old := time.Now().Add(-2 * unownedFor)
	if err := os.Chtimes(pool.file(base), old, old); err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]time.Time{"131072": old, "no number": old, "196608": time.Now()} {
		path := filepath.Join(pool.dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	p := &Provider{uids: pool, log: slog.New(slog.DiscardHandler)}
	if err := p.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{filepath.Base(pool.file(base)): true, "196608": true}
	entries, err := os.ReadDir(pool.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !want[e.Name()] {
			t.Errorf("%s is left", e.Name())
		}
		delete(want, e.Name())
	}
	for name := range want {
		t.Errorf("%s is gone", name)
	}
}
