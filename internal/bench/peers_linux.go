package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/docker"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/sandbox/oci"
)

// How often peers do what: a start takes some of them half a second.
const (
	peerRuns  = 10
	peerExecs = 20
	peerKept  = 5
)

// peer is another program that makes sandboxes, used as its manual says: by its command line, whose own start
// counts, as in a person's hands.
type peer struct {
	name string
	once func(ctx context.Context) *exec.Cmd // a sandbox of its own for /bin/true, to its end
	// A sandbox that stays, a command in it, and its end. nil where there is no such thing.
	start, exec, remove func(ctx context.Context, id string) *exec.Cmd
	place               func(f func() error) error // where its commands are started from
}

// peerRows measures every peer that is installed with the host's own programs in its sandbox, as native ones have them.
func peerRows(ctx context.Context, h *hands) ([]Row, error) {
	root, err := peerRoot(h.Dir)
	if err != nil {
		return nil, err
	}
	peers, err := installedPeers(ctx, h, root)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, p := range peers {
		got, err := p.measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

// measure takes a first one of each uncounted: programs and layers come into memory.
func (p *peer) measure(ctx context.Context) ([]Row, error) {
	once, err := p.samples(peerRuns, func(int) *exec.Cmd { return p.once(ctx) })
	if err != nil {
		return nil, err
	}
	row := func(name string, samples []time.Duration) Row {
		r := latency("peer/"+p.name+"/"+name, samples, 0)
		r.peer = "sandbox/" + name
		return r
	}
	rows := []Row{row("create-first", once)}
	if p.start == nil {
		return rows, nil
	}
	var execs, removes []time.Duration
	for i := range peerKept {
		id := fmt.Sprintf("outboard-bench-%d", i)
		if _, err := p.run(p.start(ctx, id)); err != nil {
			return nil, errors.Join(err, p.clean(ctx, id))
		}
		if i == 0 {
			if execs, err = p.samples(peerExecs, func(int) *exec.Cmd { return p.exec(ctx, id) }); err != nil {
				return nil, errors.Join(err, p.clean(ctx, id))
			}
		}
		took, err := p.run(p.remove(ctx, id))
		if err != nil {
			return nil, err
		}
		removes = append(removes, took)
	}
	return append(rows, row("exec-true", execs), row("destroy", removes)), nil
}

func (p *peer) clean(ctx context.Context, id string) error {
	_, err := p.run(p.remove(context.WithoutCancel(ctx), id))
	return err
}

func (p *peer) samples(n int, command func(int) *exec.Cmd) (took []time.Duration, err error) {
	for i := range n + 1 {
		d, err := p.run(command(i))
		if err != nil {
			return nil, err
		}
		if i > 0 {
			took = append(took, d)
		}
	}
	return took, nil
}

// run times one command from its start to its end.
func (p *peer) run(cmd *exec.Cmd) (took time.Duration, err error) {
	var said bytes.Buffer
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, &said
	cmd.WaitDelay = time.Second
	f := func() error {
		begin := time.Now()
		err := cmd.Run()
		if took = time.Since(begin); errors.Is(err, exec.ErrWaitDelay) {
			err = nil // what stays in the sandbox holds the error output open
		}
		return err
	}
	if p.place != nil {
		err = p.place(f)
	} else {
		err = f()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(said.Bytes()[:min(said.Len(), 500)]))
	}
	return took, err
}

// peerRoot makes a root file system that has the host's programs where they are looked for, and /usr to bind the
// host's to.
func peerRoot(dir string) (string, error) {
	root := filepath.Join(dir, "peer-root")
	for _, d := range []string{"usr", "proc", "dev", "sys", "tmp", "run", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64"} {
		target, err := os.Readlink("/" + name)
		if err == nil {
			err = os.Symlink(target, filepath.Join(root, name))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("the host's /%s is not a link into /usr: %w", name, err)
		}
	}
	return root, nil
}

func installedPeers(ctx context.Context, h *hands, root string) (peers []*peer, err error) {
	for _, name := range []string{"crun", "runc", "runsc"} {
		if r, err := oci.Find(oci.Config{Program: programOf(name)}); err == nil && os.Geteuid() == 0 {
			p, err := ociPeer(h.Dir, name, r.Program(), root)
			if err != nil {
				return nil, err
			}
			peers = append(peers, p)
		}
	}
	if path, err := exec.LookPath("bwrap"); err == nil {
		peers = append(peers, &peer{name: "bwrap", once: func(ctx context.Context) *exec.Cmd {
			return exec.CommandContext(ctx, path, "--unshare-all", "--die-with-parent", "--ro-bind", root, "/",
				"--ro-bind", "/usr", "/usr",
				"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "/bin/true")
		}})
	}
	p, err := dockerPeer(ctx, root)
	if p != nil {
		peers = append(peers, p)
	}
	return peers, err
}

// programOf finds a runtime beside this program, or on the path.
func programOf(name string) string {
	if exe, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(exe), name); unix.Access(path, unix.X_OK) == nil {
			return path
		}
	}
	return name
}

// ociPeer is a runtime with a bundle for a command that ends and one for a process that stays.
func ociPeer(dir, name, program, root string) (*peer, error) {
	bundles := map[string][]string{"once": {"/bin/true"}, "kept": {"/bin/sleep", "1000"}}
	dir = filepath.Join(dir, "peer-"+name)
	for b, args := range bundles {
		if err := os.MkdirAll(filepath.Join(dir, b), 0o755); err != nil {
			return nil, err
		}
		config, err := json.Marshal(peerBundle(root, args))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, b, "config.json"), config, 0o644)
		}
		if err != nil {
			return nil, err
		}
	}
	flags := []string{"--root", filepath.Join(dir, "state")}
	if name == "runsc" {
		flags = append(flags, "--network=none", "--platform=systrap")
	}
	command := func(ctx context.Context, args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, program, append(append([]string{}, flags...), args...)...)
	}
	p := &peer{name: name}
	p.once = func(ctx context.Context) *exec.Cmd {
		return command(ctx, "run", "--bundle", filepath.Join(dir, "once"), "outboard-bench-once")
	}
	p.start = func(ctx context.Context, id string) *exec.Cmd {
		return command(ctx, "run", "--detach", "--bundle", filepath.Join(dir, "kept"), id)
	}
	p.exec = func(ctx context.Context, id string) *exec.Cmd { return command(ctx, "exec", id, "/bin/true") }
	p.remove = func(ctx context.Context, id string) *exec.Cmd { return command(ctx, "delete", "--force", id) }
	if name == "runc" {
		return p, nil
	}
	p.place = func(f func() error) error {
		return native.OnSpentThread(func() error {
			if err := native.PrivateMounts(); err != nil { // runsc leaves one
				return err
			}
			if name == "crun" { // it refuses the unified hierarchy beside version 1; elsewhere there is none
				_ = unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH)
			}
			return f()
		})
	}
	return p, nil
}

func peerBundle(root string, args []string) any {
	type m = map[string]any
	mounts := []m{{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755",
			"size=64k"}},
		{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "nodev"}},
		{"destination": "/usr", "type": "bind", "source": "/usr", "options": []string{"bind", "nosuid", "nodev", "ro"}}}
	var namespaces []m
	for _, ns := range []string{"pid", "network", "ipc", "uts", "mount"} {
		namespaces = append(namespaces, m{"type": ns})
	}
	return m{"ociVersion": "1.0.2", "hostname": "bench", "root": m{"path": root, "readonly": true}, "mounts": mounts,
		"process": m{"user": m{"uid": 0, "gid": 0}, "args": args, "env": []string{"PATH=/usr/bin:/bin"}, "cwd": "/",
			"noNewPrivileges": true},
		"linux": m{"namespaces": namespaces}}
}

// dockerPeer is the docker command with the engine that DOCKER_HOST names, or nil where there is none.
func dockerPeer(ctx context.Context, root string) (*peer, error) {
	const image = "outboard/bench"
	path, err := exec.LookPath("docker")
	if err != nil || exec.CommandContext(ctx, path, "version").Run() != nil {
		return nil, nil
	}
	tar := exec.CommandContext(ctx, "tar", "-C", root, "-c", ".")
	load := exec.CommandContext(ctx, path, "import", "-", image)
	if load.Stdin, err = tar.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := tar.Start(); err != nil {
		return nil, fmt.Errorf("packing a root file system: %w", err)
	}
	out, err := load.CombinedOutput()
	if err = errors.Join(err, tar.Wait()); err != nil {
		return nil, fmt.Errorf("docker import: %w: %s", err, out)
	}
	command := func(ctx context.Context, args ...string) *exec.Cmd { return exec.CommandContext(ctx, path, args...) }
	usual := []string{"--network", "none", "--volume", "/usr:/usr:ro", image}
	return &peer{
		name: "docker",
		once: func(ctx context.Context) *exec.Cmd {
			return command(ctx, append(append([]string{"run", "--rm"}, usual...), "/bin/true")...)
		},
		exec:   func(ctx context.Context, id string) *exec.Cmd { return command(ctx, "exec", id, "/bin/true") },
		remove: func(ctx context.Context, id string) *exec.Cmd { return command(ctx, "rm", "--force", id) },
		start: func(ctx context.Context, id string) *exec.Cmd {
			return command(ctx, append(append([]string{"run", "--detach", "--name", id}, usual...), "/bin/sleep",
				"1000")...)
		},
	}, nil
}

// beside gives the rows of peers their bar, which is ours of the same name in the same run, and says where one
// is faster.
func beside(rows []Row) []Row {
	ours := map[string]float64{}
	for _, r := range rows {
		ours[r.Name] = r.Ratio
	}
	for i, r := range rows {
		own, ok := ours[r.peer]
		if !ok {
			continue
		}
		r = r.AtLeast(float64(int64(own*100+0.5)) / 100)
		if r.Note = fmt.Sprintf("outboard is %.1f times as fast", ratio(r.Ratio, own)); !r.OK {
			r.Note = fmt.Sprintf("FASTER than outboard, %.1f times", ratio(own, r.Ratio))
		}
		rows[i] = r
	}
	return rows
}

// technologyRows measures sandboxes of the other technologies that are here, with the same guest inside.
func technologyRows(ctx context.Context, h *hands) ([]Row, error) {
	var rows []Row
	for _, name := range []string{"crun", "runsc", "docker"} {
		p, err := h.technology(name)
		if outboard.KindOf(err) == outboard.Unavailable {
			continue
		}
		if err != nil {
			return nil, err
		}
		got, err := h.guestRows(ctx, name, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

func (h *hands) technology(name string) (sandbox.Provider, error) {
	dir := filepath.Join(h.Dir, name)
	if name == "docker" {
		return docker.New(docker.Config{Socket: os.Getenv("DOCKER_HOST"), Dir: dir, Guest: h.Guest})
	}
	return oci.New(oci.Config{Program: programOf(name), Dir: dir, Guest: h.Guest})
}

// guestRows makes some sandboxes with a first command, and uses the last one. A sandbox of a slow technology is
// used for so long that a machine which others use as well changes meanwhile: the floor is measured in turns
// with it.
func (h *hands) guestRows(ctx context.Context, name string, p sandbox.Provider) ([]Row, error) {
	var first []time.Duration
	var u usage
	for i := range peerKept + 1 {
		id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
		begin := time.Now()
		box, err := p.Create(ctx, sandbox.Spec{ID: id, Generation: string(id)})
		if err != nil {
			return nil, err
		}
		_, err = execOnce(ctx, box, "exec", processTrue, "first")
		took := time.Since(begin)
		if i > 0 { // images and programs come into memory
			first = append(first, took)
		}
		if err == nil && i == peerKept {
			err = u.measure(ctx, h, box)
		}
		if err = errors.Join(err, box.Close(), p.Destroy(context.WithoutCancel(ctx), id)); err != nil {
			return nil, err
		}
	}
	bar := 0.0
	if name == "runsc" {
		bar = 10
	}
	own := latency(name+"/own-process", u.own, 0)
	own.Note = fmt.Sprintf("the shell inside, without the guest: the mean of %d, %d times", loopTrue, len(u.own))
	rows := []Row{latency(name+"/create-first", first, 0), latency(name+"/exec-true", u.shell, bar),
		latency(name+"/exec-process", u.process, bar), own}
	return h.against(rows, quantile(u.floor, 0.5)), nil
}

// usage is how long things take in a living sandbox: true by the shell of the guest, as a process of the guest,
// and as one of the shell's in a loop of its own.
type usage struct{ floor, shell, process, own []time.Duration }

const (
	// usageSpells is how often the floor is measured between commands, usageFloor times.
	usageSpells = 20
	usageFloor  = 30
	// loopTrue is how often the shell starts true in one call.
	loopTrue = 50
)

func (u *usage) measure(ctx context.Context, h *hands, box sandbox.Sandbox) error {
	if _, err := bashOnce(ctx, box, "true", "shell"); err != nil { // which starts it
		return err
	}
	for i := range h.N {
		if i%max(1, h.N/usageSpells) == 0 {
			floor, _, err := SpawnFloor(h.Dir, usageFloor)
			if err != nil {
				return err
			}
			u.floor = append(u.floor, floor...)
		}
		shell, err := bashOnce(ctx, box, "true", fmt.Sprint("shell/", i))
		if err != nil {
			return err
		}
		process, err := execOnce(ctx, box, "exec", processTrue, fmt.Sprint("process/", i))
		if err != nil {
			return err
		}
		u.shell, u.process = append(u.shell, shell), append(u.process, process)
	}
	for i := range peerKept {
		all, err := bashOnce(ctx, box, fmt.Sprintf("for i in {1..%d}; do /bin/true; done", loopTrue),
			fmt.Sprint("own/", i))
		if err != nil {
			return err
		}
		u.own = append(u.own, all/loopTrue)
	}
	return nil
}
