package native

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mapsRange reports whether this process may give a sandbox a uid range of its own: it is root, and of a user
// namespace that has those uids (root in a container often has not).
func mapsRange() bool {
	if os.Geteuid() != 0 {
		return false
	}
	for _, file := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		f, err := os.Open(file)
		if err != nil {
			return false
		}
		found := false
		for sc := bufio.NewScanner(f); sc.Scan(); {
			var inside, outside, count uint64
			if n, _ := fmt.Sscan(sc.Text(), &inside, &outside, &count); n == 3 && inside <= uidBase &&
				inside+count >= 1<<31 {
				found = true
			}
		}
		f.Close()
		if !found {
			return false
		}
	}
	return true
}

// namespacesRefused returns why the kernel will not make the namespaces of a sandbox for us, or "": a setting
// that says so, else what it answers when asked.
func namespacesRefused() string {
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		return "this kernel has no user namespaces"
	}
	if n, ok := sysctl("user/max_user_namespaces"); ok && n == 0 {
		return "user namespaces are switched off (user.max_user_namespaces = 0)"
	}
	if os.Geteuid() == 0 {
		return namespacesTried()
	}
	if n, ok := sysctl("kernel/unprivileged_userns_clone"); ok && n == 0 {
		return "user namespaces are for root only on this host (kernel.unprivileged_userns_clone = 0)"
	}
	if n, ok := sysctl("kernel/apparmor_restrict_unprivileged_userns"); ok && n != 0 {
		return "AppArmor keeps user namespaces from ordinary users (kernel.apparmor_restrict_unprivileged_userns = " +
			strconv.FormatInt(n, 10) + ")"
	}
	return namespacesTried()
}

// namespacesTried returns why namespaces cannot be made here, or "".
func namespacesTried() string {
	switch err := tryNamespaces(); {
	case err == nil:
		return ""
	case errors.Is(err, unix.ENOSPC): // the kernel's answer at a limit, which has nothing to do with a disk
		return "a limit on namespaces is reached (user.max_*_namespaces, here or in an outer user namespace)"
	default:
		return "the kernel refuses new namespaces: " + err.Error()
	}
}

func sysctl(name string) (int64, bool) {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// holdsUpper reports whether dir's file system can be the writable layer of an overlay. Overlays themselves and
// network and FUSE file systems cannot.
func holdsUpper(dir string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false
	}
	switch int64(st.Type) {
	case unix.OVERLAYFS_SUPER_MAGIC, unix.NFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.V9FS_MAGIC,
		unix.ECRYPTFS_SUPER_MAGIC, unix.MSDOS_SUPER_MAGIC, unix.EXFAT_SUPER_MAGIC:
		return false
	}
	return true
}

// filesFor returns how many files each of a number of processes may have open. What they can have together is
// bounded by the host's own limit, which for everybody but an administrator's processes ends all work on the
// host when it is reached.
func (p *Provider) filesFor(pids int) uint64 {
	data, err := readRaw("/proc/sys/fs/file-max")
	if err != nil {
		return minFiles
	}
	host, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return minFiles
	}
	return shareFiles(host, pids)
}

func shareFiles(host uint64, pids int) uint64 {
	share := uint64(float64(host) * filesShare / float64(max(1, pids+guestPids)))
	return min(max(share, minFiles), maxFiles)
}
