package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/config"
)

// worker speaks to the bridge as the sandbox client of the OpenAI Agents SDK does: the same requests, read from
// its source.
type worker struct {
	*online
	key string
	id  string
}

func (w *worker) ask(method, path string, body io.Reader) (int, []byte) {
	w.t.Helper()
	res := w.send(w.t.Context(), method, path, body)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, b
}

func (w *worker) send(ctx context.Context, method, path string, body io.Reader) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, w.s.URL+"/bridge/v1/sandbox"+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

// exec returns what a command said, and its end: an exit code, or the code of an error.
func (w *worker) exec(in map[string]any) (stdout, stderr, end string) {
	w.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		w.t.Fatal(err)
	}
	res := w.send(w.t.Context(), "POST", "/"+w.id+"/exec", bytes.NewReader(body))
	defer res.Body.Close()
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(res.Body)
		return "", "", res.Status + " " + string(b)
	}
	event := ""
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case name == "event":
			event = value
		case name != "data":
		case event == "stdout", event == "stderr":
			b, err := base64.StdEncoding.DecodeString(value)
			if err != nil {
				w.t.Fatal(err)
			}
			if event == "stdout" {
				stdout += string(b)
			} else {
				stderr += string(b)
			}
		default:
			var d struct {
				Exit *int   `json:"exit_code"`
				Code string `json:"code"`
			}
			if err := json.Unmarshal([]byte(value), &d); err != nil {
				w.t.Fatal(err)
			}
			if end += event + " " + d.Code; d.Exit != nil {
				end += string(rune('0' + *d.Exit%10))
			}
		}
	}
	return stdout, stderr, end
}

// If this fails, the client of the bridge protocol does not get from a box what it gets from the original.
func TestBridge(t *testing.T) {
	o := startOnline(t, config.Boxes{Networking: "unrestricted"})
	key, err := readKey(o.data)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{online: o, key: key}
	var made struct {
		ID string `json:"id"`
	}
	if status, b := w.ask("POST", "", nil); status != 200 || json.Unmarshal(b, &made) != nil || made.ID == "" {
		t.Fatalf("making a sandbox: %d %s", status, b)
	}
	w.id = made.ID

	if out, said, end := w.exec(map[string]any{"argv": []string{"env", "A=b", "/bin/sh", "-lc",
		"echo $A; pwd; echo é; echo bad >&2; exit 3"}, "timeout_ms": 30000}); out != "b\n/workspace\né\n" ||
		said != "bad\n" || end != "exit 3" {
		t.Errorf("a command: %q %q %q", out, said, end)
	}
	if out, _, end := w.exec(map[string]any{"argv": []string{"pwd"}, "cwd": "/tmp"}); out != "/tmp\n" ||
		end != "exit 0" {
		t.Errorf("another directory: %q %q", out, end)
	}
	if _, _, end := w.exec(map[string]any{"argv": []string{"sleep", "60"},
		"timeout_ms": 100}); end != "error exec_timeout" {
		t.Errorf("a command that takes too long: %q", end)
	}
	if _, _, end := w.exec(map[string]any{"argv": []string{"/nowhere/program"}}); !strings.HasPrefix(end, "4") ||
		!strings.Contains(end, `"code":`) {
		t.Errorf("a program that is not there: %q", end)
	}

	content := bytes.Repeat([]byte("\x00data: {\xff"), 100_000)
	if status, b := w.ask("PUT", "/"+w.id+"/file/workspace/"+url.PathEscape("a b%é"),
		bytes.NewReader(content)); status != 200 {
		t.Errorf("writing: %d %s", status, b)
	}
	if status, b := w.ask("GET", "/"+w.id+"/file/workspace/"+url.PathEscape("a b%é"), nil); status != 200 ||
		!bytes.Equal(b, content) {
		t.Errorf("reading: %d, %d bytes", status, len(b))
	}
	if status, b := w.ask("GET", "/"+w.id+"/file/workspace/none", nil); status != 404 ||
		!bytes.Contains(b, []byte(`"code":"not_found"`)) {
		t.Errorf("a file that is not there: %d %s", status, b)
	}
	if status, _ := w.ask("GET", "/"+w.id+"/file/etc/passwd", nil); status != 403 {
		t.Errorf("a file elsewhere: %d", status)
	}
	testBrokenUploads(t, w)
	testBridgeArchives(t, w)
	testBridgeSessions(t, w)
	testBridgeTerminal(t, w)
	testBridgeTunnel(t, w)
	testBridgeLife(t, w)
}

// testBrokenUploads: a file that is sent in part is not there in part, by the bridge and by the API, which
// outboard box cp uses.
func testBrokenUploads(t *testing.T, w *worker) {
	t.Helper()
	const size = 4 << 20
	shell := func(text string) string {
		out, said, end := w.exec(map[string]any{"argv": []string{"sh", "-c", text}})
		if end != "exit 0" {
			t.Fatalf("%s: %q %q %s", text, out, said, end)
		}
		return out
	}
	for _, path := range []string{"/bridge/v1/sandbox/" + w.id + "/file/workspace/up/file", "/v1/boxes/" + w.id +
		"/files/content?path=/workspace/up/file"} {
		shell("rm -rf up; mkdir up; echo before > up/file")
		for _, sent := range []int{size / 2, size} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.s.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer "+
				"%s\r\nContent-Length: %d\r\n\r\n%s", path,
				strings.TrimPrefix(w.s.URL, "http://"), w.key, size, strings.Repeat("x", sent)); err != nil {
				t.Fatal(err)
			}
			if sent == size { // the control
				if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != 200 {
					t.Fatalf("%s: %v, %v", path, res, err)
				}
				if got := shell("cd up; ls -A; wc -c < file"); got != "file\n4194304\n" {
					t.Errorf("%s, the whole: %q", path, got)
				}
				continue
			}
			// it has begun
			shell(`for i in $(seq 500); do [ "$(ls -A up)" != file ] || ! grep -q before up/file && exit 0; sleep 0.01; done; exit 1`)
			conn.Close()
			if got := shell(`cd up; for i in $(seq 500); do [ "$(ls -A)" = file ] && break; sleep 0.01; done; ls -A; head -c 10 file`); got != "file\nbefore\n" {
				t.Errorf("%s, a part: %q", path, got)
			}
		}
	}
	shell("rm -r up")
}

// testBridgeArchives moves the workspace out, and into another sandbox.
func testBridgeArchives(t *testing.T, w *worker) {
	t.Helper()
	if _, _, end := w.exec(map[string]any{"argv": []string{"sh", "-c",
		"mkdir -p d skip && echo one > d/f && echo no > skip/f && ln -s d/f link && chmod 700 d/f && chmod 777 d"}}); end != "exit 0" {
		t.Fatal(end)
	}
	status, archive := w.ask("POST", "/"+w.id+"/persist?excludes=skip,none", nil)
	if status != 200 {
		t.Fatalf("persisting: %d %s", status, archive)
	}
	names := map[string]bool{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names[h.Name] = true
	}
	if !names["./d/f"] || !names["./link"] || names["./skip/f"] || names["./skip/"] {
		t.Errorf("the archive holds %v", names)
	}
	if _, _, end := w.exec(map[string]any{"argv": []string{"sh", "-c",
		"echo no > 'd/s*[x]' && chmod 0 'd/s*[x]' && mkdir -m 0 closed && mkfifo fifo"}}); end != "exit 0" {
		t.Fatal(end)
	}
	for excludes, want := range map[string]string{"skip": "cannot be read", "skip,closed": "d/s*[x]",
		"skip,closed,d/s*[x]": "", "closed,d": ""} {
		status, b := w.ask("POST", "/"+w.id+"/persist?excludes="+url.QueryEscape(excludes), nil)
		if want == "" && status != 200 || want != "" && (status != 403 || !strings.Contains(string(b), want)) {
			t.Errorf("persisting what cannot be read, without %s: %d %s, want %q named", excludes, status,
				b[:min(len(b), 200)], want)
		}
	}
	if _, _, end := w.exec(map[string]any{"argv": []string{"sh", "-c",
		"rm -rf 'd/s*[x]' closed fifo"}}); end != "exit 0" {
		t.Fatal(end)
	}
	first := w.id
	var made struct {
		ID string `json:"id"`
	}
	if _, b := w.ask("POST", "", nil); json.Unmarshal(b, &made) != nil {
		t.Fatalf("%s", b)
	}
	w.id = made.ID
	if status, b := w.ask("POST", "/"+w.id+"/hydrate", bytes.NewReader(archive)); status != 200 {
		t.Errorf("hydrating: %d %s", status, b)
	}
	if out, _, end := w.exec(map[string]any{"argv": []string{"sh", "-c",
		"cat link; stat -c %a d/f d; ls"}}); out != "one\n700\n777\na b%é\nd\nlink\n" || end != "exit 0" {
		t.Errorf("what was hydrated: %q %q", out, end)
	}
	if status, b := w.ask("POST", "/"+w.id+"/hydrate",
		strings.NewReader(strings.Repeat("not a tar ", 1000))); status != 400 ||
		!bytes.Contains(b, []byte(`"code":"invalid"`)) {
		t.Errorf("what is no archive: %d %s", status, b)
	}
	if status, _ := w.ask("DELETE", "/"+w.id, nil); status != 204 {
		t.Errorf("deleting: %d", status)
	}
	w.id = first
}

// testBridgeLife looks at what becomes of a sandbox, and of the commands of who went away.
func testBridgeLife(t *testing.T, w *worker) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	res := w.send(ctx, "POST", "/"+w.id+"/exec",
		strings.NewReader(`{"argv":["sh","-c","echo here; sleep 300 & wait"]}`))
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	leave()
	res.Body.Close()
	if _, _, end := w.exec(map[string]any{"argv": []string{"sh", "-c",
		"for i in $(seq 200); do pgrep -x -f 'sleep 300' >/dev/null || exit 0; sleep 0.05; done; exit 1"}}); end != "exit 0" {
		t.Errorf("a command goes on without who started it: %q", end)
	}
	if status := w.call("POST", "/sandboxes/"+w.id+"/pause", "", nil); status != http.StatusNoContent {
		t.Fatalf("pausing: %d", status)
	}
	if status, b := w.ask("GET", "/"+w.id+"/running", nil); status != 200 ||
		!bytes.Contains(b, []byte(`"running":true`)) {
		t.Errorf("a paused one, asked for: %d %s", status, b)
	}
	if out, _, _ := w.exec(map[string]any{"argv": []string{"cat", "link"}}); out != "one\n" {
		t.Errorf("after a pause: %q", out)
	}
	for i, want := range []int{204, 404} {
		if status, b := w.ask("DELETE", "/"+w.id, nil); status != want {
			t.Errorf("deleting, %d: %d %s", i, status, b)
		}
	}
	if status, _ := w.ask("GET", "/"+w.id+"/running", nil); status != 404 {
		t.Errorf("a deleted one: %d", status)
	}
}
