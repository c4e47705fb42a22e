package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// socket is the client's end of a WebSocket, as the SDKs' clients are: frames are masked.
type socket struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

// dial opens a terminal; without a key nobody is who they say.
func (w *worker) dial(path, key string) (*socket, *http.Response) {
	w.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.s.URL, "http://"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		w.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(w.t.Context(), "GET", w.s.URL+"/bridge/v1/sandbox/"+w.id+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for k, v := range map[string]string{"Authorization": "Bearer " + key, "Connection": "keep-alive, Upgrade",
		"Upgrade":               "websocket",
		"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="} {
		req.Header.Set(k, v)
	}
	if err := req.Write(conn); err != nil {
		w.t.Fatal(err)
	}
	s := &socket{w.t, conn, bufio.NewReader(conn)}
	res, err := http.ReadResponse(s.r, req)
	if err != nil {
		w.t.Fatal(err)
	}
	return s, res
}

func (w *worker) terminal(path string) *socket {
	w.t.Helper()
	s, res := w.dial(path, w.key)
	// as RFC 6455 has it for this key
	if res.StatusCode != 101 || res.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		w.t.Fatalf("opening a terminal: %d %v", res.StatusCode, res.Header)
	}
	return s
}

// send writes one frame.
func (s *socket) send(head byte, data []byte) {
	s.t.Helper()
	frame := []byte{head}
	if len(data) < 126 {
		frame = append(frame, 0x80|byte(len(data)))
	} else {
		frame = binary.BigEndian.AppendUint16(append(frame, 0x80|126), uint16(len(data)))
	}
	mask := []byte{1, 2, 3, 4}
	frame = append(frame, mask...)
	for i, b := range data {
		frame = append(frame, b^mask[i%4])
	}
	if _, err := s.conn.Write(frame); err != nil {
		s.t.Fatal(err)
	}
}

func (s *socket) typed(text string) { s.t.Helper(); s.send(0x82, []byte(text)) }

// next returns a message; kind 0 is the end of the connection.
func (s *socket) next() (kind byte, data []byte) {
	s.t.Helper()
	var head [2]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return 0, nil
	}
	n := int(head[1])
	if n == 126 {
		var ext [2]byte
		if _, err := io.ReadFull(s.r, ext[:]); err != nil {
			s.t.Fatal(err)
		}
		n = int(binary.BigEndian.Uint16(ext[:]))
	}
	data = make([]byte, n)
	if _, err := io.ReadFull(s.r, data); err != nil {
		s.t.Fatal(err)
	}
	return head[0] & 0x0f, data
}

// until reads what is shown until it holds want, or the end, and returns it with the messages of text that came.
func (s *socket) until(want string) (shown, told string) {
	s.t.Helper()
	for want == "" || !strings.Contains(shown, want) && !strings.Contains(told, want) {
		switch kind, data := s.next(); kind {
		case 2:
			shown += string(data)
		case 1:
			told += string(data)
		case 8:
			return shown, told + " closed " + string(data[2:])
		case 0:
			return shown, told + " broken off"
		}
	}
	return shown, told
}

// testBridgeTerminal does in terminals what a person does, and what a hostile client does.
func testBridgeTerminal(t *testing.T, w *worker) {
	t.Helper()
	s := w.terminal("/pty?cols=91&rows=17")
	if _, told := s.until("ready"); told != `{"type":"ready"}` {
		t.Fatalf("it begins with %q", told)
	}
	s.typed("stty size; pwd; tty; cat <<< $((40+2))\n")
	if shown, _ := s.until("\r\n42\r\n"); !strings.Contains(shown, "17 91\r\n/workspace\r\n/dev/pts/") {
		t.Errorf("a terminal shows %q", shown)
	}
	s.send(0x81, []byte(`{"type":"resize","cols":100,"rows":30}`))
	s.send(0x01, []byte(`{"type":"resize","co`)) // in two parts, a ping between them
	s.send(0x89, []byte("ping"))
	s.send(0x80, []byte(`ls":101,"rows":31}`))
	s.typed("stty size\n")
	if shown, told := s.until("31 101"); !strings.Contains(shown, "31 101") || told != "" {
		t.Errorf("resized: %q %q", shown, told)
	}
	s.send(0x81, []byte(`{"type":"resize","cols":0,"rows":30}`))
	if _, told := s.until("error"); !strings.Contains(told, "cols and rows") {
		t.Errorf("no size: %q", told)
	}
	s.typed("sleep 301 & exit 3\n")
	if _, told := s.until(""); !strings.Contains(told, `{"type":"exit","code":3}`) ||
		!strings.Contains(told, "closed") {
		t.Errorf("it ends with %q", told)
	}
	testTerminalLeft(t, w)
	for what, frame := range map[string][]byte{"not masked": {0x82, 0x01, 'x'},
		"too long": {0x82, 0xff, 0, 0, 0, 1, 0, 0, 0, 0}, "of an extension": {0xc2, 0x80, 0, 0, 0, 0},
		"a part of nothing": {0x80, 0x80, 0, 0, 0, 0}, "of no kind": {0x83, 0x80, 0, 0, 0, 0}} {
		s := w.terminal("/pty")
		s.until("ready")
		if _, err := s.conn.Write(frame); err != nil {
			t.Fatal(err)
		}
		if _, told := s.until(""); !strings.Contains(told, "closed") && !strings.Contains(told, "broken off") {
			t.Errorf("a frame that is %s: %q", what, told)
		}
	}
	for what, c := range map[string]struct {
		path, key string
		want      int
	}{"no key": {"/pty", "", 401}, "no number": {"/pty?cols=x", w.key, 400}, "too wide": {"/pty?cols=70000", w.key,
		400},
		"a foreign session": {"/pty?session=none", w.key, 404}, "a path as a session": {"/pty?session=../x", w.key,
			400}} {
		if _, res := w.dial(c.path, c.key); res.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", what, res.StatusCode, c.want)
		}
	}
	if status, b := w.ask("GET", "/"+w.id+"/pty", nil); status != 400 || !bytes.Contains(b, []byte("WebSocket")) {
		t.Errorf("without a WebSocket: %d %s", status, b)
	}
}

// testTerminalLeft: a terminal ends with who has it, a session's stays.
func testTerminalLeft(t *testing.T, w *worker) {
	t.Helper()
	s := w.terminal("/pty")
	s.until("ready")
	s.typed("sleep 303 & sleep 302 &\n")
	gone := `for i in $(seq 200); do pgrep -x -f 'sleep 30[23]' >/dev/null || exit 0; sleep 0.05; done; exit 1`
	here := `for i in $(seq 200); do [ "$(pgrep -x -f 'sleep 30[23]' | wc -l)" = 2 ] && exit 0; sleep 0.05; done; exit 1`
	if _, _, end := w.exec(map[string]any{"argv": []string{"sh", "-c", here}}); end != "exit 0" { // the control
		t.Fatal("the terminal's program does not run")
	}
	s.conn.Close()
	if _, _, end := w.exec(map[string]any{"argv": []string{"sh", "-c", gone}}); end != "exit 0" {
		t.Error("a terminal's program goes on without a terminal")
	}
	if status, b := w.ask("POST", "/"+w.id+"/session",
		strings.NewReader(`{"id":"stays","cwd":"/tmp","env":{"WHO":"it's me"}}`)); status != 200 {
		t.Fatalf("%d %s", status, b)
	}
	s = w.terminal("/pty?session=stays")
	s.until("ready")
	s.typed("echo $((6*7))-$PWD-$WHO\n")
	if shown, _ := s.until("42-/tmp-it's me"); !strings.Contains(shown, "42-/tmp-it's me") {
		t.Errorf("a session's terminal shows %q", shown)
	}
	s.conn.Close()
	s = w.terminal("/pty?session=stays")
	s.typed("echo again $((7*7))\n")
	if shown, _ := s.until("again 49"); !strings.Contains(shown, "42-/tmp-it's me") {
		t.Errorf("who comes back sees %q", shown)
	}
	s.typed("sleep 303 & sleep 302 &\n")
	if _, _, end := w.exec(map[string]any{"argv": []string{"sh", "-c", here}}); end != "exit 0" { // the control
		t.Fatal("the session's programs do not run")
	}
	if status, b := w.ask("DELETE", "/"+w.id+"/session/stays", nil); status != 200 {
		t.Errorf("ending it: %d %s", status, b)
	}
	if _, told := s.until(""); !strings.Contains(told, `"exit"`) {
		t.Errorf("the terminal of a session that is deleted: %q", told)
	}
	if _, _, end := w.exec(map[string]any{"argv": []string{"sh", "-c", gone}}); end != "exit 0" {
		t.Error("what a session's terminal ran goes on without it")
	}
}

// in runs a command in a session.
func (w *worker) in(sid string, argv ...string) (status int, text string) {
	w.t.Helper()
	body, err := json.Marshal(map[string]any{"argv": argv})
	if err != nil {
		w.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(w.t.Context(), "POST", w.s.URL+"/bridge/v1/sandbox/"+w.id+"/exec",
		bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	req.Header.Set("Session-Id", sid)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// testBridgeSessions: what one command of a session leaves, the next finds, and nobody else.
func testBridgeSessions(t *testing.T, w *worker) {
	t.Helper()
	var made struct {
		ID string `json:"id"`
	}
	if status, b := w.ask("POST", "/"+w.id+"/session", nil); status != 200 || json.Unmarshal(b, &made) != nil ||
		made.ID == "" {
		t.Fatalf("a session without wishes: %d %s", status, b)
	}
	if status, b := w.ask("POST", "/"+w.id+"/session",
		strings.NewReader(`{"id":"two","env":{"A":"two"}}`)); status != 200 {
		t.Fatalf("%d %s", status, b)
	}
	for _, argv := range [][]string{{"cd", "/tmp"}, {"export", "A=it's; $(echo one)\nline"}, {"false"}} {
		if status, text := w.in(made.ID, argv...); status != 200 || !strings.Contains(text, "exit_code") {
			t.Errorf("%v: %d %s", argv, status, text)
		}
	}
	first, want := sessionSays(t, w, made.ID), "it's; $(echo one)\nline|/tmp|3"
	if first != want {
		t.Errorf("the session says %q, want %q", first, want)
	}
	if other := sessionSays(t, w, "two"); other != "two|/workspace|3" {
		t.Errorf("the other session says %q", other)
	}
	if out, _, _ := w.exec(map[string]any{"argv": []string{"sh", "-c",
		"echo ${A-none}; pwd"}}); out != "none\n/workspace\n" {
		t.Errorf("without a session: %q", out)
	}
	if status := w.call("POST", "/sandboxes/"+w.id+"/pause", `{"memory":false}`, nil); status != http.StatusNoContent {
		t.Fatalf("pausing: %d", status)
	}
	if again := sessionSays(t, w, made.ID); again != want {
		t.Errorf("after a pause without memory it says %q", again)
	}
	for _, c := range []struct {
		method, path, body string
		want               int
	}{{"POST", "", `{"id":"two"}`, 409}, {"POST", "", `{"id":"../two"}`, 400}, {"POST", "", `{"env":{"A-B":"x"}}`,
		400}, {"POST", "", `{`, 400},
		{"POST", "", `{"id":"astray","cwd":"/nowhere"}`, 400}, {"POST", "", `{"id":"astray","cwd":"/etc/passwd"}`,
			400}, {"DELETE", "/astray", "", 404},
		{"POST", "", `{"id":"astray","cwd":"/tmp"}`, 200}, {"DELETE", "/astray", "", 200},
		{"DELETE", "/two", "", 200}, {"DELETE", "/two", "", 404}, {"DELETE", "/a%2Fb", "", 400}} {
		if status, b := w.ask(c.method, "/"+w.id+"/session"+c.path, strings.NewReader(c.body)); status != c.want {
			t.Errorf("%s %s %s: %d %s, want %d", c.method, c.path, c.body, status, b, c.want)
		}
	}
	if status, _ := w.in("two", "true"); status != 404 {
		t.Errorf("a command in a session that is gone: %d", status)
	}
}

// sessionSays is a session's variable and directory, and the exit code of the command that asks, as one line.
func sessionSays(t *testing.T, w *worker, sid string) string {
	t.Helper()
	status, text := w.in(sid, "sh", "-c", `printf '%s|%s' "$A" "$PWD" > "$HOME/says"; exit 3`)
	code := ""
	if _, after, ok := strings.Cut(text, `"exit_code":`); ok {
		code = after[:1]
	}
	if status != 200 {
		t.Fatalf("asking a session: %d %s", status, text)
	}
	out, _, _ := w.exec(map[string]any{"argv": []string{"sh", "-c", `cat "$HOME/says"`}})
	return out + "|" + code
}

// testBridgeTunnel: a port is everybody's while it has a tunnel, and nobody's before and after.
func testBridgeTunnel(t *testing.T, w *worker) {
	t.Helper()
	if status, b := w.ask("POST", "/"+w.id+"/tunnel/8765", nil); status != 409 {
		t.Errorf("a tunnel to nothing: %d %s", status, b)
	}
	for _, own := range []string{"3128", "03128", "53"} {
		if status, b := w.ask("POST", "/"+w.id+"/tunnel/"+own, nil); status != 403 ||
			!strings.Contains(string(b), "Outboard's own") {
			t.Errorf("a tunnel to a port of Outboard's own, %s: %d %s", own, status, b)
		}
	}
	s := w.terminal("/pty")
	s.until("ready")
	s.typed("cd /tmp && python3 -m http.server 8765\n")
	s.until("Serving")
	visit := func() int {
		req, err := http.NewRequestWithContext(t.Context(), "GET", w.s.E2BURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "8765-" + w.id + ".localhost"
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	if got := visit(); got != 403 {
		t.Errorf("without a tunnel: %d", got)
	}
	var made struct {
		Port     int    `json:"port"`
		URL      string `json:"url"`
		Hostname string `json:"hostname"`
	}
	if status, b := w.ask("POST", "/"+w.id+"/tunnel/8765", nil); status != 200 || json.Unmarshal(b, &made) != nil {
		t.Fatalf("a tunnel: %d %s", status, b)
	}
	if want := "8765-" + w.id + ".localhost:"; made.Port != 8765 || !strings.HasPrefix(made.Hostname, want) ||
		made.URL != "http://"+made.Hostname {
		t.Errorf("a tunnel: %+v", made)
	}
	if got := visit(); got != 200 {
		t.Errorf("by the tunnel: %d", got)
	}
	if status, _ := w.ask("DELETE", "/"+w.id+"/tunnel/8765", nil); status != 204 {
		t.Errorf("closing it: %d", status)
	}
	if got := visit(); got != 403 {
		t.Errorf("after the tunnel: %d", got)
	}
	for path, want := range map[string]int{"/tunnel/0": 400, "/tunnel/x": 400, "/tunnel/70000": 400, "/mount": 501} {
		if status, b := w.ask("POST", "/"+w.id+path, nil); status != want {
			t.Errorf("%s: %d %s", path, status, b)
		}
	}
}
