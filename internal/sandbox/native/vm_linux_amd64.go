package native

import "syscall"

// sharesMemory: a child lives in the server's memory until it executes the guest. To copy the tables of all the server's pages, and to
// drop the copy again at the exec, is a good part of a start, and grows with the server.
const sharesMemory = true

// cloneShared clones with flags. The child has the stack that ends at stack, and its life is live(c).
func cloneShared(flags, stack uintptr, c *child) (pid uintptr, errno syscall.Errno)
