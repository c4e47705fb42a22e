package audit

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Checkpoint is what a log was at a time: any log that continues it has this root at this size.
type Checkpoint struct {
	Origin string    // the name of the key
	Size   int64     // records
	Root   tlog.Hash // of their tree
	At     time.Time // when it was signed
}

const timePrefix = "signed at "

// text is the body of a checkpoint's note, as transparency logs write it, with the time as an extension line.
func (c *Checkpoint) text() string {
	return fmt.Sprintf("%s\n%d\n%s\n%s%s\n", c.Origin, c.Size, c.Root, timePrefix, c.At.UTC().Format(time.RFC3339))
}

// newKey makes the two halves of a signing key.
func newKey() (secret, public string, err error) {
	var id [4]byte
	_, _ = io.ReadFull(rand.Reader, id[:]) // never fails: the program ends instead
	return note.GenerateKey(rand.Reader, "outboard-audit-"+hex.EncodeToString(id[:]))
}

// sign makes the note of a checkpoint.
func (c *Checkpoint) sign(s note.Signer) ([]byte, error) {
	return note.Sign(&note.Note{Text: c.text()}, s)
}

// Open checks the signature of a note against a public key, and reads it.
func Open(public string, text []byte) (Checkpoint, error) {
	var c Checkpoint
	v, err := note.NewVerifier(strings.TrimSpace(public))
	if err != nil {
		return c, errors.New("the public key is not one")
	}
	n, err := note.Open(text, note.VerifierList(v))
	if err != nil {
		return c, errors.New("the checkpoint is not signed by that key")
	}
	lines := strings.Split(n.Text, "\n")
	if len(lines) < 4 || lines[0] != v.Name() {
		return c, errors.New("the checkpoint is not one of an audit log")
	}
	c.Origin = lines[0]
	if c.Size, err = strconv.ParseInt(lines[1], 10, 64); err != nil || c.Size < 0 {
		return c, errors.New("the checkpoint has no size")
	}
	if c.Root, err = tlog.ParseHash(lines[2]); err != nil {
		return c, errors.New("the checkpoint has no root")
	}
	if at, ok := strings.CutPrefix(lines[3], timePrefix); ok {
		c.At, _ = time.Parse(time.RFC3339, at) // what is signed is the text; a time that cannot be read is no time
	}
	return c, nil
}

// ReadKey reads a public key from a file.
func ReadKey(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}
