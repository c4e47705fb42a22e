package sshd

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/crypto/ssh"

	"github.com/outboard-dev/outboard"
)

// maxHostKey bounds the file of a host key.
const maxHostKey = 64 << 10

// HostKey reads the key by which clients know this server, and makes it when there is none. Others of the
// machine may not read the file.
func HostKey(path string) (key ssh.Signer, made bool, err error) {
	b, err := readHostKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		// another server on this directory was faster
		if err := makeHostKey(path); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, false, fmt.Errorf("making the SSH host key: %w", err)
		}
		made = true
		b, err = readHostKey(path)
	}
	if err != nil {
		return nil, false, err
	}
	key, err = ssh.ParsePrivateKey(b)
	if err != nil {
		return nil, false, outboard.Errorf(outboard.Invalid, "reading the SSH host key %s: %w", path, err).
			WithHint("restore it from a backup; if you remove it, the next start makes another one, and every " +
				"client warns")
	}
	return key, made, nil
}

func readHostKey(path string) ([]byte, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if fi.Mode().Perm()&0o077 != 0 || fi.Size() > maxHostKey {
		return nil, outboard.Errorf(outboard.Invalid, "the SSH host key %s has mode %04o and %d bytes: others could "+
			"have read it, or it is none", path, fi.Mode().Perm(), fi.Size()).
			WithHint("chmod 600 %s, if nobody did", path)
	}
	return os.ReadFile(path)
}

// makeHostKey writes a new key whole, under a name that nobody reads, and then gives it its own.
func makeHostKey(path string) error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "outboard")
	if err != nil {
		return err
	}
	temp := path + "." + rand.Text()
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	err = pem.Encode(f, block)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(temp, path) // fails where there is one by now
}
