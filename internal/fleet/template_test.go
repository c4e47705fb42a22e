//go:build linux

package fleet

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// templateFleet is a fleet that can build templates.
func templateFleet(t *testing.T) (*rig, *Fleet) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("layers are built as root only")
	}
	r := newRig(t)
	r.provider = nativeProvider(t)
	store := images(t)
	f := r.fleet(func(c *Config) { c.Images = store })
	t.Cleanup(f.Stop)
	return r, f
}

// queue adds the row of a build that waits.
func (r *rig) queue(t *testing.T, name string) outboard.TemplateBuildID {
	t.Helper()
	return r.queueOf(t, outboard.DefaultOrg, name)
}

func (r *rig) queueOf(t *testing.T, org outboard.OrgID, name string) outboard.TemplateBuildID {
	t.Helper()
	b := outboard.TemplateBuild{ID: outboard.NewTemplateBuildID(), State: outboard.TemplateWaiting,
		Tags: []string{outboard.DefaultTag}, CreatedAt: time.Now(), Org: org}
	if _, err := r.store.AddTemplateBuild(t.Context(), outboard.Template{ID: outboard.NewTemplateID(), Name: name,
		CreatedAt: time.Now(), Org: org}, b); err != nil {
		t.Fatal(err)
	}
	return b.ID
}

// build builds a template and returns its row when it is over, and its log.
func (r *rig) build(t *testing.T, f *Fleet, s outboard.TemplateSpec) (outboard.TemplateBuild, string) {
	t.Helper()
	return r.buildOf(t, f, outboard.DefaultOrg, s)
}

func (r *rig) buildOf(t *testing.T, f *Fleet, org outboard.OrgID,
	s outboard.TemplateSpec) (outboard.TemplateBuild, string) {
	t.Helper()
	id := r.queueOf(t, org, "t")
	if _, err := f.BuildTemplate(t.Context(), id,
		func(b *outboard.TemplateBuild) error { b.Spec = s; return nil }); err != nil {
		t.Fatal(err)
	}
	f.builds.wg.Wait()
	b, err := r.store.TemplateBuild(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := r.store.TemplateLog(t.Context(), id, 0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&log, "%d %s %s\n", l.Step, l.Level, l.Message)
	}
	return b, log.String()
}

// ready is build for one that must succeed.
func (r *rig) ready(t *testing.T, f *Fleet, s outboard.TemplateSpec) (outboard.TemplateBuild, string) {
	t.Helper()
	b, log := r.build(t, f, s)
	if b.State != outboard.TemplateReady {
		t.Fatalf("the build is %s: %s\n%s", b.State, b.Error, log)
	}
	return b, log
}

// archive stores a tar, compressed.
func (r *rig) archive(t *testing.T, entries ...tar.Header) outboard.BlobRef {
	t.Helper()
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	for _, h := range entries {
		data := h.PAXRecords["data"]
		h.PAXRecords = nil
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		h.Size = int64(len(data))
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	ref, err := r.blob.Put(t.Context(), &buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func file(name, data string) tar.Header {
	return tar.Header{Name: name, PAXRecords: map[string]string{"data": data}}
}

func runStep(command string) outboard.TemplateStep {
	return outboard.TemplateStep{Kind: outboard.StepRun, Command: command}
}

// If this failed, a template would not be what its steps say, would be built again from the start every time, or
// who begins with it would not find its files, variables, directory or user.
func TestTemplate(t *testing.T) {
	r, f := templateFleet(t)
	files := r.archive(t, tar.Header{Name: "app", Typeflag: tar.TypeDir, Mode: 0o750}, file("app/a.txt", "a\n"),
		tar.Header{Name: "app/run.sh", Mode: 0o755,
			PAXRecords: map[string]string{"data": "#!/bin/sh\necho ran\n"}}, tar.Header{Name: "app/link", Typeflag: tar.TypeSymlink, Linkname: "a.txt"},
		tar.Header{Name: "app/again", Typeflag: tar.TypeLink, Linkname: "app/a.txt"},
		tar.Header{Name: "app/unsaid/link", Typeflag: tar.TypeSymlink, Linkname: "../a.txt"}, file("other/b.txt",
			"b\n"))
	steps := []outboard.TemplateStep{
		{Kind: outboard.StepWorkdir, Target: "/workspace/proj"},
		{Kind: outboard.StepEnv, Env: map[string]string{"PATH": "/opt/bin:$PATH", "GREETING": "hello"}},
		runStep("echo $GREETING > greeting; echo said; id -un > who"),
		{Kind: outboard.StepCopy, Source: "app", Target: "app", Files: files},
		{Kind: outboard.StepCopy, Source: "other/b.txt", Target: "/opt/data/", Files: files, Mode: "0600",
			User: "root"},
		{Kind: outboard.StepUser, User: "root"},
		runStep("id -un >> who; mkdir -p /opt/bin; printf '#!/bin/sh\\necho tool\\n' > /opt/bin/tool; chmod +x " +
			"/opt/bin/tool"),
		{Kind: outboard.StepUser, User: "user"},
	}
	b, log := r.ready(t, f, outboard.TemplateSpec{Steps: steps})
	if !strings.Contains(log, "3 info said\n") || strings.Contains(log, "CACHED") {
		t.Errorf("the log is\n%s", log)
	}
	again, log := r.ready(t, f, outboard.TemplateSpec{Steps: append(steps[:6:6], runStep("echo new"), steps[7])})
	if n := strings.Count(log, "CACHED"); n != 4 || !strings.Contains(log, "7 info new") {
		t.Errorf("%d of 4 layers were used again:\n%s", n, log)
	}
	if again.Result.Layers[1] != b.Result.Layers[1] {
		t.Errorf("the layers differ: %v, %v", again.Result.Layers, b.Result.Layers)
	}
	env := outboard.EnvConfig{Kind: "cloud", Build: b.ID, Networking: outboard.Networking{Mode: "none"}}
	out, err := boxWith(t, f, env, "/bin/sh", "-c", `pwd; id -un; cat greeting who app/a.txt app/link app/again app/unsaid/link; app/run.sh; tool; echo $GREETING
		stat -c '%a %U %n' app app/a.txt app/run.sh app/link /opt/data/b.txt greeting; ls /opt/data; touch here && echo writable`)
	want := "/workspace/proj\nuser\nhello\nuser\nroot\na\na\na\na\nran\ntool\nhello\n750 user app\n644 user " +
		"app/a.txt\n755 user app/run.sh\n777 user app/link\n" +
		"600 root /opt/data/b.txt\n644 user greeting\nb.txt\nwritable\n"
	if err != nil || out != want {
		t.Errorf("got\n%s\n%v; want\n%s", out, err, want)
	}
	if out, err := boxWith(t, f, outboard.EnvConfig{Kind: "cloud", Networking: outboard.Networking{Mode: "none"}},
		"/bin/sh", "-c", "ls /workspace; pwd"); err != nil || out != "/home/user\n" {
		t.Errorf("without the template: %q, %v", out, err)
	}
	if left := r.present(t); len(left) != 0 {
		t.Errorf("sandboxes left: %v", left)
	}
	// the tag means the second build now
	if pruned, err := f.PruneImages(t.Context(), time.Now().Add(time.Hour)); err != nil || pruned.Layers != 1 {
		t.Errorf("pruned %+v, %v", pruned, err)
	}
	if here, err := f.cfg.Images.Use(again.Result.Layers); err != nil || !here {
		t.Errorf("layers that a tag means were removed: %v, %v", here, err)
	}
	if here, _ := f.cfg.Images.Use(b.Result.Layers); here {
		t.Error("a layer that nothing means stays")
	}
	if out, err := boxWith(t, f, env, "/bin/sh", "-c", "tool"); err != nil || out != "tool\n" {
		t.Errorf("a session that began with layers that are gone: %q, %v", out, err)
	}
}

// If this failed, who wrote a step would not learn which failed and why, a failed step would leave a layer or a
// machine, or an archive could write where it must not.
func TestTemplateRefused(t *testing.T) {
	r, f := templateFleet(t)
	copyOf := func(target string, entries ...tar.Header) []outboard.TemplateStep {
		return []outboard.TemplateStep{{Kind: outboard.StepCopy, Source: ".", Target: target,
			Files: r.archive(t, entries...)}}
	}
	env := func(k, v string) []outboard.TemplateStep {
		return []outboard.TemplateStep{{Kind: outboard.StepEnv, Env: map[string]string{k: v}}}
	}
	for name, c := range map[string]struct {
		steps []outboard.TemplateStep
		step  int
		want  string
	}{
		"a command that fails": {[]outboard.TemplateStep{runStep("true"),
			runStep("{ echo going; echo gone wrong; } >&2; exit 3")}, 2, "step 2, RUN { echo going; echo gone " +
			"wrong; } >&2; exit 3: it ended with status 3 and said:\ngoing\ngone wrong"},
		"one without words": {[]outboard.TemplateStep{runStep("exit 3")}, 1,
			"step 1, RUN exit 3: it ended with status 3$"},
		"one long line": {[]outboard.TemplateStep{runStep("yes no | head -c 100000 | tr -d '\\n'; exit 3")}, 1,
			"nononononono"},
		"a signal": {[]outboard.TemplateStep{runStep("kill -9 $$")}, 1, "ended by signal 9"},
		"a user nobody is": {[]outboard.TemplateStep{{Kind: outboard.StepUser, User: "nobody-at-all"},
			runStep("true")}, 2, "invalid username: 'nobody-at-all'"},
		"a loader's variable": {env("LD_PRELOAD", "/x.so"), 1, "LD_PRELOAD"},
		"a relative path":     {env("PATH", "bin:$PATH"), 1, "absolute directories"},
		"no directory": {[]outboard.TemplateStep{{Kind: outboard.StepWorkdir, Target: "/proc/x"}}, 1,
			"cannot be where programs begin"},
		"above the archive": {copyOf("/opt/x", file("../../etc/passwd", "x")), 1, "leaves it"},
		"inside and above":  {copyOf("/opt/x", file("a/../../b", "x")), 1, "leaves it"},
		"an absolute name":  {copyOf("/opt/x", file("/etc/passwd", "x")), 1, "leaves it"},
		"through a link": {copyOf("/opt/x", tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
			file("l/passwd", "x")), 1, "below what is no directory"},
		"a name of the host's": {copyOf("/opt/x", tar.Header{Name: "l", Typeflag: tar.TypeLink,
			Linkname: "/etc/shadow"}), 1, "which is no file before it"},
		"a device": {copyOf("/opt/x", tar.Header{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1,
			Devminor: 1}), 1, "neither a file"},
		"twice": {copyOf("/opt/x", file("a", "x"), file("a", "y")), 1, "there twice"},
		"nothing": {[]outboard.TemplateStep{{Kind: outboard.StepCopy, Source: "absent", Target: "/opt/x",
			Files: r.archive(t, file("a", "x"))}}, 1, `nothing called "absent"`},
		"over the host's": {copyOf("/usr/bin", file("ls", "x")), 1, "ls"},
	} {
		t.Run(name, func(t *testing.T) {
			b, log := r.build(t, f, outboard.TemplateSpec{Steps: c.steps})
			// $ = the end
			if b.State != outboard.TemplateFailed || b.ErrorStep != c.step || !strings.Contains(b.Error+"$", c.want) {
				t.Errorf("%s at step %d: %q; want step %d, ...%s...", b.State, b.ErrorStep, b.Error, c.step, c.want)
			}
			if !strings.Contains(log, "error step") {
				t.Errorf("the log does not end with the error:\n%s", log)
			}
		})
	}
	if left := r.present(t); len(left) != 0 {
		t.Errorf("sandboxes left: %v", left)
	}
	if fi, err := os.ReadDir(filepath.Join(imagesDir(f), "tmp")); err != nil || len(fi) != 0 {
		t.Errorf("half-made layers left: %v, %v", fi, err)
	}
	if _, err := f.prepare(t.Context(), "",
		outboard.EnvConfig{Build: r.queue(t, "t")}); outboard.KindOf(err) != outboard.Conflict {
		t.Errorf("a build that is not ready is begun with: %v", err)
	}
}

func imagesDir(f *Fleet) string { return filepath.Dir(filepath.Dir(f.cfg.Images.Dir("x"))) }

// If this failed, a sandbox would be handed out before its template's program answers, a start command that
// fails would be found out by users, or would not run again in a sandbox that replaces a lost one.
func TestTemplateStart(t *testing.T) {
	r, f := templateFleet(t)
	b, _ := r.ready(t, f,
		outboard.TemplateSpec{Steps: []outboard.TemplateStep{{Kind: outboard.StepWorkdir, Target: "/workspace/srv"}},
			Start: "sleep 0.3; pwd > up; exec sleep 1000", Ready: "test -s up"})
	id := r.sessionIn(t, outboard.EnvConfig{Kind: "cloud", Build: b.ID})
	box := r.acquire(t, f, id)
	if out := r.bash(t, box,
		"cat /workspace/srv/up; rm /workspace/srv/up; pgrep -c sleep; echo kept > /workspace/note"); out != "/workspace/srv\n1\n" {
		t.Errorf("got %q", out)
	}
	r.checkpoint(t, f, box, id)
	release(t, f, box)
	if err := r.provider.Destroy(t.Context(), box.ID()); err != nil {
		t.Fatal(err)
	}
	if out := r.bash(t, r.acquire(t, f, id), "cat /workspace/note /workspace/srv/up"); out != "kept\n/workspace/srv\n" {
		t.Errorf("in its second sandbox: %q", out)
	}
	failed, log := r.build(t, f, outboard.TemplateSpec{Start: "echo no port; exit 7", Ready: "false"})
	if failed.State != outboard.TemplateFailed || !strings.Contains(failed.Error, "ended with status 7") ||
		!strings.Contains(failed.Error, "no port") {
		t.Errorf("a start command that fails: %s %q\n%s", failed.State, failed.Error, log)
	}
}

// If this failed, a build that was going on when its server ended would say so for ever, or leave its machine
// and half a layer.
func TestTemplateServerEnds(t *testing.T) {
	r, f := templateFleet(t)
	id := r.queue(t, "t")
	if _, err := f.BuildTemplate(t.Context(), id, func(b *outboard.TemplateBuild) error {
		b.Spec.Steps = []outboard.TemplateStep{runStep("echo on; exec sleep 1000")}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		lines, err := r.store.TemplateLog(t.Context(), id, 0, 100)
		return err == nil && len(lines) > 0 && lines[len(lines)-1].Message == "on"
	})
	other := r.fleet(func(c *Config) { c.Images = f.cfg.Images })
	if err := other.lostBuilds(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, err := r.store.TemplateBuild(t.Context(), id); err != nil || b.State != outboard.TemplateBuilding {
		t.Errorf("another process ended a build that goes on: %s, %v", b.State, err)
	}
	if _, err := other.BuildTemplate(t.Context(), id,
		func(*outboard.TemplateBuild) error { return nil }); outboard.KindOf(err) != outboard.Conflict {
		t.Errorf("a build was begun twice: %v", err)
	}
	f.Stop()
	b, err := r.store.TemplateBuild(t.Context(), id)
	if err != nil || b.State != outboard.TemplateFailed || b.Error != errStopped {
		t.Errorf("after the server ended: %s %q, %v", b.State, b.Error, err)
	}
	if left := r.present(t); len(left) != 0 {
		t.Errorf("sandboxes left: %v", left)
	}
}

// If this failed, a build whose server was killed before it began would wait for ever; or one would be ended
// that begins in a moment, that another host begins, or that a client has yet to say more about.
func TestTemplateNeverBegun(t *testing.T) {
	r := newRig(t)
	f := r.fleet(func(c *Config) { c.Images = images(t) })
	old := r.store.Now().Add(-BeginBuildTimeout - time.Second)
	want := map[outboard.TemplateBuildID]outboard.TemplateState{}
	for _, c := range []struct {
		host string
		at   time.Time
		want outboard.TemplateState
	}{{f.Host(), old, outboard.TemplateFailed}, {f.Host(), r.store.Now().Add(time.Hour),
		outboard.TemplateWaiting}, {"elsewhere", old, outboard.TemplateWaiting}, {"", old, outboard.TemplateWaiting}} {
		b := outboard.TemplateBuild{ID: outboard.NewTemplateBuildID(), Host: c.host, State: outboard.TemplateWaiting,
			Tags: []string{outboard.DefaultTag}, CreatedAt: c.at}
		if _, err := r.store.AddTemplateBuild(t.Context(), outboard.Template{ID: outboard.NewTemplateID(), Name: "t",
			CreatedAt: old}, b); err != nil {
			t.Fatal(err)
		}
		want[b.ID] = c.want
	}
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	for id, state := range want {
		b, err := r.store.TemplateBuild(t.Context(), id)
		if err != nil || b.State != state || (b.Error == errNotBegun) != (state == outboard.TemplateFailed) ||
			b.EndedAt.IsZero() == (state == outboard.TemplateFailed) {
			t.Errorf("of %q, from %v: %s %q, %v", b.Host, b.CreatedAt, b.State, b.Error, err)
		}
	}
}

// If this failed, a template that is removed by way of another server on the same database would go on being
// built, or leave its machine, half a layer or a tag.
func TestTemplateRemovedElsewhere(t *testing.T) {
	r, f := templateFleet(t)
	begin := func(name string) outboard.TemplateBuild {
		t.Helper()
		id := r.queue(t, name)
		b, err := f.BuildTemplate(t.Context(), id, func(b *outboard.TemplateBuild) error {
			b.Spec.Steps = []outboard.TemplateStep{runStep("echo on; exec sleep 1000; : " + name)}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		until(t, func() bool {
			lines, err := r.store.TemplateLog(t.Context(), id, 0, 100)
			return err == nil && len(lines) > 0 && lines[len(lines)-1].Message == "on"
		})
		return b
	}
	removed, stays := begin("removed"), begin("stays")
	other := r.fleet(func(c *Config) { c.Images, c.Host, c.Dir = images(t), "host-b", t.TempDir() })
	for _, b := range []outboard.TemplateBuild{removed, stays} { // they are not its own to cancel
		other.CancelBuild(b.ID, errors.New("not this process's"))
	}
	remove := func(b outboard.TemplateBuild) {
		t.Helper()
		if _, err := r.store.ChangeTemplate(t.Context(), b.Template,
			func(m *outboard.Template) error { m.DeletedAt = time.Now(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	ended := func(b outboard.TemplateBuild) outboard.TemplateBuild {
		t.Helper()
		until(t, func() bool {
			var err error
			b, err = other.cfg.Store.TemplateBuild(t.Context(), b.ID)
			return err == nil && b.State != outboard.TemplateBuilding
		})
		return b
	}
	remove(removed)
	if b := ended(removed); b.State != outboard.TemplateFailed || b.Error != "the template was removed" {
		t.Errorf("the build of a removed template: %s %q", b.State, b.Error)
	}
	if b, err := r.store.TemplateBuild(t.Context(), stays.ID); err != nil || b.State != outboard.TemplateBuilding {
		t.Errorf("the build of another template ended with it: %s %q, %v", b.State, b.Error, err)
	}
	remove(stays)
	ended(stays)
	f.builds.wg.Wait()
	if left := r.present(t); len(left) != 0 {
		t.Errorf("sandboxes left: %v", left)
	}
	if fi, err := os.ReadDir(filepath.Join(imagesDir(f), "tmp")); err != nil || len(fi) != 0 {
		t.Errorf("half-made layers left: %v, %v", fi, err)
	}
	if pruned, err := f.PruneImages(t.Context(), time.Now().Add(time.Hour)); err != nil || pruned.Layers != 0 {
		t.Errorf("layers left: %+v, %v", pruned, err)
	}
}

// until waits for what nothing tells of.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("it did not happen within a minute")
		}
	}
}

// If this fails, an organization's template holds what another's build made of the same step, or a build what
// was fetched with other rights.
func TestLayersAreBuiltForWhoAsks(t *testing.T) {
	r, f := templateFleet(t)
	f.cfg.Bound = func(n outboard.Networking) outboard.Networking { return n }
	const other outboard.OrgID = "org_other"
	spec := outboard.TemplateSpec{Steps: []outboard.TemplateStep{runStep("echo said; echo $RANDOM > ~/x")}}
	layer := func(b outboard.TemplateBuild, log string) string {
		t.Helper()
		if b.State != outboard.TemplateReady {
			t.Fatalf("the build is %s: %s\n%s", b.State, b.Error, log)
		}
		return b.Result.Layers[0]
	}
	first := layer(r.build(t, f, spec))
	if again := layer(r.build(t, f, spec)); again != first { // the control: it is a cache
		t.Errorf("the same step of the same organization is done again: %s, %s", first, again)
	}
	seen := map[string]string{first: "the first"}
	wider := spec
	wider.Hosts = []string{"a.test"}
	for what, got := range map[string]string{
		"another organization": layer(r.buildOf(t, f, other, spec)),
		"other hosts":          layer(r.build(t, f, wider)),
		"another environment": layer(r.build(t, f, outboard.TemplateSpec{Steps: append([]outboard.TemplateStep{
			{Kind: outboard.StepEnv, Env: map[string]string{"A": "b"}}}, spec.Steps...)})),
	} {
		if seen[got] != "" {
			t.Errorf("%s has the layer of %s", what, seen[got])
		}
		seen[got] = what
	}
	f.cfg.Bound = nil // the operator lets builds reach nothing any more
	if got := layer(r.build(t, f, spec)); seen[got] != "" {
		t.Errorf("a build that may reach nothing has the layer of %s", seen[got])
	}
	over := spec // a template over another: what that one's step reached is that one's
	over.Hosts, over.Inherited = []string{"b.test"}, 1
	f.cfg.Bound = func(n outboard.Networking) outboard.Networking { return n }
	over.Steps = append(over.Steps, runStep("true"))
	b, log := r.build(t, f, over)
	if layer(b, log); b.Result.Layers[1] != first {
		t.Errorf("an inherited step was done again: %v\n%s", b.Result.Layers, log)
	}
}

// If this fails, the builds of one organization keep those of others from their turn.
func TestBuildsOfOneOrganization(t *testing.T) {
	b := newBuilds()
	for range maxOrgQueue {
		if err := b.enter("a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.enter("a"); outboard.KindOf(err) != outboard.Exhausted {
		t.Errorf("one more of the same: %v", err)
	}
	if err := b.enter("b"); err != nil {
		t.Errorf("one of another: %v", err)
	}
	if n := cap(b.slotsOf("a")); n >= MaxBuilds {
		t.Errorf("one organization has %d of %d turns", n, MaxBuilds)
	}
	b.leave("a")
	if err := b.enter("a"); err != nil {
		t.Errorf("after one is over: %v", err)
	}
}
