package guest

import (
	"archive/tar"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"
	"unsafe"
)

// Extended attributes go into a workspace's tar as records of its entries, as other programs that write tars
// name them, and only those that users may set: others mean something to a kernel, or are not a tool's to give.
const (
	attrRecord = "SCHILY.xattr."
	userAttr   = "user."

	// maxSavedAttrs bounds the attributes of one file in a tar, and maxSavedAttrBytes their names and values:
	// package tar reads no more than 1 MiB of records. Most file systems hold less: ext4 some 4 KiB.
	maxSavedAttrs     = 4096
	maxSavedAttrBytes = 768 << 10
	// attrCost is what an attribute takes beside its name and value.
	attrCost = 32
)

// PackAttrs adds the attributes of an open file or directory to its header, as many as are saved.
func PackAttrs(h *tar.Header, fd int) error {
	attrs, err := savedAttrs(fd)
	if err != nil {
		return fmt.Errorf("reading the attributes of %q: %w", h.Name, err)
	}
	for name, value := range attrs {
		if h.PAXRecords == nil {
			h.PAXRecords = make(map[string]string)
		}
		h.PAXRecords[attrRecord+name] = value
	}
	return nil
}

// savedAttrs returns the attributes of an open file or directory, but for those of which there are too many.
func savedAttrs(fd int) (map[string]string, error) {
	names, err := attrNames(fd)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	attrs, room, value := make(map[string]string), maxSavedAttrBytes, make([]byte, maxAttrs)
	for _, name := range names {
		n, err := attrCall(syscall.SYS_FGETXATTR, fd, name, value)
		if err == syscall.ENODATA { // removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		if room = fit(room, len(attrs), len(name)+n); room < 0 {
			break
		}
		attrs[name] = string(value[:n])
	}
	return attrs, nil
}

// fit returns the room that is left by an attribute of so many bytes, the n-th, or less than none.
func fit(room, n, size int) int {
	if n >= maxSavedAttrs {
		return -1
	}
	return room - size - attrCost
}

// attrNames returns the names of attributes that are saved, in order. A tar has no place for those with an "=".
func attrNames(fd int) ([]string, error) {
	n, err := listAttrs(fd, nil)
	if n == 0 || err != nil {
		return nil, err
	}
	list := make([]byte, maxAttrs) // the most that there can be
	if n, err = listAttrs(fd, list); err != nil {
		return nil, err
	}
	names := strings.Split(string(list[:n]), "\x00")
	names = slices.DeleteFunc(names,
		func(name string) bool { return !strings.HasPrefix(name, userAttr) || strings.Contains(name, "=") })
	slices.Sort(names)
	return names, nil
}

// listAttrs returns nothing where there are no attributes, or more than the kernel names.
func listAttrs(fd int, list []byte) (int, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_FLISTXATTR, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(list))),
		uintptr(len(list)))
	switch errno {
	case syscall.EOPNOTSUPP, syscall.ENOSYS, syscall.E2BIG:
		return 0, nil
	}
	return int(n), errnoErr(errno)
}

// sumAttrs adds the attributes of a header to a file's sum.
func sumAttrs(sum io.Writer, h *tar.Header) {
	for _, name := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		fmt.Fprintf(sum, "%q%q", name, h.PAXRecords[name])
	}
}

// headerAttrs returns the attributes of a header, those that may be set. A guest writes no more than are saved.
func headerAttrs(h *tar.Header) (map[string]string, error) {
	var attrs map[string]string
	room := maxSavedAttrBytes
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, attrRecord)
		if !ok || !strings.HasPrefix(name, userAttr) {
			continue
		}
		if room = fit(room, len(attrs), len(name)+len(value)); room < 0 {
			return nil, fmt.Errorf("more than %d attributes, or %d bytes of them", maxSavedAttrs, maxSavedAttrBytes)
		}
		if attrs == nil {
			attrs = make(map[string]string)
		}
		attrs[name] = value
	}
	return attrs, nil
}

// giveAttrs gives an open file or directory the attributes of its header. What a file system does not hold is
// left out: it holds less than another, or none.
func giveAttrs(fd int, h *tar.Header) error {
	attrs, err := headerAttrs(h)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		switch err := setXattr(fd, name, attrs[name]); err {
		case nil, syscall.EOPNOTSUPP, syscall.ENOSPC, syscall.E2BIG:
		default:
			return fmt.Errorf("setting the attribute %q: %w", name, err)
		}
	}
	return nil
}

// onlyAttrs gives an open directory the attributes of its header, and takes others away.
func onlyAttrs(fd int, h *tar.Header) error {
	names, err := attrNames(fd)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, keep := h.PAXRecords[attrRecord+name]; keep {
			continue
		}
		if _, err := attrCall(syscall.SYS_FREMOVEXATTR, fd, name, nil); err != nil && err != syscall.ENODATA {
			return fmt.Errorf("removing the attribute %q: %w", name, err)
		}
	}
	return giveAttrs(fd, h)
}

// attrCall makes a system call about one attribute of an open file.
func attrCall(call uintptr, fd int, name string, value []byte) (int, error) {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return 0, err
	}
	n, _, errno := syscall.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(p)),
		uintptr(unsafe.Pointer(unsafe.SliceData(value))),
		uintptr(len(value)), 0, 0)
	return int(n), errnoErr(errno)
}
