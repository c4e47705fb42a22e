//go:build linux

package fleet

import (
	"bytes"
	"context"
	"maps"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// userFiles are the files of an image with a user "app" (4242, group 4343) who has a file of their own.
func userFiles(t *testing.T) (files map[string]string, owners map[string]int) {
	files = maps.Clone(shellFiles(t))
	files["etc/passwd"] = "root:x:0:0::/root:/bin/sh\napp:x:4242:4343::/srv/app:/bin/sh\n"
	files["srv/secret"] = "of app\n"
	return files, map[string]int{"srv/secret": 4242}
}

// whoami prints the ids and the names of who runs it, with what a shell has built in.
const whoami = `while read -r a b c; do case $a in Uid:|Gid:) echo "$b";; esac; done </proc/self/status; echo "$USER $HOME"`

func (r *rig) userSession(t *testing.T, cfg v1.Config) outboard.SessionID {
	t.Helper()
	files, owners := userFiles(t)
	return r.sessionIn(t, outboard.EnvConfig{Kind: "cloud", Image: imageServer(t, cfg, files, owners)})
}

// If this failed, an agent would run as another user than the image says, or as root, who is the guest; or could
// not write where it works.
func TestSessionUser(t *testing.T) {
	r := newRig(t)
	r.provider = nativeProvider(t)
	store := images(t)
	f := r.fleet(func(c *Config) { c.Images = store })
	t.Cleanup(f.Stop)
	const try = `read x </srv/secret && echo "read $x"; for d in /workspace /home/user /mnt/session/outputs; do echo hi >$d/bash && [ -O $d/bash ] || echo "cannot write $d"; done
		[ -w /etc ] && echo "may write /etc"; kill -0 1 && echo "may end the guest"; kill -0 $$ && echo "may end itself"`
	for user, want := range map[string]struct{ who, name, note string }{
		"app":  {"4242\n4343\napp /home/user\nread of app\nmay end itself\n", "app", ""},
		"4242": {"4242\n4343\napp /home/user\nread of app\nmay end itself\n", "app", ""},
		"777":  {"777\n777\n777 /home/user\nmay end itself\n", "777", ""},
		"":     {"1000\n1000\nuser /home/user\nmay end itself\n", "", ""},
		"user": {"1000\n1000\nuser /home/user\nmay end itself\n", "", ""},
		"root": {"1000\n1000\nuser /home/user\nmay end itself\n", "", "runs programs as root; tools run as user"},
		"0":    {"1000\n1000\nuser /home/user\nmay end itself\n", "", "runs programs as root; tools run as user"},
	} {
		b := r.acquire(t, f, r.userSession(t, v1.Config{User: user}))
		if got := r.bash(t, b, "{ "+whoami+"; "+try+"; } 2>/dev/null"); got != want.who {
			t.Errorf("USER %q: %q, want %q", user, got, want.who)
		}
		if b.Ready.User != want.name || !strings.Contains(b.Ready.Note, want.note) || want.note == "" &&
			b.Ready.Note != "" {
			t.Errorf("USER %q: the log says %+v", user, b.Ready)
		}
		r.tool(t, b, "write", map[string]any{"file_path": "/workspace/tool", "content": "by a tool"})
		if got := r.bash(t, b, "[ -O /workspace/tool ] && read -r x </workspace/tool; echo $x; echo more "+
			">>/workspace/tool"); got != "by a tool\n" {
			t.Errorf("USER %q: a file of the write tool: %q", user, got)
		}
		if got := r.tool(t, b, "read", map[string]any{"file_path": "/srv/secret"}); strings.Contains(got,
			"of app") != strings.HasPrefix(want.who, "4242") {
			t.Errorf("USER %q: the read tool says %q", user, got)
		}
		release(t, f, b)
	}
	_, err := f.Acquire(t.Context(), r.request(t, r.userSession(t, v1.Config{User: "nobody-at-all"})))
	if outboard.KindOf(err) != outboard.Invalid || !strings.Contains(err.Error(), `"nobody-at-all"`) {
		t.Errorf("a user whom the image does not have: %v", err)
	}
}

// If this failed, what the agent made as the image's user would not be its own any more after its sandbox was
// lost, on the same host or on another.
func TestSessionUserRestored(t *testing.T) {
	r := newRig(t)
	here, there := nativeProvider(t), nativeProvider(t)
	r.provider = here
	store := images(t)
	with := func(c *Config) { c.Images = store }
	f := r.fleet(with)
	t.Cleanup(f.Stop)
	id := r.userSession(t, v1.Config{User: "app", WorkingDir: "/workspace/app"})
	b := r.acquire(t, f, id)
	r.bash(t, b, "echo one >a; echo two >/home/user/b")
	r.checkpoint(t, f, b, id)
	const look = `for f in a /home/user/b; do [ -O $f ] && echo more >>$f && read x <$f && echo $x; done; echo new >/workspace/$1.new && pwd; ` + whoami
	const want = "one\ntwo\n/workspace/app\n4242\n4343\napp /home/user\n"
	if got := r.bash(t, b, look); got != want { // after a push of the layers
		t.Errorf("after a checkpoint: %q, want %q", got, want)
	}
	if err := here.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	again := r.acquire(t, f, id)
	if got := r.bash(t, again, look); got != want || again.Lost == nil {
		t.Errorf("from layers: %q, want %q (%+v)", got, want, again.Lost)
	}
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	r.provider = there
	other := r.acquire(t, r.fleet(with, func(c *Config) { c.Host = "host-b" }), id)
	if got := r.bash(t, other, look); got != want || other.Lost == nil {
		t.Errorf("on another host: %q, want %q (%+v)", got, want, other.Lost)
	}
}

// If this failed, whoever visits a session by ssh would be somebody else there than its agent, elsewhere, or
// without the image's variables, depending on which process the sandbox was made by.
func TestVisitUser(t *testing.T) {
	r := newRig(t)
	r.provider = nativeProvider(t)
	store := images(t)
	with := func(c *Config) { c.Images = store }
	maker, other := r.fleet(with), r.fleet(with)
	t.Cleanup(maker.Stop)
	t.Cleanup(other.Stop)
	allowed := func(context.Context) error { return nil }
	for user, want := range map[string]string{"app": "4242\n4343\napp /home/user\n",
		"root": "1000\n1000\nuser /home/user\n"} {
		for dir, at := range map[string]string{"/workspace/app": "/workspace/app\nyes\n", "/srv": "/workspace\nyes\n"} {
			id := r.userSession(t, v1.Config{User: user, WorkingDir: dir, Env: []string{"FROM_IMAGE=yes"}})
			look := ProcessStart{Argv: []string{"/bin/sh", "-c", whoami + `; pwd; echo $FROM_IMAGE`}}
			if got := r.bash(t, r.acquire(t, maker, id), look.Argv[2]); got != want+at {
				t.Errorf("USER %s, WORKDIR %s: the agent is %q, want %q", user, dir, got, want+at)
			}
			for name, f := range map[string]*Fleet{"the process that made it": maker, "another": other} {
				b, err := f.VisitSession(t.Context(), id, allowed)
				if err != nil {
					t.Fatal(err)
				}
				var got bytes.Buffer
				_, exit, err := b.StartProcess(t.Context(), look,
					func(e ProcessEvent) error { got.Write(e.Data); return nil })
				if err != nil || exit.Code != 0 || got.String() != want+at {
					t.Errorf("USER %s, WORKDIR %s, visited by %s: %q, %+v, %v; want %q", user, dir, name, got.String(),
						exit, err, want+at)
				}
				release(t, f, b)
			}
		}
	}
}

// unhoused are sandboxes that know one user only, as those of containers.
type unhoused struct{ *native.Provider }

func (p unhoused) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	s.User = ""
	sb, err := p.Provider.Create(ctx, s)
	return struct{ sandbox.Sandbox }{sb}, err
}

// If this failed, an agent would run as another user than its image says, and nobody would be told.
func TestSessionUserSaid(t *testing.T) {
	r := newRig(t)
	r.provider = unhoused{nativeProvider(t)}
	store := images(t)
	f := r.fleet(func(c *Config) { c.Images = store })
	t.Cleanup(f.Stop)
	b := r.acquire(t, f, r.userSession(t, v1.Config{User: "app"}))
	if got := r.bash(t, b, whoami); got != "1000\n1000\nuser /home/user\n" ||
		!strings.Contains(b.Ready.Note, "runs programs as app, which this provider's sandboxes do not") {
		t.Errorf("tools are %q; the log says %+v", got, b.Ready)
	}
}
