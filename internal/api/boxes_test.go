//go:build linux

package api_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// boxRig is a server that is asked about its sandboxes.
type boxRig struct {
	t   *testing.T
	srv *outboardtest.Server
}

func (r *boxRig) do(method, path, body string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.srv.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", r.srv.Key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, string(b)
}

// event is one of a process's stream.
type boxEvent struct {
	Type, Stream string
	Pid          int
	Data         []byte
	Cursor       int64
	ExitCode     *int `json:"exit_code"`
}

func boxEvents(t *testing.T, stream string) (out []boxEvent) {
	t.Helper()
	for sc := bufio.NewScanner(strings.NewReader(stream)); sc.Scan(); {
		if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
			var e boxEvent
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatalf("%q: %v", data, err)
			}
			out = append(out, e)
		}
	}
	return out
}

// If this fails, a client of the public API cannot make a sandbox, run a program in it and move files, or is
// believed when it lies.
func TestBoxes(t *testing.T) {
	r := &boxRig{t, outboardtest.Start(t, outboardtest.Options{NoRunner: true})}
	status, body := r.do("POST", "/v1/boxes", `{"env":{"A":"b"},"metadata":{"k":"v"},"timeout_seconds":60}`)
	var box struct{ ID, State string }
	if err := json.Unmarshal([]byte(body), &box); err != nil || status != 200 || box.State != "running" {
		t.Fatalf("creating: %d %s", status, body)
	}
	at := "/v1/boxes/" + box.ID
	status, body = r.do("POST", at+"/processes", `{"argv":["sh","-c","echo $A; echo x >&2; exit 3"]}`)
	events := boxEvents(t, body)
	if status != 200 || len(events) != 4 || events[0].Type != "process.started" || events[3].ExitCode == nil ||
		*events[3].ExitCode != 3 {
		t.Fatalf("a process: %d %s", status, body)
	}
	said := map[string]string{}
	for _, e := range events {
		said[e.Stream] += string(e.Data)
	}
	if said["stdout"] != "b\n" || said["stderr"] != "x\n" {
		t.Errorf("it said %q", said)
	}
	again := at + "/processes/" + strconv.Itoa(events[0].Pid) + "/stream?from=" +
		strconv.FormatInt(events[1].Cursor, 10)
	if status, body = r.do("GET", again, ""); status != 200 || len(boxEvents(t, body)) != 3 {
		t.Errorf("attached from a cursor: %d %s", status, body)
	}
	if status, body = r.do("PUT", at+"/files/content?path=d/f", "content"); status != 200 {
		t.Errorf("writing: %d %s", status, body)
	}
	if status, body = r.do("GET", at+"/files/content?path=d/f", ""); status != 200 || body != "content" {
		t.Errorf("reading: %d %s", status, body)
	}
	if status, body = r.do("GET", at+"/files?path=d&depth=1", ""); status != 200 ||
		strings.Count(body, "sandbox_file") != 2 {
		t.Errorf("listing: %d %s", status, body)
	}
	if status, body = r.do("POST", at+"/pause", ""); status != 200 || !strings.Contains(body, `"paused"`) {
		t.Errorf("pausing: %d %s", status, body)
	}
	if status, body = r.do("GET", at+"/files/content?path=d/f", ""); status != 200 || body != "content" {
		t.Errorf("reading wakes it: %d %s", status, body)
	}
	for what, c := range map[string]struct {
		method, path, body string
		status             int
	}{
		"an unknown member": {"POST", "/v1/boxes", `{"x":1}`, 400}, "no such template": {"POST", "/v1/boxes",
			`{"template":"none"}`, 404},
		"an odd end": {"POST", "/v1/boxes", `{"on_timeout":"explode"}`, 400}, "an endless time": {"POST", at +
			"/timeout", `{"timeout_seconds":99999999999}`, 400},
		"another's id": {"GET", "/v1/boxes/boxaaaaaaaaaaaaaaaaaaaa", "", 404}, "a path for an id": {"GET",
			"/v1/boxes/..%2fx", "", 404},
		"no program": {"POST", at + "/processes", `{"argv":[]}`, 400}, "a missing one": {"POST", at + "/processes",
			`{"argv":["no-such-program"]}`, 400},
		"no such process": {"POST", at + "/processes/99999/signal", `{"signal":9}`, 404}, "no number": {"POST", at +
			"/processes/x/signal", `{"signal":9}`, 400},
		"an odd cursor": {"GET", at + "/processes/1/stream?from=-7", "", 400}, "no path": {"GET", at + "/files/content",
			"", 400},
		"a missing file": {"GET", at + "/files/content?path=none", "", 404}, "a directory": {"GET", at +
			"/files/content?path=d", "", 400},
	} {
		if status, body := r.do(c.method, c.path, c.body); status != c.status ||
			!strings.Contains(body, `"type":"error"`) {
			t.Errorf("%s: %d %s, want %d", what, status, body, c.status)
		}
	}
	if status, body = r.do("DELETE", at, ""); status != 200 {
		t.Errorf("removing: %d %s", status, body)
	}
	if status, _ = r.do("GET", at, ""); status != 404 {
		t.Errorf("after removing: %d", status)
	}
}
