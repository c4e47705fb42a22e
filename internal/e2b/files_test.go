//go:build linux

package e2b

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// If this fails, joining files loses the result, or what its name held before, or leaves the parts.
func TestCompose(t *testing.T) {
	r := newRig(t)
	compose := func(to string, from ...string) int {
		return r.do(r.envd("/files/compose", "application/json", []byte(jsonOf(map[string]any{"source_paths": from, "destination": to}))), nil)
	}
	write := func(name, text string) {
		t.Helper()
		if status := r.do(r.envd("/files?path="+name, "application/octet-stream", []byte(text)), nil); status != 200 {
			t.Fatalf("writing %s: %d", name, status)
		}
	}
	read := func(name string) string {
		t.Helper()
		req := r.envd("/files?path="+name, "", nil)
		req.Method, req.Body, req.ContentLength = "GET", nil, 0
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(res.StatusCode, " ", string(b))
	}
	write("a", "one")
	write("b", "two")
	if status := compose("./a", "a", "b"); status != 400 || read("a") != "200 one" || read("b") != "200 two" {
		t.Errorf("into the first part: %d, then %q and %q", status, read("a"), read("b"))
	}
	if status := compose("b", "a", "none"); status != 404 || read("a") != "200 one" || read("b") != "200 two" {
		t.Errorf("of a part that is not there: %d, then %q and %q", status, read("a"), read("b"))
	}
	if status := compose("c", "a", "b"); status != 200 || read("c") != "200 onetwo" || !strings.HasPrefix(read("a"), "404 ") {
		t.Errorf("of both: %d, then %q and %q", status, read("c"), read("a"))
	}
}

// If this fails, some kilobytes of a compressed body keep the server unpacking for as long as its sender likes, also what no file is made of.
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
		"what fits":            {"/files?path=f", "", zipped("", most), 200},
		"a byte more":          {"/files?path=f", "", zipped("", most+1), 413},
		"a part that fits":     {"/files", "multipart/form-data; boundary=b", zipped(part("file")+"x\r\n--b--\r\n", most), 200},
		"a part that does not": {"/files", "multipart/form-data; boundary=b", zipped(part("file"), most+1), 413},
		"a part of no file":    {"/files", "multipart/form-data; boundary=b", zipped(part("file")+"x\r\n"+part("other"), most+1), 413},
	} {
		req := r.envd(c.path, c.kind, c.body)
		req.Header.Set("Content-Encoding", "gzip")
		if status := r.do(req, nil); status != c.status {
			t.Errorf("%s: %d, want %d", what, status, c.status)
		}
	}
}
