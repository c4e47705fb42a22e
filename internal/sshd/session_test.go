//go:build linux

package sshd_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/sshd"
	"golang.org/x/crypto/ssh"
)

// watched is output that somebody waits for.
type watched struct {
	mu   sync.Mutex
	b    bytes.Buffer
	news chan struct{} // capacity 1
}

func newWatched() *watched { return &watched{news: make(chan struct{}, 1)} }

// Write implements io.Writer.
func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Write(p)
	select {
	case w.news <- struct{}{}:
	default:
	}
	return len(p), nil
}

// await returns the output once the text is in it.
func (w *watched) await(t *testing.T, text string) string {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		w.mu.Lock()
		got := w.b.String()
		w.mu.Unlock()
		if strings.Contains(got, text) {
			return got
		}
		select {
		case <-w.news:
		case <-late:
			t.Fatalf("%q did not come: %q", text, got)
		}
	}
}

// nudged is await while lines are written to a shell that waits for them: it runs a trap only when its read has
// ended, and a signal may come to it after a line that was sent later.
func (w *watched) nudged(t *testing.T, in io.Writer, text string) {
	t.Helper()
	var nudges sync.WaitGroup
	defer nudges.Wait()
	stop := make(chan struct{})
	defer close(stop)
	nudges.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := io.WriteString(in, "nudge\n"); err != nil {
				return
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	w.await(t, text)
}

// number awaits a line that begins with a word, and returns the number after it.
func (w *watched) number(t *testing.T, word string) int {
	t.Helper()
	w.await(t, word)
	w.await(t, "\n")
	m := regexp.MustCompile(word + `(\d+)`).FindStringSubmatch(w.await(t, "\n"))
	if m == nil {
		t.Fatalf("no number after %q", word)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// Fails if a visitor and the agent are not in the same sandbox, if a session without one gets none, or if its
// log does not say so.
func TestSession(t *testing.T) {
	r := start(t)
	id := r.newSession()
	if got := r.ssh("id", "", string(id), "echo left by hand > note; pwd"); got.code != 0 {
		t.Fatalf("a session that has no sandbox yet: %+v", got)
	}
	if got := r.ssh("id", "", string(id), "cat note"); got.out != "left by hand\n" {
		t.Errorf("the second visit: %+v", got)
	}
	events, err := r.Control.Events(t.Context(), r.admin(), id, control.EventQuery{Limit: 100,
		Types: []outboard.EventType{outboard.TypeSandboxReady}})
	if err != nil || len(events) != 1 {
		t.Errorf("the log has %d sandboxes, %v", len(events), err)
	}
}

// Fails if something happens over SSH that is not in the audit, or a refusal of a registered key is not.
func TestAudited(t *testing.T) {
	r := start(t)
	r.ssh("id", "", r.box, "echo secret-plan")
	r.run("ls\n", "sftp", append(r.options("id"), "-b", "-", r.box+"@127.0.0.1")...)
	r.register(r.putKey("obk_files", outboard.Key{Org: outboard.DefaultOrg, Role: outboard.RoleDeveloper,
		Scopes: []string{"sandboxes"}}), "files")
	r.ssh("files", "", string(r.newSession()), "true")
	rows, err := r.Control.Audit(t.Context(), r.admin(), control.AuditQuery{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&text, "%s %s %s %s\n", row.Action, row.Resource, row.Decision, row.Detail)
	}
	for _, want := range []string{"ssh_key.add sshkey_", "ssh.connect " + r.box + " allow", "ssh.exec " + r.box +
		" allow", "secret-plan", "ssh.sftp " + r.box, "ssh.connect sesn_"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the audit lacks %q:\n%s", want, text.String())
		}
	}
	if !regexp.MustCompile(`ssh.connect sesn_\w+ deny`).MatchString(text.String()) {
		t.Errorf("the refusal is not in the audit:\n%s", text.String())
	}
}

// Fails if a port of the sandbox cannot be reached by -L, a program there does not learn that its client has
// said all, or anything else can be reached.
func TestForward(t *testing.T) {
	r := start(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // a bare sandbox's loopback is this machine's
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			said, _ := io.ReadAll(c)
			io.WriteString(c, "from inside: "+string(said))
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, c := range []struct {
		to, want string
	}{{"localhost:" + port, "from inside: hello"}, {"127.0.0.1:" + port, "from inside: hello"}, {"10.0.0.1:80",
		""}, {"example.com:443", ""}, {"169.254.169.254:80", ""}} {
		got := r.run("hello", "ssh", append(r.options("id"), "-W", c.to, r.box+"@127.0.0.1")...)
		if got.out != c.want || c.want == "" && !strings.Contains(got.errs, "only ports of the sandbox") {
			t.Errorf("-W %s: %+v", c.to, got)
		}
	}
	if _, err := r.dial().Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("a client may listen on the server")
	}
}

// Fails if a hostile client breaks the server, keeps its places, or gets what is refused to everybody.
func TestHostile(t *testing.T) {
	r := start(t)
	raw := func(text string) net.Conn {
		c, err := net.Dial("tcp", "127.0.0.1:"+r.port)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, text)
		return c
	}
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("A", 1<<20), "SSH-1.5-old\r\n",
		"SSH-2.0-x\r\n\xff\xff\xff\xff\x00garbage", "SSH-2.0-x\r\n\x00\x00\x00\x00", "SSH-2.0-x\r\n\x00\x00\x00\x0c\x0a\x14AAAAAAAAAAAAAAAA"} {
		raw(text).Close()
	}
	var held []net.Conn
	for range 40 { // more than one address may have in its handshake
		held = append(held, raw("SSH-2.0-slow\r\n"))
	}
	in := 0 // which of them depends on when those before have gone
	for _, c := range held {
		c.SetReadDeadline(time.Now().Add(time.Minute))
		switch n, err := c.Read(make([]byte, 1)); {
		case n > 0:
			in++
		case err != io.EOF && !strings.Contains(err.Error(), "reset"):
			t.Errorf("a connection over the limit is not closed: %v", err)
		}
	}
	if in == 0 || in > 16 {
		t.Errorf("%d connections of one address are in their handshake", in)
	}
	for _, c := range held {
		c.Close()
	}
	r.settle()

	c := r.dial()
	for _, kind := range []string{"x11", "auth-agent@openssh.com", "forwarded-tcpip", "tun@openssh.com",
		strings.Repeat("z", 10000)} {
		if _, _, err := c.OpenChannel(kind, nil); err == nil {
			t.Errorf("a channel %.20q was opened", kind)
		}
	}
	if _, _, err := c.OpenChannel("direct-tcpip", []byte{1, 2, 3}); err == nil {
		t.Error("a channel to nowhere was opened")
	}
	for _, host := range []string{"127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1", "0.0.0.0", "127.0.0.2", "127.1",
		"198.18.0.1", "LOCALHOST"} {
		for _, port := range []int{3128, 53} {
			conn, err := c.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
			if err == nil {
				conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "Outboard's own") &&
				!strings.Contains(err.Error(), "only ports of the sandbox itself") {
				t.Errorf("port %d of %s, which is Outboard's own: %v", port, host, err)
			}
		}
	}
	for _, req := range []struct{ kind, payload string }{{"exec", "\xff\xff\xff\xff"}, {"exec", ""},
		{"subsystem", "\x00\x00\x00\x05shell"}, {"pty-req", "x"}, {"window-change", ""},
		{"signal", "\x00\x00\x00\x03FOO"}, {"env", "\x00"}, {"x11-req", ""}, {"auth-agent-req@openssh.com",
			""}, {strings.Repeat("y", 20000), ""}} {
		ch, reqs, err := c.OpenChannel("session", nil)
		if err != nil {
			t.Fatal(err)
		}
		go ssh.DiscardRequests(reqs)
		if ok, err := ch.SendRequest(req.kind, true, []byte(req.payload)); ok || err != nil {
			t.Errorf("%.20q with %q: %v, %v", req.kind, req.payload, ok, err)
		}
		ch.Close()
	}
	open := 0
	for range 100 {
		if _, reqs, err := c.OpenChannel("session", nil); err == nil {
			go ssh.DiscardRequests(reqs)
			open++
		}
	}
	if open < 32 || open > 64 {
		t.Errorf("one connection opened %d sessions", open)
	}
	c.Close()
	if got := r.ssh("id", "", r.box, "echo still here"); got.out != "still here\n" {
		t.Errorf("after all that: %+v", got)
	}
}

// settle waits until the places of closed connections are free.
func (r *rig) settle() {
	r.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(10 * time.Second); ; <-tick.C {
		if got := r.ssh("id", "", r.box, "true"); got.code == 0 {
			return
		} else if time.Now().After(until) {
			r.Fatalf("nobody gets in any more: %+v", got)
		}
	}
}

// Fails if the host key changes from start to start, or is used though others could have read it.
func TestHostKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	first, made, err := sshd.HostKey(path)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	second, made, err := sshd.HostKey(path)
	if err != nil || made || !bytes.Equal(first.PublicKey().Marshal(), second.PublicKey().Marshal()) {
		t.Errorf("the second start: made %v, %v", made, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sshd.HostKey(path); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("a key that everybody may read: %v", err)
	}
	if err := os.WriteFile(path, []byte("none"), 0o600); err != nil || os.Chmod(path, 0o600) != nil {
		t.Fatal(err)
	}
	if _, _, err := sshd.HostKey(path); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("a file that is no key: %v", err)
	}
}
