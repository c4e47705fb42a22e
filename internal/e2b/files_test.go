//go:build linux

package e2b

import (
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
