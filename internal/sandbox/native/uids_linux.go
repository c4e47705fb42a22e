package native

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// uidDir holds the table of reserved uid ranges. It is one place for the whole host, because the uids are; a
// reboot clears it together with the sandboxes.
const uidDir = "/run/outboard/uids"

// The table has one slot per range: the directory of the sandbox that has it and, on a second line, the name of
// its cgroups, filled up with zeros. A free range is zeros. A slot is written whole, by one write that no kill
// can tear, under a lock of the file. A file for each range would be made and removed with each sandbox, and
// where /run is on a disk to find an inode for it can be the dearest part of a start.
const (
	uidTable = "ranges"
	slotSize = 1 << 10
)

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
	dir   string             // of the sandbox or slot
	group outboard.SandboxID // name of its cgroups
}

// table opens the slots and locks them, exclusively with unix.LOCK_EX, until they are closed.
func (u *uidPool) table(how int) (*slots, error) {
	path := filepath.Join(u.dir, uidTable)
	fd, err := openRaw(path, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := uninterrupted(func() (int, error) { return 0, unix.Flock(fd, how) }); err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return &slots{fd: fd, path: path}, nil
}

// slots is the open table.
type slots struct {
	fd   int
	path string
}

func (t *slots) close() { unix.Close(t.fd) }

func slotOf(base uint32) int64 { return int64(base-uidBase) / uidRange * slotSize }

// get says whose a range is: nobody's is the zero owner.
func (t *slots) get(base uint32) (owner, error) {
	var slot [slotSize]byte
	n, err := uninterrupted(func() (int, error) { return unix.Pread(t.fd, slot[:], slotOf(base)) })
	if err != nil {
		return owner{}, &os.PathError{Op: "read", Path: t.path, Err: err}
	}
	return parseOwner(slot[:n]), nil
}

// put says whose a range is from now on.
func (t *slots) put(base uint32, o owner) error {
	var slot [slotSize]byte
	text := ""
	if o != (owner{}) {
		text = o.dir + "\n" + string(o.group)
	}
	if len(text) > len(slot) {
		return fmt.Errorf("the directory of a sandbox has a name of %d bytes, and %d are too many", len(o.dir),
			len(slot)-len(o.group))
	}
	copy(slot[:], text)
	n, err := uninterrupted(func() (int, error) { return unix.Pwrite(t.fd, slot[:], slotOf(base)) })
	if err == nil && n < len(slot) {
		err = unix.ENOSPC
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: t.path, Err: err}
	}
	return nil
}

func parseOwner(slot []byte) owner {
	dir, group, _ := strings.Cut(string(bytes.TrimRight(slot, "\x00")), "\n")
	return owner{dir: dir, group: outboard.SandboxID(group)}
}

// all returns the ranges that somebody has.
func (u *uidPool) all() (map[uint32]owner, error) {
	t, err := u.table(unix.LOCK_SH)
	if err != nil {
		return nil, fmt.Errorf("reading the uid ranges: %w", err)
	}
	f := os.NewFile(uintptr(t.fd), t.path)
	defer f.Close()
	owners := map[uint32]owner{}
	r := bufio.NewReaderSize(f, 64*slotSize)
	for base := uint32(uidBase); ; base += uidRange {
		var slot [slotSize]byte
		n, err := io.ReadFull(r, slot[:])
		if o := parseOwner(slot[:n]); o != (owner{}) {
			owners[base] = o
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF { // a full disk can cut the last one short
			return owners, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the uid ranges: %w", err)
		}
	}
}

// hold locks the owners: shared by those who change one while its directory moves, exclusive for who looks for
// the directories.
func (u *uidPool) hold(how int) (*os.File, error) { return lockFile(u.dir, how) }

// change gives a range another owner.
func (u *uidPool) change(base uint32, o owner) error {
	t, err := u.table(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer t.close()
	return t.put(base, o)
}

// firstRanges is among how many ranges the first are drawn, so that a table does not become larger than it has
// to. After each triesAmong of them in vain there are twice as many, up to all of them.
const (
	firstRanges = 4096
	triesAmong  = 8
	doublings   = 3
)

// reserve returns the first uid of a free range. Ranges are drawn at random, so that a new sandbox rarely gets
// the uids of the last one, whose files might still be being removed.
func (u *uidPool) reserve(o owner) (base uint32, err error) {
	t, err := u.table(unix.LOCK_EX)
	if err != nil {
		return 0, fmt.Errorf("reserving a uid range: %w", err)
	}
	defer t.close()
	const tries = 4096
	for i := range tries {
		among := min(uidRanges, firstRanges<<min(i/triesAmong, doublings))
		base = uint32(uidBase + rand.IntN(among)*uidRange)
		if u.overlaps(uint64(base)) || u.filed(base) {
			continue
		}
		now, err := t.get(base)
		if err == nil && now != (owner{}) {
			continue
		}
		if err == nil {
			err = t.put(base, o)
		}
		if err != nil {
			return 0, fmt.Errorf("reserving a uid range: %w", err)
		}
		return base, nil
	}
	return 0, fmt.Errorf("reserving a uid range: none of %d tried was free", tries)
}

// filed reports whether a range is reserved by a server of before there was the table: by a file of its name. Nobody
// takes that away before the host is started again.
func (u *uidPool) filed(base uint32) bool {
	return unix.Access(filepath.Join(u.dir, strconv.FormatUint(uint64(base), 10)), unix.F_OK) == nil
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
	t, err := u.table(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer t.close()
	if now, err := t.get(base); err != nil || now.dir != dir {
		return err
	}
	return t.put(base, owner{})
}

// sweep looks at reservations whose sandbox has no directory any more, as when a data directory was deleted by
// hand. It thaws what is frozen, so that the guest can see that it is an orphan and end, and gives back what has
// no process left. A directory that only this process cannot see (another mount namespace) loses nothing by
// that.
func (p *Provider) sweep(ctx context.Context) error {
	still, err := p.uids.hold(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer still.Close()
	owners, err := p.uids.all()
	if err != nil {
		return err
	}
	for base, o := range owners {
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
		if err := errors.Join(g.remove(ctx), p.uids.release(base, o.dir)); err != nil {
			return err
		}
	}
	return nil
}
