//go:build linux

package sshd_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/outboardtest"
	"github.com/outboard-dev/outboard/internal/sshd"
	"github.com/outboard-dev/outboard/internal/store"
	"golang.org/x/crypto/ssh"
)

// rig is a server with an SSH door, one box, and a person's OpenSSH with a registered key.
type rig struct {
	*testing.T
	*outboardtest.Server
	api  *client.Client
	dir  string
	port string
	box  string
	key  client.SSHKey
}

// need finds a program of the machine. In CI one that is missing is a failure.
func need(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is missing: make deps installs it", name)
			}
			t.Skipf("SKIPPED: %s is missing: make deps installs it", name)
		}
	}
}

func start(t *testing.T) *rig { return startWith(t, outboardtest.Options{}) }

func startWith(t *testing.T, opt outboardtest.Options) *rig {
	t.Helper()
	need(t, "ssh", "ssh-keygen")
	r := &rig{T: t, Server: outboardtest.Start(t, opt), dir: t.TempDir()}
	host, made, err := sshd.HostKey(filepath.Join(r.dir, "host"))
	if err != nil || !made {
		t.Fatalf("making a host key: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := sshd.New(sshd.Config{Control: r.Control, HostKey: host})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	_, r.port, _ = net.SplitHostPort(l.Addr().String())
	r.write("known", "[127.0.0.1]:"+r.port+" "+string(ssh.MarshalAuthorizedKey(host.PublicKey())))
	r.api = r.as(r.Key)
	r.key = r.register(r.api, "id")
	r.box = r.newBox(r.api)
	return r
}

func (r *rig) write(name, text string) string {
	r.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
	return path
}

// as is the API for the holder of a secret.
func (r *rig) as(secret string) *client.Client {
	r.Helper()
	c, err := client.New(client.Config{URL: r.URL, Key: secret})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(c.Close)
	return c
}

// register makes a key pair and registers its public half.
func (r *rig) register(c *client.Client, name string) client.SSHKey {
	r.Helper()
	k, err := c.AddSSHKey(r.Context(), name, r.keygen(name), 0)
	if err != nil {
		r.Fatal(err)
	}
	return k
}

func (r *rig) keygen(name string) (public string) {
	r.Helper()
	path := filepath.Join(r.dir, name)
	if out, err := exec.CommandContext(r.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path).
		CombinedOutput(); err != nil {
		r.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
	b, err := os.ReadFile(path + ".pub")
	if err != nil {
		r.Fatal(err)
	}
	return string(b)
}

func (r *rig) newBox(c *client.Client) string {
	r.Helper()
	b, err := c.CreateBox(r.Context(), map[string]any{"timeout_seconds": 600})
	if err != nil {
		r.Fatal(err)
	}
	return b.ID
}

// options are those of every OpenSSH program.
func (r *rig) options(key string) []string {
	return []string{"-F", os.DevNull, "-i", filepath.Join(r.dir, key), "-o", "IdentitiesOnly=yes", "-o",
		"BatchMode=yes",
		"-o", "UserKnownHostsFile=" + filepath.Join(r.dir, "known"), "-o", "StrictHostKeyChecking=yes", "-o", "Port=" +
			r.port}
}

// result is what a program left.
type result struct {
	out, errs string
	code      int
}

// run runs a program of the machine.
func (r *rig) run(stdin string, name string, args ...string) result {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited || ctx.Err() != nil {
		r.Fatalf("%s %v: %v\n%s", name, args, err, errs.String())
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// ssh runs ssh with the rig's key, or another.
func (r *rig) ssh(key, stdin, target string, args ...string) result {
	r.Helper()
	return r.run(stdin, "ssh", append(append(r.options(key), target+"@127.0.0.1"), args...)...)
}

func (r *rig) mustRun(stdin, name string, args ...string) string {
	r.Helper()
	res := r.run(stdin, name, args...)
	if res.code != 0 {
		r.Fatalf("%s %v: exit %d\n%s%s", name, args, res.code, res.out, res.errs)
	}
	return res.out
}

// Fails if what a person types does not run, or its exit, its two outputs, its input or its signals get lost or mixed.
func TestExec(t *testing.T) {
	r := start(t)
	if got := r.ssh("id", "", r.box, "echo out; echo problem >&2; exit 7"); got.code != 7 || got.out != "out\n" ||
		got.errs != "problem\n" {
		t.Errorf("a command: %+v", got)
	}
	if got := r.ssh("id", "", r.box, "true"); got.code != 0 || got.out+got.errs != "" {
		t.Errorf("true: %+v", got)
	}
	if got := r.ssh("id", "", r.box, "no-such-program"); got.code != 127 || !strings.Contains(got.errs, "not found") {
		t.Errorf("a program that is not there: %+v", got)
	}
	big := strings.Repeat("0123456789abcde\n", 128<<10) // 2 MiB, many windows
	if got := r.ssh("id", big, r.box, "cat"); got.code != 0 || got.out != big {
		t.Errorf("cat: exit %d, %d of %d bytes, %s", got.code, len(got.out), len(big), got.errs)
	}
	if got := r.ssh("id", big, r.box, "head -c 5"); got.code != 0 || got.out != "01234" {
		t.Errorf("a program that does not read its input to the end: %+v", got)
	}
	if got := r.ssh("id", "", r.box, "kill -TERM $$"); got.code != 255 || !strings.Contains(got.errs, "") {
		t.Errorf("a program that a signal ended: %+v", got)
	}
	if got := r.ssh("id", "echo shell $((6*7))\nexit 3\n", r.box); got.code != 3 ||
		!strings.Contains(got.out, "shell 42") {
		t.Errorf("a shell: %+v", got)
	}
}

// Fails if a terminal is none, has another size than the person's, does not follow it, or if variables beyond
// those of language get in.
func TestTerminal(t *testing.T) {
	r := start(t)
	if got := r.ssh("id", "", r.box, "-tt", "test -t 0 && test -t 1 && echo a terminal"); !strings.Contains(got.out,
		"a terminal") {
		t.Errorf("-tt: %+v", got)
	}
	s := r.session()
	if err := s.RequestPty("xterm", 33, 101, ssh.TerminalModes{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Setenv("LC_TIME", "C"); err != nil {
		t.Errorf("LC_TIME: %v", err)
	}
	for _, name := range []string{"LD_PRELOAD", "PATH", "BASH_ENV", "LC_A=B"} {
		if s.Setenv(name, "x") == nil {
			t.Errorf("%s was taken", name)
		}
	}
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out := newWatched()
	s.Stdout = out
	if err := s.Start(`trap 'echo size $(stty size)' WINCH; trap 'echo got USR1' USR1; echo size $(stty size) $TERM $LC_TIME; while read line; do echo "line $line"; done; echo over`); err != nil {
		t.Fatal(err)
	}
	out.await(t, "size 33 101 xterm C")
	if err := s.WindowChange(44, 120); err != nil {
		t.Fatal(err)
	}
	out.nudged(t, in, "size 44 120")
	if err := s.Signal(ssh.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	out.nudged(t, in, "got USR1")
	in.Close() // the end of a terminal's input is a key
	out.await(t, "over")
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
}

// session opens one as a program would.
func (r *rig) session() *ssh.Session {
	r.Helper()
	s, err := r.dial().NewSession()
	if err != nil {
		r.Fatal(err)
	}
	return s
}

func (r *rig) dial() *ssh.Client {
	r.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, "id"))
	if err != nil {
		r.Fatal(err)
	}
	key, err := ssh.ParsePrivateKey(b)
	if err != nil {
		r.Fatal(err)
	}
	c, err := ssh.Dial("tcp", "127.0.0.1:"+r.port, &ssh.ClientConfig{User: r.box,
		Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { c.Close() })
	return c
}

// Fails if scp, sftp or rsync do not bring the same bytes, modes and trees, either way.
func TestCopies(t *testing.T) {
	need(t, "scp", "sftp", "rsync")
	r := start(t)
	tree := filepath.Join(r.dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "deep", "er"), 0o755); err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("all work and no play\n", 200_000) // 4 MB
	r.write("tree/big", big)
	r.write("tree/deep/er/a name with spaces", "x")
	if err := os.WriteFile(filepath.Join(tree, "program"), []byte("#!/bin/sh\necho ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	at := r.box + "@127.0.0.1:"
	diff := func(what, copied string) {
		t.Helper()
		r.mustRun("", "diff", "-r", tree, filepath.Join(r.dir, copied))
		if fi, err := os.Stat(filepath.Join(r.dir, copied, "program")); err != nil || fi.Mode().Perm() != 0o755 {
			t.Errorf("%s: the program came back as %v, %v", what, fi, err)
		}
	}
	scp := append(r.options("id"), "-s", "-r", "-p")
	r.mustRun("", "scp", append(scp, tree, at+"by-scp")...)
	if got := r.ssh("id", "", r.box, "./by-scp/program; ls -R ~ | wc -l"); !strings.HasPrefix(got.out, "ran\n") {
		t.Errorf("what scp brought: %+v", got)
	}
	r.mustRun("", "scp", append(scp, at+"by-scp", filepath.Join(r.dir, "scp-back"))...)
	diff("scp", "scp-back")

	batch := "mkdir d\nput -r " + tree + " d/by-sftp\nchmod 600 d/by-sftp/big\nls -l d/by-sftp\nrename d/by-sftp " +
		"d/moved\nsymlink moved d/link\nget -rp d/moved " +
		filepath.Join(r.dir, "sftp-back") + "\nrm d/link\ndf d\nreget d/moved/big " +
		filepath.Join(r.dir, "sftp-back/big") + "\n"
	out := r.mustRun(batch, "sftp", append(r.options("id"), "-b", "-", r.box+"@127.0.0.1")...)
	if !strings.Contains(out, "-rw-------") {
		t.Errorf("sftp: %s", out)
	}
	if err := os.Chmod(filepath.Join(r.dir, "sftp-back/program"), 0o755); err != nil { // put without -p keeps no modes
		t.Fatal(err)
	}
	diff("sftp", "sftp-back")
	if res := r.run("get none\n", "sftp", append(r.options("id"), "-b", "-", r.box+"@127.0.0.1")...); res.code == 0 {
		t.Errorf("getting what is not there: %+v", res)
	}

	shell := "ssh " + strings.Join(r.options("id"), " ")
	r.mustRun("", "rsync", "-a", "-e", shell, tree+"/", at+"by-rsync/")
	r.mustRun("", "rsync", "-a", "-e", shell, at+"by-rsync/", filepath.Join(r.dir, "rsync-back")+"/")
	diff("rsync", "rsync-back")
}

// Fails if a box that is paused is not woken by a visitor, as by any other use.
func TestWake(t *testing.T) {
	r := start(t)
	r.mustRun("", "ssh", append(r.options("id"), r.box+"@127.0.0.1", "echo kept > note")...)
	if _, err := r.Control.PauseBox(t.Context(), r.admin(), outboard.BoxID(r.box), false); err != nil {
		t.Fatal(err)
	}
	if got := r.ssh("id", "", r.box, "cat note"); got.out != "kept\n" {
		t.Errorf("after a pause: %+v", got)
	}
	if b, err := r.Control.Box(t.Context(), r.admin(), outboard.BoxID(r.box)); err != nil ||
		b.State != outboard.BoxRunning {
		t.Errorf("the box is %s, %v", b.State, err)
	}
}

// Fails if who is in a sandbox that is paused is told about connections and machines of the server's, which they
// do not know.
func TestPausedMeanwhile(t *testing.T) {
	r := start(t)
	s := r.session()
	out, said := newWatched(), newWatched()
	s.Stdout, s.Stderr = out, said
	if err := s.Start("echo up; sleep 600"); err != nil {
		t.Fatal(err)
	}
	out.await(t, "up")
	if _, err := r.Control.PauseBox(t.Context(), r.admin(), outboard.BoxID(r.box), false); err != nil {
		t.Fatal(err)
	}
	if err, ok := errors.AsType[*ssh.ExitError](s.Wait()); !ok || err.ExitStatus() != 255 {
		t.Errorf("the program ends with %v", err)
	}
	if got := said.b.String(); got != "outboard: the sandbox was paused, or has ended\r\n" {
		t.Errorf("its visitor is told %q", got)
	}
}

func (r *rig) admin() outboard.Caller {
	r.Helper()
	by, err := r.Control.Authenticate(r.Context(), r.Key)
	if err != nil {
		r.Fatal(err)
	}
	return by
}

// putKey makes an API key, and returns the API for its holder.
func (r *rig) putKey(secret string, k outboard.Key) *client.Client {
	r.Helper()
	k.ID, k.Name, k.Hash, k.CreatedAt = outboard.NewID[outboard.KeyID](outboard.PrefixKey), secret, control.HashSecret(secret), time.Now()
	if err := r.Store.PutKey(r.Context(), k); err != nil {
		r.Fatal(err)
	}
	return r.as(secret)
}

// Fails if anybody gets in who may not use the box by the API, or if a refusal tells strangers whether a box is there.
func TestRefused(t *testing.T) {
	r := start(t)
	org := outboard.Organization{ID: outboard.NewID[outboard.OrgID](outboard.PrefixOrg), Name: "second",
		CreatedAt: time.Now()}
	if err := r.Store.AddOrg(t.Context(), org); err != nil {
		t.Fatal(err)
	}
	stranger := r.putKey("obk_stranger", outboard.Key{Org: org.ID, Role: outboard.RoleAdmin})
	r.register(stranger, "stranger")
	theirs := r.newBox(stranger)
	r.keygen("unknown")
	r.register(r.putKey("obk_dev", outboard.Key{Org: outboard.DefaultOrg, Role: outboard.RoleDeveloper}), "dev")
	r.register(r.putKey("obk_limited", outboard.Key{Org: outboard.DefaultOrg, Role: outboard.RoleDeveloper,
		Scopes: []string{"sandboxes"}}), "limited")
	if _, err := r.putKey("obk_viewer", outboard.Key{Org: outboard.DefaultOrg, Role: outboard.RoleViewer}).
		AddSSHKey(t.Context(), "v", r.keygen("viewer"), 0); outboard.KindOf(err) != outboard.Denied {
		t.Errorf("a viewer registers a key: %v", err)
	}
	demoted := r.user("demoted", outboard.RoleDeveloper)
	if got := r.ssh("demoted", "", r.box, "echo in"); got.out != "in\n" {
		t.Fatalf("a developer: %+v", got)
	}
	if _, err := r.Control.UpdateUser(t.Context(), r.admin(), demoted,
		control.UserPatch{Role: new(outboard.RoleViewer)}); err != nil {
		t.Fatal(err)
	}
	session := string(r.newSession())
	random := string(outboard.NewBoxID())
	var first string
	for _, c := range []struct{ who, key, target string }{
		{"a key nobody registered", "unknown", r.box}, {"a foreign box", "id", theirs}, {"a box that never was", "id",
			random},
		{"another organization's key", "stranger", r.box}, {"a name that is no id", "id",
			"root"}, {"one who is a viewer by now", "demoted", r.box},
		{"a key that may not use sessions, at one", "limited", session}, {"a session that never was", "id",
			session[:len(session)-4] + "aaaa"},
	} {
		got := r.ssh(c.key, "", c.target, "echo in")
		said := strings.ReplaceAll(got.errs, c.target, "TARGET")
		if got.code != 255 || got.out != "" || !strings.Contains(said, "Permission denied") {
			t.Errorf("%s: %+v", c.who, got)
		}
		if first == "" {
			first = said
		}
		if said != first {
			t.Errorf("%s is told %q, and others %q", c.who, said, first)
		}
	}
	// the same, where they may
	for _, c := range [][2]string{{"id", r.box}, {"dev", r.box}, {"limited", r.box}, {"stranger", theirs},
		{"dev", session}} {
		if got := r.ssh(c[0], "", c[1], "echo in"); got.out != "in\n" {
			t.Errorf("%s at %s: %+v", c[0], c[1], got)
		}
	}
}

// user adds a person who has signed in and registered a key.
func (r *rig) user(name, role string) outboard.UserID {
	r.Helper()
	u, err := r.Control.AddUser(r.Context(), r.admin(), name+"@a.test", name, role)
	if err != nil {
		r.Fatal(err)
	}
	r.register(r.putKey("obk_"+name, outboard.Key{Org: outboard.DefaultOrg, Role: role, Kind: outboard.KeyLogin,
		User: u.ID}), name)
	return u.ID
}

func (r *rig) newSession() outboard.SessionID {
	r.Helper()
	a, err := r.Control.CreateAgent(r.Context(), r.admin(), outboard.Agent{Name: "a",
		Model: outboard.ModelConfig{ID: "script/steps"}})
	if err != nil {
		r.Fatal(err)
	}
	e, err := r.Control.CreateEnvironment(r.Context(), r.admin(), control.EnvironmentPatch{Name: new("e")})
	if err != nil {
		r.Fatal(err)
	}
	s, err := r.Control.CreateSession(r.Context(), r.admin(), control.SessionRequest{Agent: a.ID, EnvironmentID: e.ID})
	if err != nil {
		r.Fatal(err)
	}
	return s.ID
}

// Fails if whoever lost the right to be there stays for longer than a second, or leaves their program behind.
func TestCut(t *testing.T) {
	for name, c := range map[string]struct {
		key string
		cut func(*testing.T, *rig) error
	}{
		"ssh key revoked": {"id", func(t *testing.T, r *rig) error {
			_, err := r.api.RevokeSSHKey(t.Context(), r.key.ID)
			return err
		}},
		"api key revoked": {"dev", func(t *testing.T, r *rig) error {
			k, err := r.Store.KeyByHash(t.Context(), control.HashSecret("obk_dev"))
			if err == nil {
				_, _, err = r.Control.RevokeKey(t.Context(), r.admin(), k.ID, false)
			}
			return err
		}},
		"person removed": {"person", func(t *testing.T, r *rig) error {
			users, err := r.Control.Users(t.Context(), r.admin(), control.Page{Limit: 9})
			if err == nil {
				_, err = r.Control.RemoveUser(t.Context(), r.admin(), users[0].ID)
			}
			return err
		}},
		"kill switch": {"id", func(t *testing.T, r *rig) error {
			return r.Store.PutKill(t.Context(), outboard.Kill{ID: outboard.NewID[outboard.KillID](outboard.PrefixKill),
				Scope: outboard.KillAll, Level: outboard.KillPause, At: time.Now()})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t)
			r.register(r.putKey("obk_dev", outboard.Key{Org: outboard.DefaultOrg, Role: outboard.RoleDeveloper}), "dev")
			r.user("person", outboard.RoleDeveloper)
			cmd := exec.CommandContext(t.Context(), "ssh", append(r.options(c.key), r.box+"@127.0.0.1",
				"echo pid $$; exec sleep 600")...)
			out := newWatched()
			cmd.Stdout = out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			pid := out.number(t, "pid ")
			begun := time.Now()
			if err := c.cut(t, r); err != nil {
				t.Fatal(err)
			}
			<-ended
			took := time.Since(begun)
			t.Logf("cut after %v", took)
			if took > time.Second {
				t.Errorf("the connection lived on for %v", took)
			}
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for until := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil; <-tick.C {
				if time.Now().After(until) {
					t.Fatal("the program was left behind")
				}
			}
			if got := r.ssh(c.key, "", r.box, "echo in"); got.code != 255 || got.out != "" {
				t.Errorf("afterwards: %+v", got)
			}
		})
	}
}

// Broken if who has no key that opens anything is refused without a record, or more than one a minute has one.
func TestSSHStrangersAreOnRecord(t *testing.T) {
	r := start(t)
	strangers := func() (n int) {
		rows, err := r.Store.AuditRecords(t.Context(), store.AuditQuery{Action: "api.refused"})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range rows {
			if a.Resource == "ssh" && a.Actor == "stranger" && a.Decision == outboard.Refused {
				n++
			}
		}
		return n
	}
	if got := r.ssh("id", "", r.box, "echo in"); got.out != "in\n" || strangers() != 0 {
		t.Errorf("control: %+v, %d records", got, strangers())
	}
	r.keygen("unknown")
	for range 2 {
		if got := r.ssh("unknown", "", r.box, "echo in"); got.code != 255 {
			t.Errorf("a key that nobody registered: %+v", got)
		}
	}
	// written once the client has gone
	for end := time.Now().Add(10 * time.Second); strangers() == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if n := strangers(); n != 1 {
		t.Errorf("%d records", n)
	}
}
