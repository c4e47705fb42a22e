package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/spf13/cobra"
)

// A name that differed between machines, or meant two sessions, would send somebody's words to the wrong one.
func TestSessionNames(t *testing.T) {
	if got := sessionName("sesn_01DsQnvsBgUc4mrDPPdhMKB6"); got != sessionName("sesn_01DsQnvsBgUc4mrDPPdhMKB6") ||
		!nameRE.MatchString(got) {
		t.Errorf("name = %q", got)
	}
	for _, words := range []string{adjectives, nouns} {
		seen := map[string]bool{}
		for w := range strings.FieldsSeq(words) {
			if seen[w] {
				t.Errorf("%q is there twice", w)
			}
			seen[w] = true
		}
		if len(seen) != 64 {
			t.Errorf("%d words, want 64", len(seen))
		}
	}
}

// Who misspells a name must learn where the names are, and nothing else, or something better, must be hidden by that.
func TestOrListed(t *testing.T) {
	none := outboard.Errorf(outboard.NotFound, "there is no key \"x\"")
	for _, c := range []struct {
		err  error
		hint string
	}{{none, "outboard key ls"}, {none.WithHint("100%% better"), "100% better"}, {outboard.Errorf(outboard.Denied,
		"no"), ""}, {errors.New("x"), ""}} {
		if got := orListed(c.err, "outboard key ls"); got.Error() != c.err.Error() ||
			outboard.KindOf(got) != outboard.KindOf(c.err) || outboard.HintOf(got) != c.hint {
			t.Errorf("%v: %v, hint %q", c.err, got, outboard.HintOf(got))
		}
	}
	if orListed(nil, "x") != nil {
		t.Error("no error becomes one")
	}
}

// The beginning of a name must find its one session, and refuse to guess between two.
func TestPickSession(t *testing.T) {
	var all []client.Session
	for i := range 200 {
		all = append(all, client.Session{ID: fmt.Sprintf("sesn_01%04d", i)})
	}
	list := func(yield func(client.Session, error) bool) {
		for _, s := range all {
			if !yield(s, nil) {
				return
			}
		}
	}
	var seq iter.Seq2[client.Session, error] = list
	for _, ref := range []string{"sesn_010007", sessionName("sesn_010007")} {
		if s, err := pickSession(ref, seq); err != nil || s.ID != "sesn_010007" {
			t.Errorf("pick %q = %q, %v", ref, s.ID, err)
		}
	}
	if _, err := pickSession("sesn_01", seq); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("an ambiguous beginning: %v", err)
	}
	for _, ref := range []string{"", "nobody", "sesn_019"} {
		if _, err := pickSession(ref, seq); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("pick %q: %v", ref, err)
		}
	}
}

// Scripts branch on exit codes: each kind of failure has one, and it must not move.
func TestExitCodes(t *testing.T) {
	tests := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{outboard.Errorf(outboard.Internal, "x"), 1},
		{outboard.Errorf(outboard.Unavailable, "x"), 1},
		{outboard.Errorf(outboard.Invalid, "x"), 2},
		{outboard.Errorf(outboard.TooLarge, "x"), 2},
		{fmt.Errorf("wrapped: %w", outboard.Errorf(outboard.NotFound, "x")), 3},
		{outboard.Errorf(outboard.Unauthenticated, "x"), 4},
		{outboard.Errorf(outboard.Denied, "x"), 4},
		{outboard.Errorf(outboard.Conflict, "x"), 5},
		{&exitError{code: 6}, 6},
		{outboard.Errorf(outboard.Exhausted, "x"), 7},
		{noIsolation(errors.New("x")), 9},
		{context.DeadlineExceeded, 124},
		{&client.TransportError{URL: "x", Err: errors.New("x")}, 255},
	}
	for _, tt := range tests {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("exit code of %v = %d, want %d", tt.err, got, tt.want)
		}
	}
}

// Who never set OUTBOARD_URL must not be told to check it when the server that was found by itself goes away.
func TestTransportHint(t *testing.T) {
	for url, want := range map[string]string{"": "sessions go on once one runs",
		"http://127.0.0.1:1": "check OUTBOARD_URL"} {
		var errs bytes.Buffer
		a := &app{errs: &errs, started: true, env: func(string) string { return url }}
		code := a.finish(&cobra.Command{}, &client.TransportError{URL: "http://127.0.0.1:1",
			Err: errors.New("refused")})
		if code != exitTransport || !strings.Contains(errs.String(), "hint: ") ||
			!strings.Contains(errs.String(), want) {
			t.Errorf("with OUTBOARD_URL=%q: exit %d, said %q", url, code, errs.String())
		}
	}
}

// A private server that cannot go on must say why, once, and nothing else: it tries again every second.
func TestTroubleIsSaidOnce(t *testing.T) {
	for asJSON, want := range map[bool]string{
		false: "outboard: cannot go on: the disk is full\noutboard: other\n",
		true: `{"error":{"code":"trouble","message":"cannot go on: the disk is full","exit":0}}` + "\n" +
			`{"error":{"code":"trouble","message":"other","exit":0}}` + "\n",
	} {
		var errs bytes.Buffer
		a := &app{errs: &errs, json: asJSON, env: func(string) string { return "" }}
		log := a.privateLogger().With("session", "s")
		for range 3 {
			log.Info("working")
			log.Warn("slow", "err", errors.New("x"))
			log.Error("cannot go on", "worker", "w", "err", errors.New("the disk is full"))
		}
		log.Error("other")
		if errs.String() != want {
			t.Errorf("said %q, want %q", errs.String(), want)
		}
	}
}

// How calls ended must stand in one column, whatever the tool is called, and not beyond the edge of a narrow window.
func TestTimelineColumns(t *testing.T) {
	for _, tt := range []struct {
		width int
		what  string
		want  int
	}{{plainWidth, "ls", 79}, {plainWidth, strings.Repeat("x", 200), plainWidth - 6}, {60, "ls", 54}, {60,
		strings.Repeat("x", 200), 54}} {
		var out bytes.Buffer
		tl := &timeline{out: &out, width: tt.width, zone: time.UTC}
		for _, verb := range []string{"bash", "web_fetch", "a_tool_with_a_long_name"} {
			if err := tl.line(time.Time{}, verb, tt.what, "exit 0"); err != nil {
				t.Fatal(err)
			}
		}
		for line := range strings.Lines(out.String()) {
			if at := utf8.RuneCountInString(line[:strings.Index(line, "exit 0")]); at != tt.want {
				t.Errorf("at width %d the end is at %d, not %d: %q", tt.width, at, tt.want, line)
			}
		}
	}
}

// If this fails, the log says that it has the lines of an output that it has lost, or loses some where it has them all.
func TestTimelineMoreLines(t *testing.T) {
	long := strings.Repeat("x\n", shownOutput) + "the reason\n"
	for _, c := range []struct {
		text, want string
		cut        bool
	}{
		{strings.Repeat("x\n", 9) + long, "… 10 more lines before these\n", false}, // control
		{"y\n[5242880 of 9999999 bytes left out here; the whole output is in /f]\n" + long,
			"… 3 more lines before these, and between them 5.0 MiB that the log does not have\n", true},
		{"[... 2048 bytes left out ...]\n" + long, "… 2 more lines before these, and between them 2.0 KiB that the " +
			"log does not have\n", true},
		{"[... 2048 bytes left out ...]\n" + long, "… 2 more lines before these\n", false}, // a program's own words
		{long + "[... 2048 bytes left out ...]\n", "… 2 more lines before these\n", true},  // it is shown
	} {
		var out bytes.Buffer
		tl := &timeline{out: &out, width: plainWidth, zone: time.UTC}
		if err := tl.block(c.text, shownOutput, c.cut); err != nil || !strings.HasPrefix(out.String(), indent+c.want) {
			t.Errorf("cut %v: %v, %q..., want %q", c.cut, err, out.String()[:min(out.Len(), 120)], c.want)
		}
		if !strings.Contains(out.String(), "the reason\n") {
			t.Errorf("the end of the output is left out:\n%s", out.String())
		}
		tl.full = true
		out.Reset()
		if err := tl.block(c.text, shownOutput, c.cut); err != nil || strings.Count(out.String(),
			"\n") != strings.Count(c.text, "\n") {
			t.Errorf("a full log leaves something out, %v:\n%s", err, out.String())
		}
	}
}

// A listen address that means more than it says would put a server with one key onto the network.
func TestSplitListen(t *testing.T) {
	tests := []struct {
		in, full string
		loopback bool
	}{
		{":0", "127.0.0.1:0", true},
		{":7070", "127.0.0.1:7070", true},
		{"localhost:1", "localhost:1", true},
		{"[::1]:1", "[::1]:1", true},
		{"127.8.9.1:1", "127.8.9.1:1", true},
		{"0.0.0.0:1", "0.0.0.0:1", false},
		{"[::]:1", "[::]:1", false},
		{"10.0.0.1:1", "10.0.0.1:1", false},
		{"example.org:1", "example.org:1", false},
		{"localhost.example.org:1", "localhost.example.org:1", false},
	}
	for _, tt := range tests {
		full, loopback, err := splitListen(tt.in)
		if err != nil || full != tt.full || loopback != tt.loopback {
			t.Errorf("splitListen(%q) = %q, %v, %v", tt.in, full, loopback, err)
		}
	}
	for _, bad := range []string{"7070", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:http", "127.0.0.1:"} {
		if _, _, err := splitListen(bad); exitCode(err) != exitUsage {
			t.Errorf("splitListen(%q): %v, which exits with %d", bad, err, exitCode(err))
		}
	}
}

// server.json is a hint that may be stale: a key must not be sent to whoever has the port by now.
func TestReadAddress(t *testing.T) {
	dir := t.TempDir()
	if _, ok := readAddress(dir); ok {
		t.Error("an address was read from nowhere")
	}
	if err := publish(dir, address{URL: "http://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	if a, ok := readAddress(dir); !ok || a.URL != "http://127.0.0.1:1" {
		t.Errorf("own address = %+v, %v", a, ok)
	}
	stale := fmt.Sprintf(`{"url":"http://127.0.0.1:1","pid":%d,"start":"1","kernel":%q}`, os.Getpid(),
		server.KernelID())
	if err := writePrivate(addressPath(dir), stale); err != nil {
		t.Fatal(err)
	}
	if a, ok := readAddress(dir); !ok || a.Start == "1" {
		t.Errorf("beside a stale server.json the living server is %+v, %v", a, ok)
	}
	if err := os.RemoveAll(serversDir(dir)); err != nil {
		t.Fatal(err)
	}
	if _, ok := readAddress(dir); ok {
		t.Error("the address of another process with the same pid was taken")
	}
	if err := withdraw(dir); err != nil {
		t.Errorf("withdraw: %v", err)
	}
}

// A server that listens on every address must be found by its own machine under one of them.
func TestLocalURL(t *testing.T) {
	for in, want := range map[string]string{"http://127.0.0.1:1": "http://127.0.0.1:1",
		"http://0.0.0.0:1": "http://127.0.0.1:1",
		"http://[::]:1":    "http://[::1]:1", "https://example.org:1": "https://example.org:1"} {
		if got := localURL(in); got != want {
			t.Errorf("localURL(%q) = %q, want %q", in, got, want)
		}
	}
}

// An answer that is not clearly a yes must not let a command run.
func TestAnswers(t *testing.T) {
	ask := func() *question {
		return &question{call: &openCall{id: "sevt_1", name: "bash"}, approval: client.Approval{ID: "apr_1",
			Digest: "d", Request: "bash {}"}}
	}
	for line, want := range map[string]string{"y": "allow ", "YES": "allow ", " yes ": "allow ", "allow": "allow ",
		"n": "deny ", "no": "deny ",
		"no it is not safe": "deny it is not safe", "s": "allow session", "l": "later", "": "?", "yesterday": "?", "maybe y": "?", "yn": "?", "yes but": "?",
		"a": "rule agent", "always": "rule agent", "a lot": "?", "session": "allow session"} {
		q := ask()
		d, err := q.reply(line)
		got := "?"
		switch {
		case d.later:
			got = "later"
		case d.ans != nil && d.ans.Digest != "d":
			t.Errorf("%q: the answer is about the digest %q", line, d.ans.Digest)
		case d.ans != nil:
			got = d.ans.Result + " " + d.ans.Message + d.ans.Scope
		case q.scope != "":
			got = "rule " + q.scope
		}
		if got != want || (err != nil) != (want == "?") {
			t.Errorf("%q means %q, %v; want %q", line, got, err, want)
		}
	}
	q := ask()
	q.lines = []string{"1", "2"} // and none was shown
	if d, err := q.reply("y"); err == nil || d.ans != nil {
		t.Error("a request is allowed that was not shown to its end")
	}
	for _, several := range []client.Approval{{ID: "apr_1", Needs: 2}, {ID: "apr_1", Resource: "ls *"},
		{ID: "apr_1", Request: "custom:x {}"}} {
		q := &question{call: &openCall{}, approval: several}
		if d, err := q.reply("a"); err == nil || q.scope != "" || d.ans != nil {
			t.Errorf("%+v can be allowed for ever", several)
		}
	}
}

// What is approved must be seen: each line of it, and nothing in it can hide, or look like another argument.
func TestRequestLines(t *testing.T) {
	for _, c := range []struct{ request, want string }{
		{`bash {"command": "echo ok"}`, "bash|  command: echo ok"},
		{`bash {"command": "echo ok\nrm -rf x\n  timeout: 5", "timeout": 7}`,
			"bash|  command:|    echo ok|    rm -rf x|      timeout: 5|  timeout: 7"},
		{`bash {"command": "a\r\nb\rc\td\u001b[2J"}`, `bash|  command:|    a\r|    b\rc⇥   d\x1b[2J`},
		{`write {"content": "\x9b31m\U000e0041\u202e\\x41", "n": "5", "m": 5}`,
			`write|  content: \x9b31m\U000e0041\u202e\x41|  m: 5|  n: "5"`},
		{`x {"a": {"b": ["c\nd"]}}`, `x|  a: {"b":["c\nd"]}`},
		{"http.request\nhost x\r\ty", `http.request|host x\r⇥   y`},
		{`bash {"command`, `bash {"command`},
	} {
		if got := strings.Join(requestLines(c.request), "|"); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.request, got, c.want)
		}
	}
	rows := barred([]string{strings.Repeat("x", 100) + "allow? y"}, 60)
	for i, r := range rows {
		if utf8.RuneCountInString(r) > 60 || !strings.HasPrefix(r, []string{"  │ ", "  ┊ "}[min(i, 1)]) {
			t.Errorf("row %d reaches the edge: %q", i, r)
		}
	}
}
