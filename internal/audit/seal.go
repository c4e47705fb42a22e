package audit

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// Seal is what a server says of a session that it exported, signed with the key of its audit. The first line of
// its text keeps it from being taken for a Checkpoint, and the other way around.
type Seal struct {
	Session string
	Seq     int64
	SHA256  string // of every byte of the file before the seal, in hex
	At      time.Time
	Signer  string // the name of the key
}

// SealSize is the length of a seal in a file, which ends with it: a frame that readers of zstd skip.
const SealSize = sealHead + sealBody

const (
	sealHead  = 8
	sealBody  = 1024
	sealMagic = 0x184D2A5B // one of the sixteen of frames to be skipped
	sealFirst = "outboard-export"
)

func (s *Seal) text() string {
	return fmt.Sprintf("%s\nsession %s\nseq %d\nsha256 %s\n%s%s\n", sealFirst, s.Session, s.Seq, s.SHA256, timePrefix,
		s.At.UTC().Format(time.RFC3339))
}

// Seal signs s as this witness at the present time and returns the SealSize bytes for the file's end.
func (w *Witness) Seal(s Seal) ([]byte, error) {
	s.At = w.now()
	text, err := note.Sign(&note.Note{Text: s.text()}, w.signer)
	if err != nil {
		return nil, fmt.Errorf("signing an export: %w", err)
	}
	if len(text) > sealBody {
		return nil, fmt.Errorf("signing an export: the signature has %d bytes, over %d", len(text), sealBody)
	}
	out := make([]byte, SealSize)
	binary.LittleEndian.PutUint32(out, sealMagic)
	binary.LittleEndian.PutUint32(out[4:], sealBody)
	copy(out[sealHead:], text)
	return out, nil
}

// Sealed reports whether the last SealSize bytes of a file are a seal.
func Sealed(tail []byte) bool {
	return len(tail) == SealSize && binary.LittleEndian.Uint32(tail) == sealMagic &&
		binary.LittleEndian.Uint32(tail[4:]) == sealBody
}

// OpenSeal reads what Sealed recognised. key is the one of keys that signed it, "" when it was another. The
// error says that the seal is damaged, or is not what the key with its name has signed. There is one way to
// write a seal, so that a change of any of its bytes shows.
func OpenSeal(tail []byte, keys []string) (s Seal, key string, err error) {
	text := strings.TrimRight(string(tail[sealHead:]), "\x00")
	byName, known, err := verifiers(keys)
	if err != nil {
		return s, "", err
	}
	n, err := note.Open([]byte(text), note.VerifierList(known...))
	if other, ok := errors.AsType[*note.UnverifiedNoteError](err); ok {
		n, err = other.Note, nil
	}
	if err != nil {
		return s, "", errors.New("it is damaged, or was not made by the key that it names")
	}
	signed := append(n.Sigs, n.UnverifiedSigs...)
	if len(signed) != 1 {
		return s, "", errors.New("it is not of one key")
	}
	if _, err := base64.StdEncoding.Strict().DecodeString(signed[0].Base64); err != nil {
		return s, "", errors.New("it is damaged")
	}
	if s, err = parseSeal(n.Text); err != nil {
		return s, "", err
	}
	s.Signer = signed[0].Name
	if again := n.Text + "\n— " + s.Signer + " " + signed[0].Base64 + "\n"; again != text || s.text() != n.Text {
		return s, "", errors.New("it is damaged")
	}
	if len(n.Sigs) == 1 {
		key = byName[s.Signer]
	}
	return s, key, nil
}

func parseSeal(text string) (s Seal, err error) {
	lines := strings.Split(text, "\n")
	prefixes := []string{sealFirst, "session ", "seq ", "sha256 ", timePrefix, ""}
	if len(lines) != len(prefixes) {
		return s, errors.New("it is not of an export")
	}
	for i, p := range prefixes {
		var ok bool
		if lines[i], ok = strings.CutPrefix(lines[i], p); !ok {
			return s, errors.New("it is not of an export")
		}
	}
	s.Session, s.SHA256 = lines[1], lines[3]
	if s.Seq, err = strconv.ParseInt(lines[2], 10, 64); err != nil {
		return s, errors.New("it has no position")
	}
	if s.At, err = time.Parse(time.RFC3339, lines[4]); err != nil {
		return s, errors.New("it has no time")
	}
	return s, nil
}

// CheckKey reports what is wrong with a public key.
func CheckKey(key string) error {
	if _, err := note.NewVerifier(key); err != nil {
		return fmt.Errorf("%.60q is no public key: outboard audit checkpoint --key shows one, as NAME+HASH+KEY", key)
	}
	return nil
}

// verifiers reads public keys, each once.
func verifiers(keys []string) (byName map[string]string, all []note.Verifier, err error) {
	byName, once := map[string]string{}, map[string]note.Verifier{}
	for _, k := range keys {
		if err := CheckKey(k); err != nil {
			return nil, nil, err
		}
		v, _ := note.NewVerifier(k)
		once[k], byName[v.Name()] = v, k
	}
	return byName, slices.Collect(maps.Values(once)), nil
}
