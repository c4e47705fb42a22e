// Package audit owns what the audit log commits to. It also finds out whether a copy of the log is
// the log that was written.
//
// The records form a Merkle tree as in RFC 6962 (golang.org/x/mod/sumdb/tlog). A leaf commits to a
// record's number, time, action and decision, and to salted digests of its other fields. So a field
// can be taken out later without a trace of what it said, while every hash stays the same. A
// Witness keeps what the database cannot reach: the leaves as they were written, and the signed
// size and root of the tree. Verify compares the records with those and names the first one that
// differs.
//
// Invariants:
//   - A record's number is its place: 1, 2, 3 without gaps. The number is part of the leaf.
//   - A checkpoint is signed only after the log was found to continue the one before it.
//
// It never reads or writes the database (the holder of a log implements Log), never decides what is
// recorded, and never repairs.
//
// Start reading at Verify and Witness.
package audit
