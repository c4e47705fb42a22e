package control_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// part is one entry of an export.
type part struct {
	name string
	data []byte
	pad  int // bytes that its header has besides
}

// partsOf takes an export apart, but for its manifest.
func partsOf(t testing.TB, c *control.Control, id outboard.SessionID) []part {
	t.Helper()
	return partsBy(t, c, admin, id)
}

// partsBy takes somebody's export apart.
func partsBy(t testing.TB, c *control.Control, by outboard.Caller, id outboard.SessionID) []part {
	t.Helper()
	x, err := c.Export(t.Context(), by, id, 0)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := x.Write(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	zr, err := zstd.NewReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	defer zr.Close()
	var out []part
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "manifest.json" {
			return out
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, part{name: h.Name, data: b})
	}
}

// fileOf makes a file of parts, whose manifest fits them. It is written as it is read.
func fileOf(t testing.TB, parts []part) io.Reader {
	t.Helper()
	type entry struct {
		Name string `json:"name"`
		Size int    `json:"size"`
		Hash string `json:"sha256"`
	}
	var s struct {
		ID  string `json:"id"`
		Seq int64  `json:"seq"`
	}
	entries := []entry{}
	for _, p := range parts {
		if p.name == "session.json" {
			_ = json.Unmarshal(p.data, &s) // the importer says what is wrong with it
		}
		entries = append(entries, entry{p.name, len(p.data), digest(p.data)})
	}
	m, err := json.Marshal(map[string]any{"format": "outboard-export/1", "session_id": s.ID, "seq": s.Seq,
		"entries": entries})
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	t.Cleanup(func() { r.Close() })
	go func() { // ends with the pipe
		zw, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err != nil {
			w.CloseWithError(err)
			return
		}
		tw := tar.NewWriter(zw)
		for _, p := range append(parts[:len(parts):len(parts)], part{name: "manifest.json", data: m}) {
			h := &tar.Header{Typeflag: tar.TypeReg, Name: p.name, Size: int64(len(p.data)), Mode: 0o600}
			if p.pad > 0 {
				if err = tw.Flush(); err == nil {
					_, err = zw.Write(padded(t, p.name, p.pad))
				}
			}
			if err == nil {
				err = tw.WriteHeader(h)
			}
			if err == nil {
				_, err = tw.Write(p.data)
			}
			if err != nil {
				w.CloseWithError(err)
				return
			}
		}
		if err = tw.Close(); err == nil {
			err = zw.Close()
		}
		w.CloseWithError(err)
	}()
	return r
}

// padded is a header before a header that says the name of the entry and much else.
func padded(t testing.TB, name string, n int) []byte {
	t.Helper()
	record := func(key, value string) string {
		size := len(key) + len(value) + 3
		for size != len(fmt.Sprint(size))+len(key)+len(value)+3 {
			size++
		}
		return fmt.Sprintf("%d %s=%s\n", size, key, value)
	}
	data := record("path", name) + record("comment", strings.Repeat("a", n))
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "pax", Size: int64(len(data)),
		Format: tar.FormatUSTAR})
	if err == nil {
		_, err = tw.Write([]byte(data))
	}
	if err = errors.Join(err, tw.Flush()); err != nil {
		t.Error(err)
	}
	const kind, sum = 156, 148
	block := b.Bytes()
	was := int64(block[kind])
	block[kind] = tar.TypeXHeader
	had, err := strconv.ParseInt(strings.Trim(string(block[sum:sum+8]), " \x00"), 8, 64)
	if err != nil {
		t.Error(err)
	}
	copy(block[sum:], fmt.Sprintf("%06o\x00 ", had-was+int64(tar.TypeXHeader)))
	return block
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func replaced(parts []part, name string, data []byte) []part {
	var out []part
	for _, p := range parts {
		if p.name == name {
			p.data = data
		}
		out = append(out, p)
	}
	return out
}

// If this fails, a file of some kilobytes, compressed, takes gigabytes of the server's memory when it is imported.
func TestImportMemory(t *testing.T) {
	c, st, _ := parts(t)
	s := session(t, c)
	long(t, c, st, s, 2)
	real := partsOf(t, c, s.ID)
	take := func(parts []part) error {
		_, err := c.Import(t.Context(), admin, fileOf(t, parts), control.ImportRequest{Unsigned: true})
		return err
	}
	if err := take(real); err != nil {
		t.Fatalf("what was exported: %v", err)
	}
	many := func(n int) []byte { return []byte("[" + strings.Repeat("{},", n) + "{}]") }
	for what, c := range map[string]struct {
		name string
		data []byte
		want string
	}{
		"checkpoints": {"checkpoints.json", many(1000), "more than 1000 entries"},
		"files":       {"files.json", many(200_000), "more than 200000 entries"},
		"no list":     {"files.json", []byte(`{}`), "is no list"},
		"half a list": {"files.json", []byte(`[`), "EOF"},
		"unknown":     {"files.json", []byte(`[{"more":1}]`), "unknown field"},
		"the session": {"session.json", append([]byte(`{"title":"`), make([]byte, outboard.MaxBody)...),
			"over the limit"},
	} {
		if err := take(replaced(real, c.name, c.data)); err == nil || !strings.Contains(err.Error(), c.want) ||
			outboard.KindOf(err) != outboard.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	all := real[:len(real):len(real)]
	for i := range 100 {
		b := fmt.Append(nil, "blob ", i)
		all = append(all, part{"blobs/" + digest(b), b, 1<<20 - 1000})
	}
	r := &meter{r: fileOf(t, all)}
	if _, err := c.Import(t.Context(), admin, r, control.ImportRequest{Unsigned: true}); err != nil {
		t.Fatalf("with padded headers: %v", err)
	}
	if grown := r.end - r.begin; r.begin == 0 || grown > 30<<20 {
		t.Errorf("100 blobs with padded headers hold %d MiB", grown>>20)
	}
}

// meter looks at what is held where a file begins and where it ends.
type meter struct {
	r          io.Reader
	begin, end int64
}

// Read implements io.Reader.
func (m *meter) Read(p []byte) (int, error) {
	held := func() int64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	if m.begin == 0 {
		m.begin = held()
	}
	n, err := m.r.Read(p)
	if err != nil {
		m.end = held()
	}
	return n, err
}

// FuzzImport imports what may come as the parts of a session, under a manifest that fits them. If this fails, a
// file crashes the server, is told as the server's own fault, or makes a session that cannot be read or exported
// again.
func FuzzImport(f *testing.F) {
	c, st, _ := parts(f)
	s := session(f, c)
	long(f, c, st, s, 2)
	byName := map[string][]byte{}
	for _, p := range partsOf(f, c, s.ID) {
		byName[p.name] = p.data
	}
	log := byName["events/00000001.jsonl"]
	f.Add(byName["session.json"], log, byName["checkpoints.json"], byName["files.json"], []byte("content"))
	var with map[string]any
	if err := json.Unmarshal(byName["session.json"], &with); err != nil {
		f.Fatal(err)
	}
	k := outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint)
	with["checkpoint"], with["title"] = k, "with a workspace"
	content := layer(f, nil, "workspace/", "workspace/f=text")
	ref := outboard.BlobRef{Digest: digest(content), Size: int64(len(content))}
	seed := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	f.Add(seed(with), log, seed([]outboard.Checkpoint{{ID: k, Session: s.ID, Seq: 1, Delta: ref}}),
		seed([]outboard.File{{ID: outboard.NewID[outboard.FileID](outboard.PrefixFile), Filename: "f",
			MediaType: "text/plain", Blob: ref}}), content)
	f.Fuzz(func(t *testing.T, session, events, checkpoints, files, blob []byte) {
		all := []part{{name: "format", data: []byte("outboard-export/1\n")}, {name: "session.json", data: session},
			{name: "events/00000001.jsonl", data: events},
			{name: "checkpoints.json", data: checkpoints}, {name: "files.json", data: files}, {name: "blobs/" +
				digest(blob), data: blob}}
		got, err := c.Import(t.Context(), admin, fileOf(t, all), control.ImportRequest{Unsigned: true})
		if err != nil {
			if outboard.KindOf(err) == outboard.Internal {
				t.Errorf("it is the server's fault: %v", err)
			}
			return
		}
		for e, err := range st.Read(t.Context(), got.ID, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Decode(); err != nil {
				t.Errorf("event %d: %v", e.Seq, err)
			}
		}
		x, err := c.Export(t.Context(), admin, got.ID, 0)
		if err == nil {
			err = x.Write(t.Context(), io.Discard)
		}
		if err != nil {
			t.Errorf("it cannot be exported again: %v", err)
		}
		if err := c.DeleteSession(t.Context(), admin, got.ID); err != nil {
			t.Errorf("it cannot be deleted: %v", err)
		}
	})
}
