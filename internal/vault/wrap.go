package vault

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"golang.org/x/crypto/argon2"
)

// Wrapper holds a key-encryption key, or reaches a service that does. It is safe for concurrent use.
type Wrapper interface {
	// Kind names the technology in a Wrapping: "file", "keyfile", "passphrase", or a service's own name.
	Kind() string
	// Wrap encrypts a data key under a key that did not wrap another one where the technology can make one. The
	// wrapping is what Unwrap needs besides the key itself; it is stored with the result and is not secret.
	// settle is called when the result is durable; old is the wrapping it replaced, or nil.
	Wrap(ctx context.Context, plain, aad []byte) (wrapping json.RawMessage, wrapped []byte,
		settle func(old json.RawMessage) error, err error)
	// Unwrap is the inverse. NotFound if the key is not here; Denied if it is the wrong one or the data was changed.
	Unwrap(ctx context.Context, wrapping json.RawMessage, wrapped, aad []byte) ([]byte, error)
}

// wrapping is what the wrappers here store.
type wrapping struct {
	Kind    string `json:"kind"`
	ID      string `json:"id,omitempty"`     // which key: of a file, or of a service
	Sealed  string `json:"sealed,omitempty"` // a service's: the key, as it encrypted it
	Salt    []byte `json:"salt,omitempty"`   // passphrase
	Time    uint32 `json:"time,omitempty"`   // Argon2id: passes, KiB, lanes
	Memory  uint32 `json:"memory,omitempty"`
	Threads uint8  `json:"threads,omitempty"`
}

func (w wrapping) raw() json.RawMessage {
	b, err := json.Marshal(w)
	if err != nil {
		panic("vault: encoding a wrapping: " + err.Error()) // strings and numbers only
	}
	return b
}

func parseWrapping(raw json.RawMessage) (w wrapping, err error) {
	if err := json.Unmarshal(raw, &w); err != nil {
		return w, outboard.Errorf(outboard.Denied, "the vault key's wrapping is not readable: %w", err)
	}
	return w, nil
}

// keySize is AES-256's.
const keySize = 32

func aead(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func sealWith(key, plain, aad []byte) ([]byte, error) {
	a, err := aead(key)
	if err != nil {
		return nil, outboard.Errorf(outboard.Internal, "making a cipher: %w", err)
	}
	return a.Seal(nil, nil, plain, aad), nil
}

func openWith(key, sealed, aad []byte) ([]byte, error) {
	a, err := aead(key)
	if err != nil {
		return nil, outboard.Errorf(outboard.Internal, "making a cipher: %w", err)
	}
	plain, err := a.Open(nil, nil, sealed, aad)
	if err != nil {
		return nil, outboard.Errorf(outboard.Denied, "it was changed, or sealed with another key")
	}
	return plain, nil
}

// KeyDir keeps key-encryption keys as files of mode 0600 in a directory of its own, one per rotation. The
// database says which is in use, so a rotation that is killed anywhere leaves one that works.
type KeyDir struct{ Dir string }

// Kind implements Wrapper.
func (d KeyDir) Kind() string { return "file" }

// Wrap implements Wrapper with a new key each time.
func (d KeyDir) Wrap(_ context.Context, plain,
	aad []byte) (json.RawMessage, []byte, func(json.RawMessage) error, error) {
	key := make([]byte, keySize)
	rand.Read(key)
	wrapped, err := sealWith(key, plain, aad)
	if err != nil {
		return nil, nil, nil, err
	}
	id := keyName(key)
	if err := d.write(id, key); err != nil {
		return nil, nil, nil, outboard.Errorf(outboard.Unavailable, "writing the vault key: %w", err)
	}
	settle := func(old json.RawMessage) error { return d.retire(old, id) }
	return wrapping{Kind: d.Kind(), ID: id}.raw(), wrapped, settle, nil
}

// retire removes the key of a wrapping that is used no more. keep is the one in use, "" when that is of another kind.
func (d KeyDir) retire(old json.RawMessage, keep string) error {
	w, err := parseWrapping(old)
	if len(old) == 0 || err != nil || w.Kind != d.Kind() || w.ID == keep {
		return nil
	}
	return errors.Join(os.Remove(d.path(w.ID)), d.sweep(keep))
}

// keyName names a key without telling it.
func keyName(key []byte) string {
	sum := sha256.Sum256(append([]byte("outboard vault key name 1\x00"), key...))
	return hex.EncodeToString(sum[:8])
}

func (d KeyDir) path(id string) string { return filepath.Join(d.Dir, filepath.Base(id)+".key") }

// write makes a key durable before anything is sealed with it.
func (d KeyDir) write(id string, key []byte) error {
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(d.path(id), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(base64.StdEncoding.EncodeToString(key) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return syncDir(d.Dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// sweepAfter is how old a key must be before it counts as left over from a rotation that was killed: one that
// goes on elsewhere is over by then.
const sweepAfter = time.Hour

// sweep removes keys that no row names.
func (d KeyDir) sweep(keep string) error {
	entries, err := os.ReadDir(d.Dir)
	for _, e := range entries {
		info, ierr := e.Info()
		if ierr != nil || e.Name() == keep+".key" || time.Since(info.ModTime()) < sweepAfter ||
			!strings.HasSuffix(e.Name(), ".key") {
			continue
		}
		err = errors.Join(err, os.Remove(filepath.Join(d.Dir, e.Name())))
	}
	return err
}

// Unwrap implements Wrapper.
func (d KeyDir) Unwrap(_ context.Context, raw json.RawMessage, wrapped, aad []byte) ([]byte, error) {
	w, err := parseWrapping(raw)
	if err != nil {
		return nil, err
	}
	key, err := readKey(d.path(w.ID), fromBackup)
	if err != nil {
		return nil, err
	}
	if keyName(key) != w.ID {
		return nil, outboard.Errorf(outboard.Denied, "%s holds another key than the one in use", d.path(w.ID)).
			WithHint(fromBackup)
	}
	return openWith(key, wrapped, aad)
}

// readPrivate reads a short file that nobody else may read. With ours its owner must be the server's user, or
// root: a mode keeps no owner out.
func readPrivate(path, what string, ours bool) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|openNow, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "%s %s is not there", what, path)
	}
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "reading %s: %w", what, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "reading %s: %w", what, err)
	}
	uid, owned := ownerOf(info)
	switch {
	case !info.Mode().IsRegular():
		return nil, outboard.Errorf(outboard.Invalid, "%s %s is not a file", what, path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, outboard.Errorf(outboard.Denied, "%s %s has mode %04o: others may have read it", what, path,
			info.Mode().Perm()).
			WithHint("chmod 600 %s, and make a new one if anyone else uses this machine", path)
	case ours && owned && uid != 0 && uid != os.Geteuid():
		return nil, outboard.Errorf(outboard.Denied, "%s %s belongs to the user %d and not to the server's, %d: "+
			"they may have read it, and can change it", what, path, uid, os.Geteuid()).
			WithHint("chown %d %s, and make a new one if that is somebody else", os.Geteuid(), path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKMS))
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "reading %s: %w", what, err)
	}
	return text, nil
}

// fromBackup is what to do about a key that has sealed something and is not what it was.
const fromBackup = "put it back from your backup: without it the database's secrets are lost, by design"

// readKey reads a key file that nobody else may read. mend is what to do where it holds no key.
func readKey(path, mend string) ([]byte, error) {
	text, err := readPrivate(path, "the vault key", true)
	if e, ok := errors.AsType[*outboard.Error](err); ok {
		switch e.Kind {
		case outboard.NotFound:
			return nil, e.WithHint(fromBackup)
		case outboard.Denied:
			return nil, e.WithHint("chown %d %[2]s; chmod 600 %[2]s; then outboard secret rotate-keys if anyone "+
				"else uses this machine", os.Geteuid(), path)
		}
		return nil, e
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != keySize {
		return nil, outboard.Errorf(outboard.Invalid, "the vault key %s is not 32 bytes in base64", path).
			WithHint("%s", mend)
	}
	return key, nil
}

// KeyFile is one key that somebody else provides and replaces: a mounted secret, a systemd credential. It wraps
// every data key.
type KeyFile struct{ Path string }

// Kind implements Wrapper.
func (f KeyFile) Kind() string { return "keyfile" }

// Wrap implements Wrapper.
func (f KeyFile) Wrap(_ context.Context, plain,
	aad []byte) (json.RawMessage, []byte, func(json.RawMessage) error, error) {
	key, err := readKey(f.Path, fmt.Sprintf("make one with: (umask 077; openssl rand -base64 32 > %s)", f.Path))
	if err != nil {
		return nil, nil, nil, err
	}
	wrapped, err := sealWith(key, plain, aad)
	return wrapping{Kind: f.Kind(), ID: keyName(key)}.raw(), wrapped, func(json.RawMessage) error { return nil }, err
}

// Unwrap implements Wrapper.
func (f KeyFile) Unwrap(_ context.Context, raw json.RawMessage, wrapped, aad []byte) ([]byte, error) {
	w, err := parseWrapping(raw)
	if err != nil {
		return nil, err
	}
	key, err := readKey(f.Path, fromBackup)
	if err != nil {
		return nil, err
	}
	if keyName(key) != w.ID {
		return nil, outboard.Errorf(outboard.NotFound, "%s holds another key than the one in use", f.Path).
			WithHint("put that one back; to replace it, name it as vault.previous_key_file until outboard secret " +
				"rotate-keys is done")
	}
	return openWith(key, wrapped, aad)
}

// Passphrase derives the key from words with Argon2id and a new salt for each wrapping.
type Passphrase struct{ Words outboard.Secret }

// The cost of deriving a key, about a quarter of a second: RFC 9106, section 4, second recommended choice (64
// MiB, 3 passes, 4 lanes).
const (
	argonTime, argonMemory, argonThreads = 3, 64 << 10, 4
	// maxArgonTime and maxArgonMemory bound what a stored wrapping may ask for: a database is not trusted with
	// our memory.
	maxArgonTime, maxArgonMemory = 16, 1 << 20
)

// Kind implements Wrapper.
func (p Passphrase) Kind() string { return "passphrase" }

// Wrap implements Wrapper.
func (p Passphrase) Wrap(_ context.Context, plain,
	aad []byte) (json.RawMessage, []byte, func(json.RawMessage) error, error) {
	w := wrapping{Kind: p.Kind(), Salt: make([]byte, 16), Time: argonTime, Memory: argonMemory, Threads: argonThreads}
	rand.Read(w.Salt)
	wrapped, err := sealWith(p.key(w), plain, aad)
	return w.raw(), wrapped, func(json.RawMessage) error { return nil }, err
}

// Unwrap implements Wrapper.
func (p Passphrase) Unwrap(_ context.Context, raw json.RawMessage, wrapped, aad []byte) ([]byte, error) {
	w, err := parseWrapping(raw)
	if err != nil {
		return nil, err
	}
	if w.Time == 0 || w.Time > maxArgonTime || w.Memory > maxArgonMemory || w.Threads == 0 || len(w.Salt) < 16 {
		return nil, outboard.Errorf(outboard.Denied, "the vault key's wrapping has parameters that are out of range")
	}
	plain, err := openWith(p.key(w), wrapped, aad)
	if err != nil { // one cannot tell these apart
		return nil, outboard.Errorf(outboard.Denied, "the passphrase is not the one in use, or the key's row in the "+
			"database was changed").
			WithHint("start with the passphrase as it was; to replace it, name its variable as " +
				"vault.previous_passphrase_env until outboard secret rotate-keys is done")
	}
	return plain, nil
}

func (p Passphrase) key(w wrapping) []byte {
	return argon2.IDKey([]byte(p.Words.Reveal()), w.Salt, w.Time, w.Memory, w.Threads, keySize)
}
