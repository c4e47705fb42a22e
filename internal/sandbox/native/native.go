// Package native makes sandboxes from the kernel's own parts: one clone of the guest into new user,
// mount, pid, network, ipc, uts and cgroup namespaces, an overlay as its root, a cgroup for its
// limits, a system call filter and no capability. It needs no runtime binary, daemon or image.
//
// # What a sandbox is on the host
//
// Everything of a sandbox is below Config.Dir/<id>: state.json (who it is, which process, which uid
// range, which cgroups), the listening socket, the overlay's upper layer, the guest's receipts and
// its log. The exceptions are the cgroup directories, which state.json names before they exist, and
// the reservation of the uid range. The process has no parent that matters: it survives the server
// that made it, and any server process on the same directory finds it again with Open.
//
// # Two modes
//
// As root, every sandbox has a range of 65536 host uids that no other sandbox and no user has. The
// guest is root inside and tools are uid 1000, so they cannot touch the guest even by its files. As
// an ordinary user, the kernel lets us map one uid, and it is both: tools share it with the guest
// and differ in having no capability. The guest is then protected by being init and not dumpable,
// and its files are not in the tools' file system. Capabilities names what each mode does not give.
//
// # What it never does
//
// It never runs anything on the host instead of in a sandbox: where a part is missing, New or
// Create refuse with kind Unavailable and say why. It never trusts a file inside a sandbox with
// host privileges: after the guest has started, the host moves, packs and deletes what was written
// inside by descriptor, and follows no link.
//
// Start reading at Provider.Create in create_linux.go, then at push_linux.go for checkpoints and
// pool_linux.go for what is made ahead.
package native

import "log/slog"

// Config says where and how.
type Config struct {
	// Dir holds the sandboxes of this provider and a cache; it is made when missing, private to the user.
	// Several processes may share it.
	Dir string
	// Guest is the path of the outboard-guest program, a static executable.
	Guest string
	// ReadOnly names further host directories to show inside, read-only, at the same path, with Rootfs "host".
	// None of them may hold a secret or a socket.
	ReadOnly []string
	// Ahead is how many places for sandboxes (directory, uid range, cgroups, network, file systems) are made
	// ahead for each of the last kinds that were asked for, so that Create need not. 0 is none. A provider with
	// some must be closed.
	Ahead int
	// Warm is how many more are made ahead for each of them with a guest that runs and waits to be told whose it
	// is, so that Create need not start one. 0 is none. They are used up first.
	Warm int
	// Reserve is how many bytes of the disk of Dir sandboxes leave: with less no sandbox is made, and programs
	// that go on writing are ended. 0 is none, less than 0 a part of the disk. A provider with some must be
	// closed.
	Reserve int64
	// Logger receives what has no caller to return to; nil discards.
	Logger *slog.Logger
}

// Check is one line of a Report.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // what to do about it, when not OK
}

// Report is what this host can do, for outboard doctor.
type Report struct {
	Checks    []Check  `json:"checks"`
	Isolation string   `json:"isolation,omitempty"` // name of what a sandbox gets, "" where none can be made
	Limits    []string `json:"limits,omitempty"`
	Gaps      []string `json:"gaps,omitempty"` // what it does not protect
	Usable    bool     `json:"usable"`         // a sandbox was made and removed
}
