package native

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// MountRoot mounts the overlay of a sandbox's root at target, in the mount namespace of the calling thread,
// which is no other's: lower are the layers, top first, and what is written goes to upper, beside which work is
// the kernel's own. All are of this namespace's mounts. What belongs to ToolUID in the layers belongs to tool,
// unless that is 0, where the kernel can map owners. Layers are given to the kernel one by one and as open
// directories, so neither their number (the kernel takes 500) nor the length of their paths is bounded by the
// page that mount(2) has for all options; before Linux 6.8 it is that page, of descriptors' names: about 200
// layers. Unavailable: there are more.
func MountRoot(lower []string, upper, work, target string, tool uint32) error {
	userns, err := toolNamespace(tool)
	if err != nil {
		return fmt.Errorf("mapping the owners of the layers: %w", err)
	}
	if userns != nil {
		defer userns.Close()
		err = mountRoot(lower, upper, work, target, userns, mountRootAny)
	}
	if userns == nil || errors.Is(err, unix.EINVAL) { // before Linux 5.19 no overlay lies on what is mapped
		err = mountRoot(lower, upper, work, target, nil, mountRootAny)
	}
	if err != nil {
		return fmt.Errorf("mounting a root of %d layers: %w", len(lower), err)
	}
	return nil
}

// mountRoot opens the directories and mounts them. userns says whose the layers' files are; nil: whose they are
// on the disk.
func mountRoot(lower []string, upper, work, target string, userns *os.File, way func(descriptors, string) error) error {
	var fds descriptors
	defer fds.close()
	for _, dir := range []string{upper, work} {
		if _, err := openLayer(&fds, dir, nil); err != nil {
			return err
		}
	}
	for _, dir := range lower {
		mapped, err := openLayer(&fds, dir, userns)
		if err != nil {
			return err
		}
		if mapped {
			defer unix.Unmount(dir, unix.MNT_DETACH) // the overlay has a copy
		}
	}
	return way(fds, target)
}

// mountRootAny mounts in the first way that the kernel takes.
func mountRootAny(fds descriptors, target string) error {
	err := mountRootFrom(fds, target, unix.FsconfigSetFd) // Linux 6.13
	for _, older := range []func(descriptors, string) error{mountRootNamed, mountRootPage} {
		if err == nil || !errors.Is(err, errNotTaken) {
			break
		}
		err = older(fds, target)
	}
	return err
}

// openLayer opens a directory for an overlay. One that is mapped lies over the directory itself while it is
// needed: before Linux 6.13 the kernel takes layers by names only, and what is mounted nowhere has none.
func openLayer(fds *descriptors, dir string, userns *os.File) (mapped bool, err error) {
	if userns != nil {
		fd, err := mappedTree(fds, dir, int(userns.Fd()))
		if err == nil {
			err = unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
			return err == nil, os.NewSyscallError("move_mount", err)
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) { // those are of file systems that cannot map
			return false, err
		}
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("opening the layer %s: %w", dir, err)
	}
	fds.add(fd)
	return false, nil
}

// toolNamespace returns a user namespace in which everybody is who they are, but for ToolUID, which is tool, and
// the reverse. nil: tool is 0, or this host makes no user namespaces, which containers do without otherwise.
func toolNamespace(tool uint32) (*os.File, error) {
	if tool <= ToolUID {
		return nil, nil
	}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: ToolUID},
		{ContainerID: ToolUID, HostID: int(tool), Size: 1},
		{ContainerID: ToolUID + 1, HostID: ToolUID + 1, Size: int(tool) - ToolUID - 1}, {ContainerID: int(tool),
			HostID: ToolUID, Size: 1},
		{ContainerID: int(tool) + 1, HostID: int(tool) + 1, Size: math.MaxUint32 - int(tool) - 1}}
	// A namespace is made with a process. This one is stopped before its first instruction, and ended: the
	// descriptor keeps the namespace.
	c := exec.Command("/proc/self/exe")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
		Ptrace: true}
	err := c.Start()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("making a user namespace: %w", err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", c.Process.Pid))
}

// errNotTaken: the kernel does not know this way of naming a layer.
var errNotTaken = errors.New("the kernel takes no layer this way")

// mountRootFrom mounts what add gives to the kernel: the first two of fds are to write to, the others the layers.
func mountRootFrom(fds descriptors, target string, add func(ctx int, key string, fd int) error) error {
	ctx, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("%w: fsopen: %w", errNotTaken, err)
	}
	defer unix.Close(ctx)
	for i, fd := range fds {
		key := "lowerdir+"
		if i < 2 {
			key = [...]string{"upperdir", "workdir"}[i]
		}
		if err := add(ctx, key, fd); err != nil {
			if errors.Is(err, unix.EINVAL) && i <= 2 { // the first of its kind; a later one is refused for what it is
				return fmt.Errorf("%w: %s: %w", errNotTaken, key, err)
			}
			return fmt.Errorf("adding %s: %w", key, err)
		}
	}
	// volatile: nothing of a disposable sandbox is worth a sync when it goes. userxattr: as in native sandboxes,
	// whose layers these are.
	for _, flag := range []string{"volatile", "userxattr"} {
		if err := unix.FsconfigSetFlag(ctx, flag); err != nil {
			return fmt.Errorf("setting %s: %w", flag, err)
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return os.NewSyscallError("fsconfig", err)
	}
	mnt, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(mnt)
	return os.NewSyscallError("move_mount", unix.MoveMount(mnt, "", unix.AT_FDCWD, target,
		unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// mountRootNamed is for Linux 6.8 to 6.12, which take layers one by one but only by name.
func mountRootNamed(fds descriptors, target string) error {
	return mountRootFrom(fds, target,
		func(ctx int, key string, fd int) error { return unix.FsconfigSetString(ctx, key, descriptorName(fd)) })
}

// mountRootPage is for older kernels.
func mountRootPage(fds descriptors, target string) error {
	names := make([]string, len(fds))
	for i, fd := range fds {
		names[i] = descriptorName(fd)
	}
	options := "lowerdir=" + strings.Join(names[2:], ":") + ",upperdir=" + names[0] + ",workdir=" + names[1] +
		",volatile,userxattr"
	if len(options) >= os.Getpagesize() {
		return outboard.Errorf(outboard.Unavailable, "this kernel cannot mount so many layers").
			WithHint("use Linux 6.8 or newer, or an image of fewer layers")
	}
	return os.NewSyscallError("mount", unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options))
}

func descriptorName(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
