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

// slot is what one sandbox needs, with everything in it that does not depend on who the sandbox is for: the
// directory, the uid range, the cgroups, the network and, where the host may mount, the whole file system. A
// slot that was made ahead is moved to its sandbox's name when it is taken.
type slot struct {
	place  place
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

// shape is what slots differ in.
type shape struct {
	root      *rootfs
	limits    outboard.SandboxLimits
	connected bool                  // the network is for a gateway
	build     bool                  // one layer holds all that is written
	from      outboard.CheckpointID // whose layers the workspace begins with, "" for the root's
}

func (a shape) equal(b shape) bool {
	return a.limits == b.limits && a.build == b.build && a.from == b.from && a.connected == b.connected &&
		a.root.path == b.root.path && a.root.tool == b.root.tool && slices.Equal(a.root.lower, b.root.lower) &&
		slices.Equal(a.root.binds, b.root.binds)
}

// makeSlot makes a slot in an existing empty directory. What a failure leaves there is found by remove, as what
// a crash leaves is.
func (p *Provider) makeSlot(b place, k shape) (_ *slot, err error) {
	s := &state{ID: b.id, Isolation: p.caps.Isolation, BootID: p.boot, Tool: k.root.tool, Lower: k.root.cached(),
		Cgroups:   p.cgroups.plan(b.id).dirs,
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
		s.SharedRoot = k.sharedRoot()
	}
	s.Build = k.build
	sl := &slot{place: b, state: s, group: p.cgroups.groupOf(s), shape: k}
	defer func() {
		if err != nil {
			sl.close()
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
	if err := p.cgroups.makeGroup(sl.group, k.limits); err != nil {
		return nil, err
	}
	if sl.files, err = p.files(b); err != nil {
		return nil, err
	}
	if p.rootless {
		return sl, nil
	}
	if p.upperTmp {
		if sl.net, err = newNetwork(k.connected); err != nil {
			return nil, unavailable("%w", err)
		}
		return sl, nil
	}
	if err = p.build(sl); err != nil {
		if _, ok := errors.AsType[*outboard.Error](err); !ok {
			err = unavailable("the sandbox could not be built: %w", err)
		}
		return nil, err
	}
	return sl, nil
}

// build makes the file systems of a slot, and its network.
func (p *Provider) build(sl *slot) error {
	userns, err := p.userNamespace(sl.state.UIDBase)
	if err != nil {
		return err
	}
	sl.userns = userns
	cfg := p.config(sl, sandbox.Spec{})
	cfg.Base = int(sl.state.UIDBase)
	if sl.state.SharedRoot {
		cfg.Upper, cfg.Lower = "", nil // the root is made here
	}
	sources, err := openTrees(cfg, userns)
	if err != nil {
		closeFDs(sources)
		return err
	}
	cfg.Trees = len(sources)
	root := -1
	if len(sl.state.Root) > 0 {
		var mnt int
		if mnt, sl.work, err = p.startWork(&sl.fds, sl.place, sl.state, sl.shape.from, int(userns.Fd())); err != nil {
			closeFDs(sources)
			return err
		}
		if sl.state.SharedRoot {
			root = mnt
		}
	}
	void, err := p.void.open()
	if err != nil {
		closeFDs(sources)
		return err
	}
	return onSpentThread(func() error {
		place, err := boot.Ahead(void, cfg, root, sources, sl.shape.connected)
		if err != nil {
			return err
		}
		sl.mnt, sl.covers, sl.net = place.Mount, place.Trees, network{ns: place.Net, redirected: place.Redirected}
		return nil
	})
}

// onSpentThread runs f on a thread that ends with it, for what a thread cannot undo. It is never the process's
// first thread, which would not end, and which is the one that /proc/self speaks of.
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

// userNamespace makes a user namespace with the ids of a range, to map mounts with. A process has to be in it
// until it is open.
func (p *Provider) userNamespace(base uint32) (*os.File, error) {
	null, err := openUnpolled(os.DevNull)
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
	pid, err := p.viaSpawner(spawner.Child{Files: [spawner.FirstFree]int{n, n, n, n, n, n}, Program: n,
		Gate: int(theirs.Fd()), Net: -1, Mount: -1,
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
	return openUnpolled(fmt.Sprintf("/proc/%d/ns/user", pid))
}

// close lets go of what is only in this process: the network and the tree go with it unless a sandbox has them.
func (sl *slot) close() {
	sl.net.close()
	closeAll(sl.files)
	sl.files = nil
	closeFDs(sl.covers)
	sl.covers = nil
	sl.fds.close()
	if sl.userns != nil {
		sl.userns.Close()
		sl.userns = nil
	}
	if sl.birth != nil {
		sl.birth.close() // a guest that still waits ends by that
	}
	if sl.mnt != nil {
		sl.mnt.Close()
		sl.mnt = nil
	}
}

// take gives a slot made ahead to a sandbox: the directory gets its name, which fails when there is one of that name.
func (p *Provider) take(sl *slot, b place) error {
	if p.uids != nil {
		moving, err := p.uids.hold(unix.LOCK_SH)
		if err != nil {
			return err
		}
		defer moving.Close()
	}
	err := unix.Renameat2(unix.AT_FDCWD, sl.place.dir, unix.AT_FDCWD, b.dir, unix.RENAME_NOREPLACE)
	if err != nil {
		return fmt.Errorf("naming the sandbox's directory: %w", err)
	}
	group := sl.place.id
	sl.place = b
	p.rename(group, b.id)
	if p.uids == nil {
		return nil
	}
	if err := p.uids.change(sl.state.UIDBase, owner{dir: b.dir, group: group}); err != nil {
		return fmt.Errorf("naming the owner of a uid range: %w", err)
	}
	return nil
}

// begin gives a slot that was made ahead, and is its sandbox's, the workspace of a checkpoint: an overlay over
// those layers in the place of the one over none. A guest that runs there has touched nothing of it.
func (p *Provider) begin(ctx context.Context, sl *slot, from outboard.CheckpointID) error {
	userns, err := sl.usernsFD()
	if err != nil {
		return died(ctx, sl, err)
	}
	defer unix.Close(userns)
	if err := os.Rename(sl.place.path("1"), sl.place.path("plot")); err != nil { // goes with the sandbox
		return fmt.Errorf("making the workspace: %w", err)
	}
	sl.state.SharedRoot = false // that one is the root's only from now on
	// Create closes what is of the overlay before, too
	_, trees, err := p.startWork(&sl.fds, sl.place, sl.state, from, userns)
	switch {
	case err != nil:
	case sl.birth == nil: // attached when the guest is there
		sl.work = trees
	default:
		err = inside(sl.state, func() error {
			if _, err := detachTrees(&sl.fds); err != nil {
				return err
			}
			return attachTrees(trees)
		})
		if err == nil {
			sl.fds.letGo(trees) // as start does
		}
	}
	if err != nil && !errors.Is(err, errInUse) {
		err = died(ctx, sl, err)
	}
	if _, ok := errors.AsType[*outboard.Error](err); err != nil && !ok {
		err = unavailable("the sandbox could not be built: %w", err)
	}
	return err
}

// usernsFD opens a user namespace with the ids of a slot. The caller closes it.
func (sl *slot) usernsFD() (int, error) {
	if sl.birth != nil {
		return userNamespaceOf(sl.state.Pid)
	}
	return unix.FcntlInt(sl.userns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// slotFor returns a locked slot under the sandbox's name: one made ahead, or else a new one.
func (p *Provider) slotFor(ctx context.Context, b place, k shape) (sl *slot, unlock func(), err error) {
	empty := k
	empty.from = "" // what is made ahead begins with no checkpoint, and is given one
	if sl = p.pool.take(empty); sl != nil {
		if unlock, err = sl.place.lock(ctx); err == nil {
			if err = p.take(sl, b); err == nil && k.from != "" && len(sl.state.Root) > 0 {
				err = p.begin(ctx, sl, k.from)
			}
			if err == nil {
				return sl, unlock, nil
			}
			unlock()
		}
		if err = p.giveBack(ctx, sl, b, err); !errors.Is(err, errInUse) {
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
		return nil, nil, errors.Join(outboard.Errorf(outboard.Conflict, "sandbox %s was destroyed while it was made",
			b.id), unix.Rmdir(b.dir))
	}
	if sl, err = p.makeSlot(b, k); err != nil {
		err = p.full(err) // asked now: to undo it makes room
		p.undo(ctx, b)
		unlock()
		return nil, nil, err
	}
	return sl, unlock, nil
}

// giveBack is for a slot that could not become a sandbox's, and why.
func (p *Provider) giveBack(ctx context.Context, sl *slot, b place, why error) error {
	if sl.place.dir == b.dir { // moved, but not wholly
		why = p.full(why)
		sl.close()
		p.undo(ctx, b)
		return why
	}
	p.pool.put(sl)
	if errors.Is(why, fs.ErrExist) {
		return outboard.Errorf(outboard.Conflict, "sandbox %s exists", b.id)
	}
	return why
}

// undo removes what was begun. The caller may have gone; it must be undone all the same.
func (p *Provider) undo(ctx context.Context, b place) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
	defer cancel()
	if err := p.remove(ctx, b); err != nil {
		p.log.Error("half-made sandbox not removed", "dir", b.dir, "err", err)
	}
}

// places returns every place below the provider's directory: sandboxes and slots, of this process or another.
func (p *Provider) places() ([]place, error) {
	ids, err := p.ids()
	if err != nil {
		return nil, err
	}
	var out []place
	for _, id := range ids {
		out = append(out, place{id: id, dir: filepath.Join(p.dir, string(id))})
	}
	slots, err := filepath.Glob(filepath.Join(p.dir, poolDir, "*", slotPrefix+"*"))
	for _, dir := range slots {
		out = append(out, place{id: outboard.SandboxID(filepath.Base(dir)), dir: dir})
	}
	return out, err
}
