//go:build linux

package e2b

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// content reads a file of the box.
func (r *rig) content(name string) (status int, text string) {
	r.t.Helper()
	req := r.envd("/files?path="+name, "", nil)
	req.Method, req.Body, req.ContentLength = "GET", nil, 0
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// If this fails, joining files loses the result, or what its name held before, or leaves the parts.
func TestCompose(t *testing.T) {
	r := newRig(t)
	compose := func(to string, from ...string) int {
		return r.do(r.envd("/files/compose", "application/json",
			[]byte(jsonOf(map[string]any{"source_paths": from, "destination": to}))), nil)
	}
	write := func(name, text string) {
		t.Helper()
		if status := r.do(r.envd("/files?path="+name, "application/octet-stream", []byte(text)), nil); status != 200 {
			t.Fatalf("writing %s: %d", name, status)
		}
	}
	read := func(name string) string {
		t.Helper()
		status, text := r.content(name)
		return fmt.Sprint(status, " ", text)
	}
	write("a", "one")
	write("b", "two")
	if status := compose("./a", "a", "b"); status != 400 || read("a") != "200 one" || read("b") != "200 two" {
		t.Errorf("into the first part: %d, then %q and %q", status, read("a"), read("b"))
	}
	if status := compose("b", "a", "none"); status != 404 || read("a") != "200 one" || read("b") != "200 two" {
		t.Errorf("of a part that is not there: %d, then %q and %q", status, read("a"), read("b"))
	}
	if status := compose("c", "a", "b"); status != 200 || read("c") != "200 onetwo" ||
		!strings.HasPrefix(read("a"), "404 ") {
		t.Errorf("of both: %d, then %q and %q", status, read("c"), read("a"))
	}
}

// If this fails, some kilobytes of a compressed body keep the server unpacking for as long as its sender likes,
// also what no file is made of.
func TestCompressedBodyIsBounded(t *testing.T) {
	const most = 1 << 20
	r := newRig(t)
	r.srv.unzipped = most
	zipped := func(head string, size int) []byte {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write(append([]byte(head), make([]byte, size-len(head))...))
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	part := func(name string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"; filename=\"f\"\r\n\r\n"
	}
	for what, c := range map[string]struct {
		path, kind string
		body       []byte
		status     int
	}{
		"what fits":   {"/files?path=f", "", zipped("", most), 200},
		"a byte more": {"/files?path=f", "", zipped("", most+1), 413},
		"a part that fits": {"/files", "multipart/form-data; boundary=b",
			zipped(part("file")+"x\r\n--b--\r\n", most), 200},
		"a part that does not": {"/files", "multipart/form-data; boundary=b", zipped(part("file"), most+1), 413},
		"a part of no file": {"/files", "multipart/form-data; boundary=b",
			zipped(part("file")+"x\r\n"+part("other"), most+1), 413},
	} {
		req := r.envd(c.path, c.kind, c.body)
		req.Header.Set("Content-Encoding", "gzip")
		if status := r.do(req, nil); status != c.status {
			t.Errorf("%s: %d, want %d", what, status, c.status)
		}
	}
}

// If this fails, a compressed upload that broke off leaves a torn file, or some of its files, in the place of
// what was there.
func TestCompressedBodyIsWholeOrNothing(t *testing.T) {
	r := newRig(t)
	r.srv.unzipped = 2 << 20
	const old = "old"
	text := strings.Repeat("new content that is long enough to be written in several pieces\n", 8<<10)
	form := func(files ...string) string {
		var b strings.Builder
		for _, f := range files {
			b.WriteString("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + f + "\"\r\n\r\n" +
				text + "\r\n")
		}
		return b.String() + "--b--\r\n"
	}
	zip := func(text string) []byte {
		var b bytes.Buffer
		w, err := gzip.NewWriterLevel(&b, gzip.NoCompression) // much of it is there before it breaks off
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(w, text)
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	read := func(name string) string {
		status, text := r.content(name)
		if status == 404 {
			return ""
		}
		return text
	}
	const kind = "multipart/form-data; boundary=b"
	sum := func(b []byte) []byte { b[len(b)-8]++; return b }
	for _, c := range []struct {
		what   string
		path   string
		kind   string
		body   []byte
		status int
	}{
		{"a file", "/files?path=there", "", zip(text), 200},
		{"two members", "/files?path=there", "", slices.Concat(zip(text[:100]), zip(text[100:])), 200},
		{"a file that breaks off", "/files?path=there", "", zip(text)[:len(text)/2], 400},
		{"a new file that breaks off", "/files?path=new", "", zip(text)[:len(text)/2], 400},
		{"a file without its sum", "/files?path=there", "", zip(text)[:len(zip(text))-8], 400},
		{"a file with another sum", "/files?path=there", "", sum(zip(text)), 400},
		{"something behind it", "/files?path=there", "", append(zip(text), "more"...), 400},
		{"members of nothing, for ever", "/files?path=there", "", bytes.Repeat(zip(""), 1_000_000), 400},
		{"no gzip", "/files?path=there", "", []byte(text), 400},
		{"nothing", "/files?path=there", "", nil, 400},
		{"the second file breaks off", "/files", kind, zip(form("there", "new"))[:len(text)*3/2], 400},
		{"two files", "/files", kind, zip(form("there", "new")), 200}, // the last: now there is a new one
	} {
		if status := r.do(r.envd("/files?path=there", "", []byte(old)), nil); status != 200 {
			t.Fatalf("preparing: %d", status)
		}
		req := r.envd(c.path, c.kind, c.body)
		req.Header.Set("Content-Encoding", "gzip")
		var told any
		if status := r.do(req, &told); status != c.status {
			t.Errorf("%s: %d %v, want %d", c.what, status, told, c.status)
		}
		there, fresh := read("there"), read("new")
		if c.status != 200 && (there != old || fresh != "" ||
			!strings.Contains(fmt.Sprint(told), "nothing of it was written")) {
			t.Errorf("%s: %d bytes are there, and %d new; told %v", c.what, len(there), len(fresh), told)
		}
		if c.status == 200 && there != text {
			t.Errorf("control: %s: %d bytes are there", c.what, len(there))
		}
	}
}
