package control

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"

	"github.com/outboard-dev/outboard/internal/audit"
)

// An export ends with a seal: the exporting server's signature over every byte before it. The manifest can say
// which part was changed; the seal says that nothing was, and who says so.

// sealing hashes what is written.
type sealing struct {
	w   io.Writer
	sum hash.Hash
}

// Write implements io.Writer.
func (s *sealing) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.sum.Write(p[:n])
	return n, err
}

// seal ends an export. A server whose audit is not signed signs no exports.
func (x *Export) seal(s *sealing) error {
	if x.c.witness == nil {
		return nil
	}
	b, err := x.c.witness.Seal(audit.Seal{Session: string(x.session.ID), Seq: x.session.Seq,
		SHA256: hex.EncodeToString(s.sum.Sum(nil))})
	if err == nil {
		_, err = s.w.Write(b)
	}
	return err
}

// SignedBy is the public key of what the export will be signed with, "" when it will not be.
func (x *Export) SignedBy() string {
	if x.c.witness == nil {
		return ""
	}
	return x.c.witness.Public()
}

// sealReader hashes what is read but for the last audit.SealSize bytes, which it keeps.
type sealReader struct {
	r    io.Reader
	sum  hash.Hash
	tail []byte
}

func newSealReader(r io.Reader) *sealReader { return &sealReader{r: r, sum: sha256.New()} }

// Read implements io.Reader.
func (s *sealReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.tail = append(s.tail, p[:n]...)
	if over := len(s.tail) - audit.SealSize; over > 0 {
		s.sum.Write(s.tail[:over])
		s.tail = append(s.tail[:0], s.tail[over:]...)
	}
	return n, err
}

const sealHint = "outboard audit checkpoint --key on the server that exported it shows its key, which --trust " +
	"takes; --unsigned takes the file as anybody's"

// judge returns the key that signed the file, "" for a file that nobody whom this server trusts has signed, if
// the request allows that. Every other entry is known to be what the manifest says.
func (m *importing) judge(file *sealReader) (key string, err error) {
	if _, err := io.Copy(io.Discard, file); err != nil {
		return "", broken("reading its end: %v", err)
	}
	if !audit.Sealed(file.tail) {
		if m.r.Unsigned {
			return "", nil
		}
		return "", broken("it is not signed, or its signature was cut off").WithHint("%s", sealHint)
	}
	keys := append([]string(nil), m.c.trusted...)
	if m.c.witness != nil {
		keys = append(keys, m.c.witness.Public())
	}
	seal, key, err := audit.OpenSeal(file.tail, append(keys, m.r.Trust...))
	if err != nil {
		return "", broken("its signature: %v", err)
	}
	if sum := hex.EncodeToString(file.sum.Sum(nil)); seal.SHA256 != sum || seal.Session != string(m.session.ID) ||
		seal.Seq != m.session.Seq {
		return "", broken("it is not the file that %s signed, which is session %s at %d with SHA-256 %s; this is "+
			"session %s at %d with %s: it was changed, or the signature is another file's",
			quote(seal.Signer), quote(seal.Session), seal.Seq, quote(seal.SHA256), quote(string(m.session.ID)), m.session.Seq, sum)
	}
	if key == "" && !m.r.Unsigned {
		return "", broken("it says that %s signed it, and this server does not trust that key", quote(seal.Signer)).
			WithHint("%s", sealHint)
	}
	return key, nil
}
