// Package spawner makes the first processes of sandboxes: it owns the clone, and everything between
// that and the exec of the guest.
//
// A clone copies the caller's page tables and write-protects its memory. So it costs more the
// larger the caller is, and until its exec the child has a copy of all that the caller knows. A
// server therefore has a spawner: the guest's program run once as `outboard-guest nursery` on the
// host. It has little memory and nothing in it, and clones what it is asked for (Serve).
//
// Invariants:
//   - The children are the server's own, by CLONE_PARENT: the server waits for them, and they
//     outlive the spawner.
//   - A spawner ends with the connection to its server.
//
// It never knows what a sandbox is for. It uses the standard library only.
//
// Start reading at Ask for the server's half, and at Serve for the spawner's.
package spawner
