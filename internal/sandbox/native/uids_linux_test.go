package native

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Broken if a range of uids whose sandbox's directory is gone is nobody's until the host is started again, or
// one that is in use is given away.
func TestReservationsOfTheGone(t *testing.T) {
	pool, err := newUIDPool(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mine, gone := owner{dir: t.TempDir(), group: "sbx_1"}, owner{dir: filepath.Join(t.TempDir(), "gone"),
		group: "sbx_2"}
	kept, err := pool.reserve(mine)
	if err != nil {
		t.Fatal(err)
	}
	swept, err := pool.reserve(gone)
	if err != nil {
		t.Fatal(err)
	}
	if owners, err := pool.all(); err != nil || len(owners) != 2 || owners[kept] != mine || owners[swept] != gone {
		t.Errorf("control: the owners are %v, %v", owners, err)
	}
	p := &Provider{uids: pool, cgroups: cgroups{version: 2, root: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	if err := p.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if owners, err := pool.all(); err != nil || len(owners) != 1 || owners[kept] != mine {
		t.Errorf("the owners are %v, %v", owners, err)
	}
	if err := pool.release(kept, gone.dir); err != nil {
		t.Fatal(err)
	}
	if owners, err := pool.all(); err != nil || owners[kept] != mine {
		t.Errorf("a range was given back for a directory that did not have it: %v, %v", owners, err)
	}
	if err := pool.release(kept, mine.dir); err != nil {
		t.Fatal(err)
	}
	if owners, err := pool.all(); err != nil || len(owners) != 0 {
		t.Errorf("the owners are %v, %v", owners, err)
	}
}

// Broken if two processes are given one range, if they can run out while there are any, or if a name that does
// not fit becomes another's.
func TestReservationsAreExclusive(t *testing.T) {
	dir := t.TempDir()
	one, err := newUIDPool(dir)
	if err != nil {
		t.Fatal(err)
	}
	two, err := newUIDPool(dir)
	if err != nil {
		t.Fatal(err)
	}
	const each = firstRanges * 3 / 4 // more together than are drawn among at first
	taken := make(chan map[uint32]bool)
	for _, pool := range []*uidPool{one, two} {
		go func() {
			got := map[uint32]bool{}
			defer func() { taken <- got }()
			for range each {
				base, err := pool.reserve(owner{dir: dir, group: "g"})
				if err != nil {
					t.Error(err)
					return
				}
				got[base] = true
			}
		}()
	}
	a, b := <-taken, <-taken
	if len(a) != each || len(b) != each {
		t.Errorf("%d and %d ranges, not %d", len(a), len(b), each)
	}
	for base := range a {
		if b[base] {
			t.Errorf("range %d was given twice", base)
		}
	}
	if _, err := one.reserve(owner{dir: "/" + strings.Repeat("d", slotSize)}); err == nil ||
		!strings.Contains(err.Error(), "too many") {
		t.Errorf("a name that does not fit: %v", err)
	}
	if owners, err := two.all(); err != nil || len(owners) != 2*each {
		t.Errorf("%d owners, %v", len(owners), err)
	}
	table := filepath.Join(dir, uidTable)
	fi, err := os.Stat(table)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(table, fi.Size()-1); err != nil {
		t.Fatal(err)
	}
	if owners, err := two.all(); err != nil || len(owners) != 2*each {
		t.Errorf("of a table that is cut short: %d owners, %v", len(owners), err)
	}
	one.taken = [][2]uint64{{0, 1 << 32}}
	if base, err := one.reserve(owner{dir: dir}); err == nil {
		t.Errorf("range %d was given where all are taken", base)
	}
}
