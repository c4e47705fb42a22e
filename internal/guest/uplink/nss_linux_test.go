package uplink

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"database/sql"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite"
)

func newCertificate(t *testing.T, name string) (*x509.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial := new(big.Int).Lsh(big.NewInt(1), 159) // as long as they may be
	c := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, IsCA: true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// NSS would find a damaged database, or another certificate in it than the gateway's.
func TestNSSDatabase(t *testing.T) {
	dir := t.TempDir()
	if err := makeNSS(dir, os.Getuid(), os.Getgid()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "renewed"} {
		cert, text := newCertificate(t, name)
		if err := writeNSS(dir, text); err != nil {
			t.Fatal(err)
		}
		for _, at := range []string{NSSDir, NSSRootDir} {
			at = filepath.Join(dir, filepath.Base(at))
			var issuer, subject, value, trusted []byte
			db := openSQLite(t, filepath.Join(at, "cert9.db"))
			row := db.QueryRow(`SELECT c.a81, c.a101, c.a11, t.ace536358 FROM nssPublic c, nssPublic t
				WHERE c.a0 = x'00000001' AND t.a0 = x'ce534353' AND t.a81 = c.a81 AND t.a82 = c.a82`)
			if err := row.Scan(&issuer, &subject, &value, &trusted); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(value, cert.Raw) || !bytes.Equal(issuer, cert.RawIssuer) ||
				!bytes.Equal(subject, cert.RawSubject) || string(trusted) != "\xceSCR" {
				t.Errorf("%s of %s: %x %x %x %x", at, name, issuer, subject, value, trusted)
			}
			keys := openSQLite(t, filepath.Join(at, "key4.db"))
			for range 2 { // as NSS sets a password, twice
				if _, err := keys.Exec(`INSERT INTO metaData (id, item1) VALUES ('password', x'00')`); err != nil {
					t.Errorf("%s of %s: %v", at, name, err)
				}
			}
		}
	}
}

func openSQLite(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	var said string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&said); err != nil || said != "ok" {
		t.Fatalf("%s: %v %s", path, err, said)
	}
	return db
}

// What is in its place, which the tool may have made, would be followed or would keep the gateway from being trusted.
func TestNSSOverWhatIsThere(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	if err := makeNSS(dir, os.Getuid(), os.Getgid()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(outside, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, filepath.Base(NSSDir))
	for _, name := range []string{".new", "cert9.db"} {
		if err := os.Symlink(outside, filepath.Join(at, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(at, "key4.db", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, text := newCertificate(t, "ca")
	if err := writeNSS(dir, text); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(outside); err != nil || string(data) != "kept" {
		t.Errorf("a file outside: %q %v", data, err)
	}
	for _, name := range []string{"cert9.db", "key4.db"} {
		openSQLite(t, filepath.Join(at, name))
		if fi, err := os.Lstat(filepath.Join(at, name)); err != nil || !fi.Mode().IsRegular() || fi.Mode().
			Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, fi, err)
		}
	}
}

// A certificate that is cut off would be read past its end.
func TestNSSCut(t *testing.T) {
	cert, _ := newCertificate(t, "ca")
	for n := range len(cert.Raw) {
		if _, err := nssCertificates(cert.Raw[:n]); err == nil {
			t.Errorf("of %d bytes of %d a database is made", n, len(cert.Raw))
		}
	}
	if _, err := nssCertificates(cert.Raw); err != nil {
		t.Errorf("the control: %v", err)
	}
	_, err := sqliteFile(sqliteTable{name: "t", columns: "a", rows: [][]any{{make([]byte, sqlitePage)}}})
	if err == nil {
		t.Error("what does not fit into a page is written")
	}
}
