package outboard

import (
	"errors"
	"syscall"
)

// CodeDiskFull is the code of an error that a full disk of the server's is the reason for.
const CodeDiskFull = "disk_full"

// HintFullDisk is what an operator does about a full disk.
const HintFullDisk = "make room on the server's disk, which may lack inodes only (df -i): remove sessions and boxes " +
	"that nobody needs " +
	"(outboard rm, outboard box rm), images that no sandbox uses (outboard image prune) and stored content that " +
	"nothing names (outboard blob prune)"

// FullDisk is an Unavailable error: the disk of the server has no room for what was being done. err, which may
// name paths, is for the log only; clients are told what was being done, that the disk is full, and what to
// remove.
func FullDisk(doing string, err error) *Error {
	public := doing + ": the server's disk is full"
	return Errorf(Unavailable, "%s: %w", public, err).WithCode(CodeDiskFull).WithPublic("%s", public).
		WithHint(HintFullDisk)
}

// DiskFull reports whether an error says that a disk, or somebody's share of one, is full. The kernel answers
// the same at other limits, of namespaces for one: ask only about errors of files.
func DiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || HasCode(err, CodeDiskFull)
}
