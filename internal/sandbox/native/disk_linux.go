package native

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// A sandbox with a disk limit has a file system of that size for everything it writes: a sparse file in its
// directory, mounted where its writable layer goes. The kernel keeps the limit, whatever the data directory's
// own file system can do, and to remove what is in it, however deep or many, is to remove one file. Its
// workspace is not kept as layers on the host: those would be outside.
const (
	diskImage  = "disk.img"
	diskPrefix = "disk-" // of empty images in the cache, by size and spare room
	diskFlags  = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
	mkfs       = "mkfs.ext4"
)

// What was saved of a full disk takes more room when it is loaded: a directory whose blocks were filled to the
// last byte has half-empty ones when its names come in another order, and files of an image, which are in none
// of its blocks, are written anew. A disk has some room beyond its limit for that, which the kernel keeps for
// one user and one group.
const diskSpareShare, diskSpareMost, diskSpareLeast = 8, 1 << 30, 4 << 20

// spareToNone keeps the spare room from everyone, but for who is privileged on the host. Group 0 is none to the kernel.
const spareToNone = "resuid=4294967294,resgid=0"

// spareToLoad is for the time of loading. An overlay writes as the user who mounted it, the server's, without
// that one's privileges, and makes files with the ids that they are to belong to.
func spareToLoad(s *state) string {
	return "resuid=0,resgid=" + strconv.FormatInt(int64(s.UIDBase)+int64(s.Tool.gid()), 10)
}

// diskSpare is the room beyond a limit.
func diskSpare(limit int64) int64 { return min(limit/diskSpareShare, diskSpareMost) + diskSpareLeast }

// disks reports whether disk limits can hold here, with the reason why not.
func (p *Provider) disks() error {
	switch {
	case p.rootless:
		return errors.New("an ordinary user may not mount file systems")
	case p.upperTmp:
		return errors.New("the data directory's file system cannot hold a writable layer")
	case unix.Access("/dev/loop-control", unix.W_OK) != nil:
		return errors.New("there are no loop devices")
	}
	_, err := mkfsPath()
	return err
}

func mkfsPath() (string, error) {
	if path, err := exec.LookPath(mkfs); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, mkfs)); err == nil {
			return path, nil
		}
	}
	return "", errors.New(mkfs + " is not installed")
}

// mountDisk makes the file system of a place and mounts it at fs.
func (p *Provider) mountDisk(b place, size int64) error {
	image, err := p.emptyDisk(size)
	if err != nil {
		return err
	}
	if err := copySparse(b.path(diskImage), image); err != nil {
		return fmt.Errorf("making a disk: %w", err)
	}
	if err := os.Mkdir(b.path("fs"), 0o700); err != nil {
		return err
	}
	// The device goes with its last user: the mount.
	dev, err := attachLoop(b.path(diskImage))
	if err != nil {
		return fmt.Errorf("making a disk: %w", err)
	}
	defer dev.Close()
	err = unix.Mount(dev.Name(), b.path("fs"), "ext4", diskFlags, "discard,"+spareToNone)
	if err != nil {
		return fmt.Errorf("mounting a disk: %w", err)
	}
	return nil
}

// giveSpare says whose the spare room of a place's disk is, if it has one.
func (b place) giveSpare(to string) error {
	if _, err := os.Lstat(b.path(diskImage)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := unix.Mount("", b.path("fs"), "", unix.MS_REMOUNT|diskFlags, to)
	if err != nil && !errors.Is(err, unix.EINVAL) { // it is not mounted here: a container of the server's was made anew
		return fmt.Errorf("giving the spare room of a disk: %w", err)
	}
	return nil
}

// unmountDisk takes a place's file system away, if it has one. What still uses it has it until it ends.
func (b place) unmountDisk() error {
	err := unix.Unmount(b.path("fs"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("unmounting a disk: %w", err)
	}
	return nil
}

// emptyDisk returns the image of an empty file system, made once per size.
func (p *Provider) emptyDisk(limit int64) (string, error) {
	spare := diskSpare(limit)
	size := limit + spare
	image := filepath.Join(p.dir, cacheDir, fmt.Sprintf("%s%d+%d", diskPrefix, limit, spare))
	if _, err := os.Lstat(image); err == nil {
		return image, nil
	}
	program, err := mkfsPath()
	if err != nil {
		return "", err
	}
	tmp, err := os.CreateTemp(filepath.Join(p.dir, cacheDir), ".new-")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name())
	if err := errors.Join(tmp.Truncate(size), tmp.Close()); err != nil {
		return "", err
	}
	// No journal: the file system does not outlive the machine. No lost+found to speak of, tables made when needed.
	reserve := strconv.FormatFloat(100*float64(spare)/float64(size), 'f', 6, 64)
	cmd := exec.Command(program, "-q", "-F", "-m", reserve, "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard",
		"-i", "8192", tmp.Name())
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("making a file system: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return image, os.Rename(tmp.Name(), image)
}

// copySparse copies a file without its holes.
func copySparse(to, from string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	fi, err := src.Stat()
	if err != nil {
		return err
	}
	if err := dst.Truncate(fi.Size()); err != nil {
		return err
	}
	for off := int64(0); ; {
		data, err := src.Seek(off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // no more
		}
		if err != nil {
			return err
		}
		if off, err = src.Seek(data, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(dst, data), io.NewSectionReader(src, data, off-data)); err != nil {
			return err
		}
	}
}

// attachLoop gives a file a loop device, which frees itself when nobody uses it any more. The caller closes it
// once it is in use.
func attachLoop(path string) (*os.File, error) {
	image, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	cfg := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
	const tries = 64 // others look for a free device too
	for range tries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("ioctl", err)
		}
		dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("loop device %d has no node in /dev", n)
		}
		if err != nil {
			return nil, err
		}
		if err = unix.IoctlLoopConfigure(int(dev.Fd()), &cfg); err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, os.NewSyscallError("ioctl", err)
		}
	}
	return nil, fmt.Errorf("none of %d loop devices was free", tries)
}
