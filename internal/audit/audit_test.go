package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/outboard-dev/outboard"
)

// memory is a log that a test can do anything to.
type memory []Entry

func (m *memory) add(t testing.TB, records ...outboard.AuditRecord) {
	t.Helper()
	var tree Tree
	for _, e := range *m {
		tree.Add(tlog.Hash(e.Hashes[:HashSize]))
	}
	for _, r := range records {
		e := Entry{AuditRecord: r, Proof: Salt()}
		e.Num = tree.Size() + 1
		leaf, err := Leaf(&e.AuditRecord, e.Proof)
		if err != nil {
			t.Fatal(err)
		}
		e.Hashes = tree.Add(leaf)
		*m = append(*m, e)
	}
}

func records(n int) []outboard.AuditRecord {
	out := make([]outboard.AuditRecord, n)
	for i := range out {
		out[i] = outboard.AuditRecord{At: time.UnixMicro(int64(1000 + i)), Org: "o", Actor: fmt.Sprint("sesn_", i%3),
			Action: "http.request",
			Resource: fmt.Sprint("GET https://a.test/",
				i), Decision: outboard.Allowed, Rule: "r", Detail: outboard.Raw(`{"n":1}`)}
	}
	return out
}

// rebuild gives a log hashes that fit what it says now, as somebody would who can write to the whole database.
func (m *memory) rebuild(t testing.TB) {
	t.Helper()
	list := *m
	*m = nil
	for _, e := range list {
		m.add(t, e.AuditRecord)
		(*m)[len(*m)-1].Proof = e.Proof
		leaf, err := Leaf(&(*m)[len(*m)-1].AuditRecord, e.Proof)
		if err != nil {
			t.Fatal(err)
		}
		var tree Tree
		for _, e := range (*m)[:len(*m)-1] {
			tree.Add(tlog.Hash(e.Hashes[:HashSize]))
		}
		(*m)[len(*m)-1].Hashes = tree.Add(leaf)
	}
}

func (m memory) clone() memory {
	out := slices.Clone(m)
	for i := range out {
		out[i].Proof, out[i].Hashes = bytes.Clone(out[i].Proof), bytes.Clone(out[i].Hashes)
	}
	return out
}

func (m memory) all() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for _, e := range m {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// AuditSize implements Log.
func (m memory) AuditSize(context.Context) (int64, error) { return int64(len(m)), nil }

// AuditHashes implements Log.
func (m memory) AuditHashes(_ context.Context, after int64, limit int) ([][]byte, error) {
	var out [][]byte
	for _, e := range m[min(after, int64(len(m))):] {
		if len(out) < limit {
			out = append(out, e.Hashes)
		}
	}
	return out, nil
}

func open(t testing.TB, dir string) *Witness {
	t.Helper()
	w, err := OpenWitness(dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func update(t testing.TB, w *Witness, log Log) Checkpoint {
	t.Helper()
	c, err := w.Update(t.Context(), log)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func verify(t testing.TB, m memory, w *Witness) Report {
	t.Helper()
	trust, done, err := w.Trust()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	r, err := Verify(m.all(), trust)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Broken if our tree is not the one that every other verifier of RFC 6962 computes.
func TestTreeIsTheStandardOne(t *testing.T) {
	var tree Tree
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(at []int64) (out []tlog.Hash, err error) {
		for _, i := range at {
			out = append(out, stored[i])
		}
		return out, nil
	})
	rows := map[int64][]byte{}
	for n := range int64(130) {
		if want, err := tlog.TreeHash(n, reader); err != nil || tree.Root() != want {
			t.Fatalf("root of %d: %v, want %v, %v", n, tree.Root(), want, err)
		}
		again, err := TreeOf(n, func(num int64) ([]byte, error) { return rows[num], nil })
		if err != nil || again != tree && again.Root() != tree.Root() {
			t.Fatalf("read again at %d: %v", n, err)
		}
		leaf := tlog.RecordHash([]byte{byte(n)})
		want, err := tlog.StoredHashesForRecordHash(n, leaf, reader)
		if err != nil {
			t.Fatal(err)
		}
		got := tree.Add(leaf)
		for i, h := range want {
			if !bytes.Equal(h[:], got[i*HashSize:][:HashSize]) {
				t.Fatalf("hash %d of record %d", i, n)
			}
		}
		stored, rows[n+1] = append(stored, want...), got
	}
}

// Broken if somebody who can write to the database can change what happened, and the verifier does not say where.
func TestVerifyNamesTheFirstBadRecord(t *testing.T) {
	var log memory
	log.add(t, records(40)...)
	w := open(t, t.TempDir())
	update(t, w, log[:20])
	update(t, w, log)
	if r := verify(t, log, w); r.Bad != nil || r.Size != 40 || r.Signed != 40 {
		t.Fatalf("control: %+v", r)
	}
	for _, c := range []struct {
		name string
		do   func(m *memory)
		num  int64
		kind string
	}{
		{"delete the first", func(m *memory) { *m = (*m)[1:] }, 1, Missing},
		{"delete one", func(m *memory) { *m = slices.Delete(*m, 16, 17) }, 17, Missing},
		{"delete many", func(m *memory) { *m = slices.Delete(*m, 9, 30) }, 10, Missing},
		{"truncate", func(m *memory) { *m = (*m)[:39] }, 40, Missing},
		{"empty", func(m *memory) { *m = nil }, 1, Missing},
		{"roll back", func(m *memory) { *m = (*m)[:20] }, 21, Missing},
		{"edit actor", func(m *memory) { (*m)[6].Actor = "sesn_9" }, 7, Changed},
		{"edit action", func(m *memory) { (*m)[6].Action = "x" }, 7, Changed},
		{"edit resource", func(m *memory) { (*m)[6].Resource = "x" }, 7, Changed},
		{"edit decision", func(m *memory) { (*m)[6].Decision = outboard.Refused }, 7, Changed},
		{"edit rule", func(m *memory) { (*m)[6].Rule = "x" }, 7, Changed},
		{"edit detail", func(m *memory) { (*m)[6].Detail = outboard.Raw(`{"n":2}`) }, 7, Changed},
		{"edit time", func(m *memory) { (*m)[6].At = time.UnixMicro(1) }, 7, Changed},
		{"edit organization", func(m *memory) { (*m)[6].Org = "x" }, 7, Changed},
		{"edit salt", func(m *memory) { (*m)[6].Proof[0] ^= 1 }, 7, Changed},
		{"no salt", func(m *memory) { (*m)[6].Proof = nil }, 7, Changed},
		{"edit leaf", func(m *memory) { (*m)[6].Hashes[0] ^= 1 }, 7, Changed},
		{"edit subtree", func(m *memory) { (*m)[7].Hashes[HashSize] ^= 1 }, 8, Changed},
		{"reorder", func(m *memory) { (*m)[4], (*m)[5] = (*m)[5], (*m)[4] }, 5, Missing},
		{"reorder and renumber",
			func(m *memory) { (*m)[4], (*m)[5] = (*m)[5], (*m)[4]; (*m)[4].Num, (*m)[5].Num = 5, 6 }, 5, Changed},
		{"duplicate", func(m *memory) { *m = slices.Insert(*m, 12, (*m)[11]) }, 13, Repeated},
		{"duplicate at the end", func(m *memory) { *m = append(*m, (*m)[39]); (*m)[40].Num = 41 }, 41, Changed},
		{"insert and renumber", func(m *memory) {
			*m = slices.Insert(*m, 12, (*m)[11])
			for i := 12; i < len(*m); i++ {
				(*m)[i].Num = int64(i) + 1
			}
		}, 13, Changed},
		{"edit and fit the hashes", func(m *memory) { (*m)[6].Resource = "x"; m.rebuild(t) }, 7, Replaced},
		{"delete and fit the hashes", func(m *memory) { *m = slices.Delete(*m, 16, 17); m.rebuild(t) }, 17, Replaced},
		{"fork", func(m *memory) { *m = (*m)[:25]; m.add(t, records(30)...) }, 26, Replaced},
		{"redact and say nothing", func(m *memory) { _ = (*m)[6].Redact("resource") }, 7, Silent},
		{"redact by hand", func(m *memory) { (*m)[6].Resource = Redacted }, 7, Changed},
	} {
		m := log.clone()
		c.do(&m)
		r := verify(t, m, w)
		if r.Bad == nil || r.Bad.Num != c.num || r.Bad.Kind != c.kind || r.Size != c.num-1 && c.kind != Silent {
			t.Errorf("%s: %+v, want %d %s; read %d", c.name, r.Bad, c.num, c.kind, r.Size)
		}
	}
}

// Broken if who loses the leaves, or can write to the witness's files too, passes off another log.
func TestVerifyWithoutLeaves(t *testing.T) {
	var log memory
	log.add(t, records(20)...)
	dir := t.TempDir()
	w := open(t, dir)
	first := update(t, w, log[:8])
	last := update(t, w, log)
	other := log.clone()
	other[10].Resource = "x"
	other.rebuild(t)
	r, err := Verify(other.all(), Trust{Checkpoints: []Checkpoint{last, first}})
	if err != nil || r.Bad == nil || r.Bad.Kind != Forked || r.Bad.Num != 9 {
		t.Errorf("between two checkpoints: %+v, %v", r.Bad, err)
	}
	leaves := filepath.Join(dir, "leaves")
	good, err := os.ReadFile(leaves)
	if err != nil || len(good) != 20*HashSize {
		t.Fatalf("%d bytes, %v", len(good), err)
	}
	bad := bytes.Clone(good)
	copy(bad[10*HashSize:], other[10].Hashes[:HashSize])
	if err := os.WriteFile(leaves, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, other, w); r.Bad == nil || r.Bad.Kind != Unwitness {
		t.Errorf("leaves and log changed alike: %+v", r.Bad)
	}
	if err := os.WriteFile(leaves, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, log, w); r.Bad != nil {
		t.Errorf("control: %+v", r.Bad)
	}
}

// Broken if a checkpoint can be made or changed without the key.
func TestCheckpointSignature(t *testing.T) {
	var log memory
	log.add(t, records(5)...)
	w := open(t, t.TempDir())
	update(t, w, log)
	text, err := w.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	if c, err := Open(w.Public(), text); err != nil || c.Size != 5 || c.At.IsZero() {
		t.Fatalf("control: %+v, %v", c, err)
	}
	if _, err := Open(w.Public(), bytes.Replace(text, []byte("\n5\n"), []byte("\n4\n"), 1)); err == nil {
		t.Error("another size passed")
	}
	if _, err := Open(open(t, t.TempDir()).Public(), text); err == nil {
		t.Error("another key passed")
	}
	for _, name := range []string{"key", "checkpoint", "leaves"} {
		if info, err := os.Stat(filepath.Join(w.dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// Broken if a witness signs a log that does not continue the one that it has signed.
func TestWitnessSignsOnlyWhatContinues(t *testing.T) {
	var log memory
	log.add(t, records(30)...)
	dir := t.TempDir()
	update(t, open(t, dir), log[:20])
	forked := log.clone()[:12]
	forked.add(t, records(40)...)
	broken := log.clone()
	broken[25].Hashes[0] ^= 1
	edited := log.clone()
	edited[19].Hashes[2*HashSize] ^= 1
	for name, m := range map[string]memory{"rolled back": log[:19], "forked": forked, "broken later": broken,
		"broken earlier": edited, "empty": nil} {
		_, err := open(t, dir).Update(t.Context(), m)
		if _, ok := errors.AsType[*Tampered](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	w := open(t, dir)
	if c := update(t, w, log[:20]); c.Size != 20 {
		t.Errorf("nothing new: %+v", c)
	}
	if c := update(t, open(t, dir), log); c.Size != 30 { // another process on the same directory
		t.Errorf("control: %+v", c)
	}
	if c := update(t, w, log); c.Size != 30 {
		t.Errorf("after another process: %+v", c)
	}
	if r := verify(t, log, w); r.Bad != nil || r.Signed != 30 {
		t.Errorf("control: %+v", r)
	}
	if err := os.Remove(filepath.Join(dir, "key")); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWitness(dir, nil, nil); err == nil {
		t.Error("a new key beside an old checkpoint")
	}
}

// Broken if redaction leaves what it took out, or makes the log look changed.
func TestRedact(t *testing.T) {
	var log memory
	log.add(t, records(10)...)
	w := open(t, t.TempDir())
	update(t, w, log)
	if err := log[3].Redact("actor", "resource"); err != nil {
		t.Fatal(err)
	}
	once := log.clone()
	if err := log[3].Redact("resource", "detail"); err != nil { // again, and more
		t.Fatal(err)
	}
	if log[3].Actor != Redacted || log[3].Resource != Redacted || string(log[3].Detail) != `"`+Redacted+`"` ||
		log[3].Rule != "r" {
		t.Errorf("%+v", log[3].AuditRecord)
	}
	log.add(t, outboard.AuditRecord{Action: ActionRedact, Detail: outboard.Raw(`{"records":[4]}`)})
	update(t, w, log)
	if r := verify(t, log, w); r.Bad != nil || r.Redacted != 1 || r.Signed != 11 {
		t.Errorf("%+v", r)
	}
	m := log.clone()
	m[3] = once[3]
	m[3].Rule = "x" // what was kept is still bound
	if r := verify(t, m, w); r.Bad == nil || r.Bad.Num != 4 {
		t.Errorf("a field beside a redacted one was changed: %+v", r.Bad)
	}
	m = log.clone()
	m[3].Actor = "somebody"
	if r := verify(t, m, w); r.Bad == nil || r.Bad.Num != 4 {
		t.Errorf("a redacted field says something: %+v", r.Bad)
	}
}
