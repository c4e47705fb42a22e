package native

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// uidDir holds one file per reserved uid range, named by the range and containing the directory of its sandbox and, on a second line,
// the name of its cgroups. It is one place for the whole host, because the uids are; a reboot clears it together with the sandboxes.
const uidDir = "/run/outboard/uids"

// unownedFor is how old a file in it without an owner gets whose maker lives.
const unownedFor = time.Hour

// uidPool hands out uid ranges that no sandbox of this host has.
type uidPool struct {
	dir   string
	taken [][2]uint64 // ranges the host gave to users' own namespaces, first and past-the-end
}

func newUIDPool(dir string) (*uidPool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the uid range directory: %w", err)
	}
	u := &uidPool{dir: dir}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		ranges, err := readSubIDs(file)
		if err != nil {
			return nil, err
		}
		u.taken = append(u.taken, ranges...)
	}
	return u, nil
}

// readSubIDs reads "name:first:count" lines.
func readSubIDs(file string) ([][2]uint64, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading subordinate ids: %w", err)
	}
	defer f.Close()
	var ranges [][2]uint64
	for sc := bufio.NewScanner(f); sc.Scan(); {
		parts := strings.Split(sc.Text(), ":")
		if len(parts) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(parts[1], 10, 32)
		count, err2 := strconv.ParseUint(parts[2], 10, 32)
		if err1 == nil && err2 == nil {
			ranges = append(ranges, [2]uint64{first, first + count})
		}
	}
	return ranges, nil
}

// owner is who has a range.
type owner struct {
	dir   string             // of the sandbox or plot
	group outboard.SandboxID // name of its cgroups
}

// write says whose a range is, in its file as it is: whoever looks for owners that are gone has the lock.
func (u *uidPool) write(base uint32, o owner) error {
	fd, err := openSmall(u.file(base), unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), u.file(base))
	return errors.Join(o.writeTo(f), f.Close())
}

// writeTo makes an owner the content of a file, with one write that no kill can tear. A shorter one gets slashes after the directory,
// which mean nothing there, so that nothing is left of the one before.
func (o owner) writeTo(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	group := "\n" + string(o.group)
	fill := max(0, int(fi.Size())-len(o.dir)-len(group))
	_, err = f.WriteAt([]byte(o.dir+strings.Repeat("/", fill)+group), 0)
	return err
}

// read says whose a range is; the zero owner is that of one that is being made, or whose maker was killed.
func (u *uidPool) read(base uint32) (owner, error) {
	data, err := readSmall(u.file(base))
	dir, group, _ := strings.Cut(string(data), "\n")
	return owner{dir: strings.TrimRight(dir, "/"), group: outboard.SandboxID(group)}, err
}

// hold locks the owners: shared by those who change one while its directory moves, exclusive for who looks for the directories.
func (u *uidPool) hold(how int) (*os.File, error) { return lockFile(u.dir, how) }

// reserve returns the first uid of a free range. Ranges are drawn at random, so that a new sandbox rarely gets the uids of the
// last one, whose files might still be being removed. A reservation whose maker is killed before its owner is in it is nobody's to give back:
// sweep does, an hour later.
func (u *uidPool) reserve(o owner) (uint32, error) {
	const tries = 4096
	for range tries {
		base := uint32(uidBase + rand.IntN(uidRanges)*uidRange)
		if u.overlaps(uint64(base)) {
			continue
		}
		fd, err := openSmall(u.file(base), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("reserving a uid range: %w", err)
		}
		f := os.NewFile(uintptr(fd), u.file(base))
		if err := errors.Join(o.writeTo(f), f.Close()); err != nil {
			return 0, fmt.Errorf("reserving a uid range: %w", errors.Join(err, os.Remove(f.Name())))
		}
		return base, nil
	}
	return 0, fmt.Errorf("reserving a uid range: none of %d tried was free", tries)
}

func (u *uidPool) overlaps(base uint64) bool {
	for _, t := range u.taken {
		if base < t[1] && t[0] < base+uidRange {
			return true
		}
	}
	return false
}

// release gives a range back, if it is still of dir: after a reboot it may have become another's.
func (u *uidPool) release(base uint32, dir string) error {
	now, err := u.read(base)
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.dir != dir {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Remove(u.file(base)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (u *uidPool) file(base uint32) string {
	return filepath.Join(u.dir, strconv.FormatUint(uint64(base), 10))
}

// sweep looks at reservations whose sandbox has no directory any more, as when a data directory was deleted by hand. It thaws what
// is frozen, so that the guest can see that it is an orphan and end, and gives back what has no process left. A directory that
// only this process cannot see (another mount namespace) loses nothing by that.
func (p *Provider) sweep(ctx context.Context) error {
	still, err := p.uids.hold(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer still.Close()
	entries, err := os.ReadDir(p.uids.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		base, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil {
			p.uids.discard(e)
			continue
		}
		o, err := p.uids.read(uint32(base))
		if err != nil {
			continue // gone
		}
		if o.dir == "" {
			p.uids.discard(e)
			continue
		}
		if _, err := os.Lstat(o.dir); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		g := p.cgroups.plan(o.group)
		if busy, err := g.busy(); err != nil || busy {
			if err := g.setFrozen(ctx, false); err != nil {
				p.log.Warn("orphaned sandbox not thawed", "dir", o.dir, "err", err)
			}
			continue
		}
		if err := errors.Join(g.remove(ctx), p.uids.release(uint32(base), o.dir)); err != nil {
			return err
		}
	}
	return nil
}

// discard removes a file without an owner that a killed process has left; one that is young may be being made.
func (u *uidPool) discard(e fs.DirEntry) {
	if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > unownedFor {
		_ = os.Remove(filepath.Join(u.dir, e.Name()))
	}
}
