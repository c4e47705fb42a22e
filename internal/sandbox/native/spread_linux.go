package native

import "golang.org/x/sys/unix"

// fsTopDir is FS_TOPDIR_FL of linux/fs.h.
const fsTopDir = 0x00020000

// spread asks the file system to put the directories that are made in dir, with what is in them, apart from each
// other. Ext4 puts them beside each other otherwise, and does not give the place of a removed file to another
// for one to five minutes: where sandboxes come and go, each of the files that one is made of then costs a
// search past all that were removed lately, which took a millisecond. Made apart, a sandbox searches past its
// own. Other file systems have no such order, and refuse: there is nothing to say about it.
func spread(dir string) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return // who uses the directory finds out
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil || flags&fsTopDir != 0 {
		return
	}
	_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|fsTopDir))
}
