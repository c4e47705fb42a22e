package audit

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/outboard-dev/outboard"
)

// Entry is a record with what ties it to the tree.
type Entry struct {
	outboard.AuditRecord
	Proof  []byte `json:"proof"`  // its salt; once redacted, what stands for each field
	Hashes []byte `json:"hashes"` // the leaf, then the subtrees that the record completes, each of HashSize bytes
}

const (
	// HashSize is the length of each hash of Entry.Hashes.
	HashSize = tlog.HashSize
	// saltSize is that of a record's salt: nobody tries 2^128 of them to find out what a redacted field said.
	saltSize = 16
	// keptSize is one field of a redacted record's proof: whether it is gone, and its salt or its digest.
	keptSize = 1 + sha256.Size
)

// Fields are the parts of a record that Redact can take out, in the order in which a leaf commits to them.
var Fields = []string{"actor", "resource", "rule", "detail"}

// Redacted stands where a field was taken out.
const Redacted = "[redacted]"

// ActionRedact is the action of the records that say which others were redacted.
const ActionRedact = "audit.redact"

// Salt is the proof of a new record.
func Salt() []byte {
	b := make([]byte, saltSize)
	_, _ = rand.Read(b) // never fails: the program ends instead
	return b
}

// field returns the text of one of Fields.
func field(r *outboard.AuditRecord, name string) string {
	switch name {
	case "actor":
		return r.Actor
	case "resource":
		return r.Resource
	case "rule":
		return r.Rule
	}
	return string(r.Detail)
}

// gone is what a redacted field says.
func gone(name string) string {
	if name == "detail" {
		return `"` + Redacted + `"`
	}
	return Redacted
}

// fieldSalt is a field's own salt: showing one field needs no other's.
func fieldSalt(salt []byte, name string) [sha256.Size]byte {
	var b [64]byte
	return sha256.Sum256(append(append(append(b[:0], "salt of "...), name...), salt...))
}

func digest(salt []byte, text string) [sha256.Size]byte {
	b := make([]byte, 0, 512)
	return sha256.Sum256(append(append(b, salt...), text...))
}

// ErrProof says that a record's proof is not one.
var ErrProof = errors.New("its proof is broken")

// Digests are what stands for each of Fields in a leaf. They do not depend on the record's place in the log.
type Digests [4][sha256.Size]byte

// DigestsOf returns the digests of a record with a salt, as Salt returns it.
func DigestsOf(r *outboard.AuditRecord, salt []byte) (d Digests) {
	for i, name := range Fields {
		own := fieldSalt(salt, name)
		d[i] = digest(own[:], field(r, name))
	}
	return d
}

// LeafOf is the hash of a new record in the tree: of its number, its time, what cannot be redacted, and its digests.
func LeafOf(r *outboard.AuditRecord, d *Digests) tlog.Hash {
	b := make([]byte, 0, 512)
	b = append(b, "outboard audit record 1\n"...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Num))
	b = binary.BigEndian.AppendUint64(b, uint64(r.At.UnixMicro()))
	for _, s := range []string{r.Org, r.Action, r.Decision} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	for i := range d {
		b = append(b, d[i][:]...)
	}
	return tlog.RecordHash(b)
}

// Leaf is the hash of a record in the tree, from its proof.
func Leaf(r *outboard.AuditRecord, proof []byte) (tlog.Hash, error) {
	if len(proof) == saltSize {
		d := DigestsOf(r, proof)
		return LeafOf(r, &d), nil
	}
	if len(proof) != len(Fields)*keptSize {
		return tlog.Hash{}, ErrProof
	}
	var d Digests
	for i, name := range Fields {
		switch kept := part(proof, i); {
		case kept[0] == 0:
			d[i] = digest(kept[1:], field(r, name))
		case field(r, name) != gone(name):
			return tlog.Hash{}, errors.New("a field that was redacted says something")
		default:
			copy(d[i][:], kept[1:])
		}
	}
	return LeafOf(r, &d), nil
}

// part is what a redacted record's proof has for field i.
func part(proof []byte, i int) []byte {
	if len(proof) == saltSize {
		return nil
	}
	return proof[i*keptSize:][:keptSize]
}

// IsRedacted reports whether any field of an entry was taken out.
func (e *Entry) IsRedacted() bool { return len(e.Proof) != saltSize }

// Redact takes fields out of an entry for good. The leaf stays what it was.
func (e *Entry) Redact(fields ...string) error {
	proof := make([]byte, 0, len(Fields)*keptSize)
	r := e.AuditRecord
	for i, name := range Fields {
		kept := part(e.Proof, i)
		if kept == nil {
			salt := fieldSalt(e.Proof, name)
			kept = append([]byte{0}, salt[:]...)
		}
		if slices.Contains(fields, name) && kept[0] == 0 {
			d := digest(kept[1:], field(&r, name))
			kept = append([]byte{1}, d[:]...)
			setGone(&r, name)
		}
		proof = append(proof, kept...)
	}
	before, err := Leaf(&e.AuditRecord, e.Proof)
	if err != nil {
		return err
	}
	if after, err := Leaf(&r, proof); err != nil || after != before || !bytes.HasPrefix(e.Hashes, before[:]) {
		return errors.Join(err, errors.New("the record is not as it was written"))
	}
	e.AuditRecord, e.Proof = r, proof
	return nil
}

func setGone(r *outboard.AuditRecord, name string) {
	switch name {
	case "actor":
		r.Actor = gone(name)
	case "resource":
		r.Resource = gone(name)
	case "rule":
		r.Rule = gone(name)
	case "detail":
		r.Detail = outboard.Raw(gone(name))
	}
}
