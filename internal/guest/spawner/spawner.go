// Package spawner makes the first processes of sandboxes: it clones, and what is between that and the exec of
// the guest.
//
// A clone copies the page tables of who calls it and write-protects its memory, so it costs the more the larger
// that is, and until its exec the child has a copy of all that the caller knows. A server therefore has a
// spawner: the guest's program run once as `outboard-guest nursery` on the host, a process with little memory
// and nothing in it, which clones what it is asked for (Serve). The children are the server's own, by
// CLONE_PARENT: it waits for them, and they outlive the spawner. A spawner ends with the connection to its
// server.
//
// It uses the standard library only.
package spawner
