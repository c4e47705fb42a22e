package uplink

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf16"
)

// SystemBundles are where distributions keep the certificates that programs trust by default.
var SystemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Arch, Gentoo, Alpine
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",                            // SUSE
	"/etc/ssl/cert.pem",                                 // Alpine
}

// maxBundle bounds a system's bundle; they are around 250 KB.
const maxBundle = 4 << 20

// WriteTrust fills dir, which is TrustDir, with a bundle of the system's certificates and ca, and a truststore of ca. It returns the
// system's bundle, "" when there is none. Without ca the truststore is empty until AddTrust.
func WriteTrust(dir string, ca []byte) (system string, err error) {
	var old []byte
	for _, path := range SystemBundles {
		fi, err := os.Stat(path)
		if err != nil || !fi.Mode().IsRegular() || fi.Size() > maxBundle {
			continue
		}
		if old, err = os.ReadFile(path); err == nil {
			system = path
			break
		}
	}
	if len(old) > 0 && old[len(old)-1] != '\n' {
		old = append(old, '\n')
	}
	var store []byte
	if len(ca) > 0 {
		if store, err = truststore(ca); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(Bundle)), append(old, ca...), 0o644); err != nil {
		return "", fmt.Errorf("writing the certificates: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(Truststore)), store, 0o644); err != nil {
		return "", fmt.Errorf("writing the certificates: %w", err)
	}
	return system, nil
}

// trusting is held while the files are added to.
var trusting sync.Mutex

// AddTrust makes one more certificate trusted, in the files as they are: they may be mounted elsewhere as well.
func AddTrust(ca []byte) error {
	trusting.Lock()
	defer trusting.Unlock()
	f, err := os.OpenFile(Bundle, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	have, err := os.ReadFile(Bundle)
	if err != nil || bytes.Contains(have, bytes.TrimSpace(ca)) {
		return err
	}
	store, err := truststore(ca)
	if err != nil {
		return err
	}
	if _, err := f.Write(ca); err != nil {
		return err
	}
	return os.WriteFile(Truststore, store, 0o644)
}

// truststore encodes a certificate as a Java keystore of the oldest kind, which every version reads. Its password protects nothing:
// it is the one Java's own truststore has.
func truststore(ca []byte) ([]byte, error) {
	block, _ := pem.Decode(ca)
	if block == nil {
		return nil, errors.New("the certificate to trust is not in PEM form")
	}
	const password, magic, version, trusted = "changeit", 0xfeedfeed, 2, 2
	b := binary.BigEndian.AppendUint32(nil, magic)
	b = binary.BigEndian.AppendUint32(b, version)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, trusted)
	str := func(s string) {
		b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
		b = append(b, s...)
	}
	str("outboard")
	b = binary.BigEndian.AppendUint64(b, uint64(time.Now().UnixMilli()))
	str("X.509")
	b = binary.BigEndian.AppendUint32(b, uint32(len(block.Bytes)))
	b = append(b, block.Bytes...)
	h := sha1.New() // what the format has
	for _, u := range utf16.Encode([]rune(password)) {
		h.Write([]byte{byte(u >> 8), byte(u)})
	}
	h.Write([]byte("Mighty Aphrodite"))
	h.Write(b)
	return h.Sum(b), nil
}
