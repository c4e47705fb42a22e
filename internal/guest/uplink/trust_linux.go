package uplink

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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

// JavaSystemStores are where distributions keep the certificates that Java trusts.
var JavaSystemStores = []string{"/etc/ssl/certs/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts",
	"/etc/pki/java/cacerts"}

// javaHomes are where Java is installed, besides the places that somebody chose.
var javaHomes = []string{"/usr/lib/jvm/*", "/usr/java/*", "/usr/local/openjdk-*", "/opt/java/*", "/opt/*"}

// JavaStores returns the files with certificates that the Java programs of this root trust, without links and
// each once.
func JavaStores() []string {
	found := slices.Clone(JavaSystemStores)
	for _, home := range javaHomes {
		for _, sub := range []string{"/lib/security/cacerts", "/jre/lib/security/cacerts"} {
			more, _ := filepath.Glob(home + sub) // the patterns are good ones
			found = append(found, more...)
		}
	}
	var real []string
	for _, path := range found {
		path, err := filepath.EvalSymlinks(path)
		if err == nil && !slices.Contains(real, path) {
			real = append(real, path)
		}
	}
	return real
}

const (
	// maxBundle bounds a system's bundle; they are around 250 KB.
	maxBundle = 4 << 20
	// copySize is how much of one is in memory at a time. All that the guest has ever held of its own stays with
	// it while the sandbox lives.
	copySize = 32 << 10
)

// WriteTrust fills dir, which is TrustDir, with a bundle of the system's certificates and ca, and with what
// trusts ca alone: a truststore, databases of NSS for the tool (uid and gid) and root, and ca itself. It returns
// the system's bundle, "" when there is none. Without ca the others are empty until AddTrust.
func WriteTrust(dir string, ca []byte, uid, gid int) (system string, err error) {
	if err := makeNSS(dir, uid, gid); err != nil {
		return "", err
	}
	f, err := os.OpenFile(filepath.Join(dir, filepath.Base(Bundle)), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return "", fmt.Errorf("writing the certificates: %w", err)
	}
	if system, err = copySystem(f); err == nil {
		_, err = f.Write(ca)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("writing the certificates: %w", err)
	}
	return system, writeAlone(dir, ca)
}

// writeAlone writes what trusts one certificate, or with none the files of nothing that are mounted elsewhere.
func writeAlone(dir string, ca []byte) (err error) {
	var store []byte
	if len(ca) > 0 {
		if store, err = truststore(ca); err == nil {
			err = writeNSS(dir, ca)
		}
	}
	for name, data := range map[string][]byte{Truststore: store, Certificate: ca} {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o644)
		}
	}
	if err != nil {
		return fmt.Errorf("writing the certificates: %w", err)
	}
	return nil
}

// copySystem copies the first of SystemBundles that can be read to f, with a line break at its end, and returns
// its name.
func copySystem(f *os.File) (string, error) {
	for _, path := range SystemBundles {
		fi, err := os.Stat(path)
		if err != nil || !fi.Mode().IsRegular() || fi.Size() > maxBundle {
			continue
		}
		from, err := os.Open(path)
		if err != nil {
			continue
		}
		err = copyLines(f, io.LimitReader(from, maxBundle))
		return path, errors.Join(err, from.Close())
	}
	return "", nil
}

// copyLines copies lines, and ends the last one where r does not.
func copyLines(w io.Writer, r io.Reader) error {
	buf, last := make([]byte, copySize), byte('\n')
	for {
		n, err := r.Read(buf)
		if n > 0 {
			last = buf[n-1]
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF && last != '\n' {
			_, err = w.Write([]byte{'\n'})
			return err
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
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
	if have, err := contains(f, bytes.TrimSpace(ca)); err != nil || have {
		return err
	}
	if err := writeAlone(TrustDir, ca); err != nil {
		return err
	}
	_, err = f.Write(ca) // last: what the bundle has is in the others
	return err
}

// contains reports whether text is somewhere in r.
func contains(r io.Reader, text []byte) (bool, error) {
	buf, kept := make([]byte, copySize+len(text)), 0
	for {
		n, err := r.Read(buf[kept:])
		if bytes.Contains(buf[:kept+n], text) {
			return true, nil
		}
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		keep := min(kept+n, max(len(text)-1, 0)) // text may have begun there
		copy(buf, buf[kept+n-keep:kept+n])
		kept = keep
	}
}

var errNoPEM = errors.New("the certificate to trust is not in PEM form")

// truststore encodes a certificate as a Java keystore of the oldest kind, which every version reads. Its
// password protects nothing: it is the one Java's own truststore has.
func truststore(ca []byte) ([]byte, error) {
	block, _ := pem.Decode(ca)
	if block == nil {
		return nil, errNoPEM
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
