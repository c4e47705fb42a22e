// Package audit says what the audit log commits to, and finds out whether a copy of it is the log that was written.
//
// The records form a Merkle tree as in RFC 6962 (golang.org/x/mod/sumdb/tlog). A leaf commits to a record's number, time, action and
// decision, and to salted digests of its other fields, so that a field can be taken out later without a trace of what it said while
// every hash stays what it was. A Witness keeps what the database cannot reach: the leaves as they were written, and the signed size and
// root of the tree. Against those, Verify names the first record that is not as it was.
//
// Invariants:
//   - A record's number is its place: 1, 2, 3 without gaps. The number is part of the leaf.
//   - A checkpoint is signed only after the log was found to continue the one before it.
//   - Nothing here reads or writes the database; who holds a log implements Log.
//
// It never decides what is recorded, and it never repairs.
package audit
