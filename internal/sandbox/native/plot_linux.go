package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/guest/spawner"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// plot is the place of one sandbox with everything in it that does not depend on who the sandbox is for: the directory, the uid range,
// the cgroups, the network and, where the host may mount, the whole file system. A plot that was made ahead is moved to its
// sandbox's name when it is taken.
type plot struct {
	box    box
	state  *state
	group  group
	net    network
	shape  shape
	mnt    *os.File // the mount namespace the guest is born in; nil = it builds its own
	covers []int    // mounts for the guest that come with it
	work   []int    // mounts of the saved directories, to attach to the sandbox; none where they are not layers
	fds    descriptors
	userns *os.File   // with the sandbox's ids, where there are layers to be mapped
	files  []*os.File // of the guest: null, log, listener, receipts
	birth  *birth     // a guest that waits for its identity; nil = none was started
}

// shape is what plots differ in.
type shape struct {
	root      *rootfs
	limits    outboard.SandboxLimits
	connected bool                  // the network is for a gateway
	build     bool                  // one layer holds all that is written
	from      outboard.CheckpointID // whose layers the workspace begins with, "" for the root's
}

func (a shape) equal(b shape) bool {
	return a.limits == b.limits && a.build == b.build && a.from == b.from && a.connected == b.connected && a.root.path == b.root.path && a.root.tool == b.root.tool && slices.Equal(a.root.lower, b.root.lower) &&
		slices.Equal(a.root.binds, b.root.binds)
}

// plant makes a plot in an existing empty directory. What a failure leaves there is found by remove, as what a crash leaves is.
func (p *Provider) plant(b box, k shape) (_ *plot, err error) {
	s := &state{ID: b.id, Isolation: p.caps.Isolation, BootID: p.boot, Tool: k.root.tool, Lower: k.root.cached(), Cgroups: p.cgroups.plan(b.id).dirs,
		CreatedAt: time.Now().UTC()}
	if p.uids != nil {
		if s.UIDBase, err = p.uids.reserve(owner{dir: b.dir, group: b.id}); err != nil {
			return nil, outboard.Errorf(outboard.Unavailable, "%w", err)
		}
	}
	if err := b.save(s); err != nil {
		if p.uids != nil {
			err = errors.Join(err, p.uids.release(s.UIDBase, b.dir))
		}
		return nil, err
	}
	if p.hasLayers() && k.limits.DiskBytes == 0 && !k.build {
		s.Root = k.root.lower
		s.Whole = k.whole()
	}
	s.Build = k.build
	pl := &plot{box: b, state: s, group: p.cgroups.groupOf(s), shape: k}
	defer func() {
		if err != nil {
			pl.close()
		}
	}()
	if k.limits.DiskBytes > 0 {
		if err := p.mountDisk(b, k.limits.DiskBytes); err != nil {
			return nil, unavailable("%w", err)
		}
	}
	if err := b.layout(s, k.limits); err != nil {
		return nil, fmt.Errorf("laying out the sandbox: %w", err)
	}
	if err := p.cgroups.makeGroup(pl.group, k.limits); err != nil {
		return nil, err
	}
	if pl.files, err = p.files(b); err != nil {
		return nil, err
	}
	if p.rootless {
		return pl, nil
	}
	if p.upperTmp {
		if pl.net, err = newNetwork(k.connected); err != nil {
			return nil, unavailable("%w", err)
		}
		return pl, nil
	}
	if err = p.build(pl); err != nil {
		if _, ok := errors.AsType[*outboard.Error](err); !ok {
			err = unavailable("the sandbox could not be built: %w", err)
		}
		return nil, err
	}
	return pl, nil
}

// build makes the file systems of a plot, and its network.
func (p *Provider) build(pl *plot) error {
	userns, err := p.userNamespace(pl.state.UIDBase)
	if err != nil {
		return err
	}
	pl.userns = userns
	cfg := p.config(pl, sandbox.Spec{})
	cfg.Base = int(pl.state.UIDBase)
	if pl.state.Whole {
		cfg.Upper, cfg.Lower = "", nil // the root is made here
	}
	sources, err := openTrees(cfg, userns)
	if err != nil {
		closeFDs(sources)
		return err
	}
	cfg.Trees = len(sources)
	root := -1
	if len(pl.state.Root) > 0 {
		var mnt int
		if mnt, pl.work, err = p.startWork(&pl.fds, pl.box, pl.state, pl.shape.from, int(userns.Fd())); err != nil {
			closeFDs(sources)
			return err
		}
		if pl.state.Whole {
			root = mnt
		}
	}
	void, err := p.void.open()
	if err != nil {
		closeFDs(sources)
		return err
	}
	return onSpentThread(func() error {
		place, err := boot.Ahead(void, cfg, root, sources, pl.shape.connected)
		if err != nil {
			return err
		}
		pl.mnt, pl.covers, pl.net = place.Mount, place.Trees, network{ns: place.Net, redirected: place.Redirected}
		return nil
	})
}

// onSpentThread runs f on a thread that ends with it, for what a thread cannot undo. It is never the process's first thread, which
// would not end, and which is the one that /proc/self speaks of.
func onSpentThread(f func() error) error {
	done, seen := make(chan error), make(chan struct{})
	defer close(seen)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- f() // never unlocked
			<-seen      // who waits goes on at once, and the thread ends beside it
			return
		}
		err := onSpentThread(f) // elsewhere, while this thread is taken
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// userNamespace makes a user namespace with the ids of a range, to map mounts with. A process has to be in it until it is open.
func (p *Provider) userNamespace(base uint32) (*os.File, error) {
	null, err := openQuiet(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "gate")
	defer theirs.Close()
	g := gate{os.NewFile(uintptr(pair[0]), "gate")}
	n := int(null.Fd())
	pid, err := p.viaSpawner(spawner.Child{Files: [spawner.FirstFree]int{n, n, n, n, n, n}, Program: n, Gate: int(theirs.Fd()), Net: -1, Mount: -1,
		Flags: unix.CLONE_NEWUSER})
	if err != nil {
		g.Close()
		return nil, fmt.Errorf("making a user namespace: %w", err)
	}
	defer func() {
		g.Close() // ends it
		for {
			if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
				return
			}
		}
	}()
	if err := writeMaps(pid, base, false); err != nil {
		return nil, err
	}
	return openQuiet(fmt.Sprintf("/proc/%d/ns/user", pid))
}

// close lets go of what is only in this process: the network and the tree go with it unless a sandbox has them.
func (pl *plot) close() {
	pl.net.close()
	closeAll(pl.files)
	pl.files = nil
	closeFDs(pl.covers)
	pl.covers = nil
	pl.fds.close()
	if pl.userns != nil {
		pl.userns.Close()
		pl.userns = nil
	}
	if pl.birth != nil {
		pl.birth.close() // a guest that still waits ends by that
	}
	if pl.mnt != nil {
		pl.mnt.Close()
		pl.mnt = nil
	}
}

// take gives a plot made ahead to a sandbox: the directory gets its name, which fails when there is one of that name.
func (p *Provider) take(pl *plot, b box) error {
	if p.uids != nil {
		moving, err := p.uids.hold(unix.LOCK_SH)
		if err != nil {
			return err
		}
		defer moving.Close()
	}
	err := unix.Renameat2(unix.AT_FDCWD, pl.box.dir, unix.AT_FDCWD, b.dir, unix.RENAME_NOREPLACE)
	if err != nil {
		return fmt.Errorf("naming the sandbox's directory: %w", err)
	}
	group := pl.box.id
	pl.box = b
	p.rename(group, b.id)
	if p.uids == nil {
		return nil
	}
	if err := p.uids.change(pl.state.UIDBase, owner{dir: b.dir, group: group}); err != nil {
		return fmt.Errorf("naming the owner of a uid range: %w", err)
	}
	return nil
}

// begin gives a plot that was made ahead, and is its sandbox's, the workspace of a checkpoint: an overlay over those layers in the place
// of the one over none. A guest that runs there has touched nothing of it.
func (p *Provider) begin(ctx context.Context, pl *plot, from outboard.CheckpointID) error {
	userns, err := pl.usernsFD()
	if err != nil {
		return died(ctx, pl, err)
	}
	defer unix.Close(userns)
	if err := os.Rename(pl.box.path("1"), pl.box.path("plot")); err != nil { // goes with the sandbox
		return fmt.Errorf("making the workspace: %w", err)
	}
	pl.state.Whole = false                                                // that one is the root's only from now on
	_, trees, err := p.startWork(&pl.fds, pl.box, pl.state, from, userns) // Create closes what is of the overlay before, too
	switch {
	case err != nil:
	case pl.birth == nil: // attached when the guest is there
		pl.work = trees
	default:
		err = inside(pl.state, func() error {
			if _, err := detachTrees(&pl.fds); err != nil {
				return err
			}
			return attachTrees(trees)
		})
		if err == nil {
			pl.fds.letGo(trees) // as start does
		}
	}
	if err != nil && !errors.Is(err, errInUse) {
		err = died(ctx, pl, err)
	}
	if _, ok := errors.AsType[*outboard.Error](err); err != nil && !ok {
		err = unavailable("the sandbox could not be built: %w", err)
	}
	return err
}

// usernsFD opens a user namespace with the ids of a plot. The caller closes it.
func (pl *plot) usernsFD() (int, error) {
	if pl.birth != nil {
		return userNamespaceOf(pl.state.Pid)
	}
	return unix.FcntlInt(pl.userns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// place returns a locked plot under the sandbox's name: one made ahead, or else a new one.
func (p *Provider) place(ctx context.Context, b box, k shape) (pl *plot, unlock func(), err error) {
	empty := k
	empty.from = "" // what is made ahead begins with no checkpoint, and is given one
	if pl = p.shelf.take(empty); pl != nil {
		if unlock, err = pl.box.lock(ctx); err == nil {
			if err = p.take(pl, b); err == nil && k.from != "" && len(pl.state.Root) > 0 {
				err = p.begin(ctx, pl, k.from)
			}
			if err == nil {
				return pl, unlock, nil
			}
			unlock()
		}
		if err = p.giveBack(ctx, pl, b, err); !errors.Is(err, errInUse) {
			return nil, nil, err
		}
		// The guest that waited uses the workspace, for whatever reason: it is made anew.
	}
	if err := os.Mkdir(b.dir, 0o700); errors.Is(err, fs.ErrExist) {
		return nil, nil, outboard.Errorf(outboard.Conflict, "sandbox %s exists", b.id)
	} else if err != nil {
		return nil, nil, outboard.Errorf(outboard.Unavailable, "making the sandbox's directory: %w", err)
	}
	if unlock, err = b.lock(ctx); err != nil {
		return nil, nil, errors.Join(outboard.Errorf(outboard.Conflict, "sandbox %s was destroyed while it was made", b.id), unix.Rmdir(b.dir))
	}
	if pl, err = p.plant(b, k); err != nil {
		err = p.full(err) // asked now: to undo it makes room
		p.undo(ctx, b)
		unlock()
		return nil, nil, err
	}
	return pl, unlock, nil
}

// giveBack is for a plot that could not become a sandbox's, and why.
func (p *Provider) giveBack(ctx context.Context, pl *plot, b box, why error) error {
	if pl.box.dir == b.dir { // moved, but not wholly
		why = p.full(why)
		pl.close()
		p.undo(ctx, b)
		return why
	}
	p.shelf.put(pl)
	if errors.Is(why, fs.ErrExist) {
		return outboard.Errorf(outboard.Conflict, "sandbox %s exists", b.id)
	}
	return why
}

// undo removes what was begun. The caller may have gone; it must be undone all the same.
func (p *Provider) undo(ctx context.Context, b box) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
	defer cancel()
	if err := p.remove(ctx, b); err != nil {
		p.log.Error("half-made sandbox not removed", "dir", b.dir, "err", err)
	}
}

// boxes returns every box below the provider's directory: sandboxes and plots, of this process or another.
func (p *Provider) boxes() ([]box, error) {
	ids, err := p.ids()
	if err != nil {
		return nil, err
	}
	var out []box
	for _, id := range ids {
		out = append(out, box{id: id, dir: filepath.Join(p.dir, string(id))})
	}
	plots, err := filepath.Glob(filepath.Join(p.dir, shelfDir, "*", plotPrefix+"*"))
	for _, dir := range plots {
		out = append(out, box{id: outboard.SandboxID(filepath.Base(dir)), dir: dir})
	}
	return out, err
}
