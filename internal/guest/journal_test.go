//go:build linux

package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func replayed(t *testing.T, dir string) (*journal, []string) {
	t.Helper()
	var keys []string
	j, err := openJournal(dir, false, func(r record) { keys = append(keys, r.Type+" "+r.Key) })
	if err != nil {
		t.Fatal(err)
	}
	return j, keys
}

func put(t *testing.T, j *journal, r record) {
	t.Helper()
	off, err := j.write(r, 0)
	if err == nil {
		err = j.sync(off)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// If this fails, a crash in the middle of a write loses older receipts, or brings ghosts to life.
func TestJournalTorn(t *testing.T) {
	dir := t.TempDir()
	j, _ := replayed(t, dir)
	for i := range 3 {
		put(t, j, record{Type: recAccepted, Key: fmt.Sprint(i)})
	}
	end := j.off
	// The last record is torn; behind it lies the image of a valid one, as an older, longer write might have left it.
	put(t, j, record{Type: recAccepted, Key: "torn", Done: &outcome{Inline: bytes.Repeat([]byte("x"), 500)}})
	ghost, _ := encodeRecord(record{Type: recDone, Key: "ghost"})
	j.close()
	path := filepath.Join(dir, journalName)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[end+20] ^= 0xff
	next, _ := encodeRecord(record{Type: recAccepted, Key: "next"})
	copy(b[int(end)+len(next):], ghost)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	j, keys := replayed(t, dir)
	if want := []string{"accepted 0", "accepted 1", "accepted 2"}; !slices.Equal(keys, want) {
		t.Errorf("after a torn write: %q, want %q", keys, want)
	}
	put(t, j, record{Type: recAccepted, Key: "next"})
	j.close()
	j, keys = replayed(t, dir)
	defer j.close()
	if want := []string{"accepted 0", "accepted 1", "accepted 2", "accepted next"}; !slices.Equal(keys, want) {
		t.Errorf("after the next write: %q, want %q", keys, want)
	}
}

// If this fails, a record of which a crash left only a part is read as a receipt that nobody was told of.
func TestJournalChecksum(t *testing.T) {
	good, err := encodeRecord(record{Type: recDone, Key: "k", Done: &outcome{Cause: causeExited,
		Inline: bytes.Repeat([]byte("x"), 300)}})
	if err != nil {
		t.Fatal(err)
	}
	if rec, n, err := readRecord(bytes.NewReader(good)); err != nil || n != int64(len(good)) || rec.Key != "k" {
		t.Fatalf("a whole one: %+v, %d bytes, %v", rec, n, err)
	}
	for at := 4; at < len(good); at++ {
		flipped, cut := bytes.Clone(good), bytes.Clone(good)
		flipped[at] ^= 1
		clear(cut[at:])
		for what, b := range map[string][]byte{"flipped": flipped, "zeros from there on": cut} {
			// where it had zeros, it is whole
			if rec, n, err := readRecord(bytes.NewReader(b)); err != nil || n != 0 && !bytes.Equal(b, good) {
				t.Errorf("byte %d %s: %+v, %d bytes, %v", at, what, rec, n, err)
			}
		}
	}
}

// If this fails, a journal of any content keeps the guest from starting, or crashes it.
func FuzzJournal(f *testing.F) {
	good, _ := encodeRecord(record{Type: recAccepted, Key: "k", Digest: "d"})
	f.Add(good)
	done, _ := encodeRecord(record{Type: recDone, Key: "k", Done: &outcome{Cause: causeExited, ExitCode: new(int),
		Inline: []byte("out")}})
	f.Add(append(bytes.Clone(good), done...))
	f.Add(append(good, good[:len(good)-1]...))
	f.Add(binary.BigEndian.AppendUint32(nil, maxRecord+1))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, journalName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		table, err := openTable(t.Context(), dir, false, dir, "g", nil)
		if err != nil {
			t.Fatal(err)
		}
		put(t, table.journal, record{Type: recAccepted, Key: "after"})
		table.journal.close()
		j, keys := replayed(t, dir)
		defer j.close()
		if len(keys) == 0 || keys[len(keys)-1] != "accepted after" {
			t.Errorf("the record after recovery is lost: %q", keys)
		}
	})
}

// If this fails, a guest that dies and starts again on the same machine has forgotten what it ran.
func TestJournalVolatile(t *testing.T) {
	dir := t.TempDir()
	j, err := openJournal(dir, true, func(record) {})
	if err != nil {
		t.Fatal(err)
	}
	defer j.close() // after the second one reads: the first guest did not end in good order
	for i := range 100 {
		put(t, j, record{Type: recAccepted, Key: fmt.Sprint(i), Digest: strings.Repeat("x", 8000)})
	}
	again, keys := replayed(t, dir)
	defer again.close()
	if len(keys) != 100 || keys[99] != "accepted 99" {
		t.Errorf("%d of 100 records: %q", len(keys), keys)
	}
}

// If this fails, a journal that the host made ahead is not used, or one that was written to is taken for it.
func TestJournalMade(t *testing.T) {
	dir := t.TempDir()
	if err := MakeJournal(dir, os.Getuid()); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Join(dir, journalName))
	if err != nil {
		t.Fatal(err)
	}
	for round, want := range []int{0, 1, 2} {
		var keys []string
		j, err := openJournal(dir, true, func(r record) { keys = append(keys, r.Key) })
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) != want {
			t.Errorf("round %d: %q", round, keys)
		}
		put(t, j, record{Type: recAccepted, Key: fmt.Sprint(round)})
		j.close()
	}
	after, err := os.Stat(filepath.Join(dir, journalName))
	if err != nil || !os.SameFile(before, after) || after.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", after, err)
	}
	if err := MakeJournal(dir, os.Getuid()); err == nil {
		t.Error("a journal was made over another")
	}
}

// If this fails, concurrent receipts each pay for a sync, or are answered before one.
func TestJournalConcurrent(t *testing.T) {
	dir := t.TempDir()
	j, _ := replayed(t, dir)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				off, err := j.write(record{Type: recAccepted, Key: fmt.Sprintf("%d/%d", g, i),
					Digest: string(make([]byte, 100))}, 0)
				if err == nil {
					err = j.sync(off)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	j.close()
	j, keys := replayed(t, dir)
	defer j.close()
	slices.Sort(keys)
	if n := len(slices.Compact(keys)); n != 1600 {
		t.Errorf("%d of 1600 records", n)
	}
	if _, err := j.write(record{Type: recAccepted, Key: string(make([]byte, maxRecord))}, 0); err == nil {
		t.Error("a record beyond the limit was written")
	}
}

// If this fails, a long session's receipts grow without end, or compaction forgets one.
func TestJournalCompaction(t *testing.T) {
	dir := t.TempDir()
	table, err := openTable(t.Context(), dir, false, dir, "g", nil)
	if err != nil {
		t.Fatal(err)
	}
	table.max = 7
	code := 3
	for i, c := range []*call{
		{state: StateAccepted}, {state: StateKilled}, {state: StateDone,
			res: &outcome{Cause: causeExited, ExitCode: &code}},
		{state: StateDone, acked: true, res: &outcome{Cause: causeTimeout}},
	} {
		c.key, c.digest = fmt.Sprint("k", i), "d"
		table.calls[c.key] = c
	}
	for range 5000 {
		put(t, table.journal, record{Type: recDone, Key: "k2", Done: &outcome{Inline: make([]byte, 2000)}})
	}
	if !table.journal.large() {
		t.Fatal("the journal is not large yet")
	}
	if err := table.compact(); err != nil {
		t.Fatal(err)
	}
	put(t, table.journal, record{Type: recAccepted, Key: "after", Digest: "d"})
	table.journal.close()
	again, err := openTable(t.Context(), dir, false, dir, "g", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.journal.close()
	if again.journal.off > 10_000 || again.max != 7 || len(again.calls) != 5 {
		t.Errorf("%d bytes, epoch %d, %d calls", again.journal.off, again.max, len(again.calls))
	}
	k := again.calls
	if k["k0"].state != StateAccepted || k["k1"].state != StateKilled || *k["k2"].res.ExitCode != 3 || !k["k3"].acked ||
		k["after"] == nil {
		t.Errorf("%+v", k)
	}
}

// If this fails, a full disk lets a call run without a receipt, or stops the guest for good.
func TestJournalFullDisk(t *testing.T) {
	dir := t.TempDir()
	table, err := openTable(t.Context(), dir, false, dir, "g", nil)
	if err != nil {
		t.Fatal(err)
	}
	f := table.journal.f
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	table.journal.f, table.journal.size = full, table.journal.off // every extension fails with ENOSPC
	s := Start{Key: "k", Epoch: 1, Generation: "g"}
	if _, err := table.start(t.Context(), s); code(err) != Internal {
		t.Errorf("Start on a full disk: %v", err)
	}
	if len(table.calls) != 0 || table.live != 0 {
		t.Errorf("a call without a receipt is known: %+v", table.calls)
	}
	full.Close()
	table.journal.f = f
	table.prepare = func(Start, *progress) func(context.Context, <-chan struct{}) outcome {
		return func(context.Context, <-chan struct{}) outcome { return outcome{Cause: causeExited} }
	}
	if _, err := table.start(t.Context(), s); err != nil {
		t.Errorf("after there was room again: %v", err)
	}
	table.wg.Wait()
	table.journal.close()
}
