package egress

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// authority is the certificate authority of one sandbox. Its key never leaves this process but for a private
// file, by which the next server can go on.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // the certificate alone

	leafKey *ecdsa.PrivateKey // one for all leaves: they end in the same process
	mu      sync.Mutex
	leaves  map[string]*tls.Certificate
}

// authority returns the one of a sandbox that is not due for renewal, making it where there is none. Several
// processes of a host end up with the same.
func (g *Gateway) authority(id outboard.SandboxID) (*authority, error) {
	path := g.caPath(id)
	now := g.now()
	a, err := loadAuthority(path)
	if err == nil && now.Before(a.cert.NotBefore.Add(caRenew)) {
		return a, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.log.Warn("a sandbox's certificate authority is unreadable and replaced", "sandbox", id, "err", err)
	}
	data, err := newAuthority(now)
	if err != nil {
		return nil, err
	}
	old := a
	tmp, err := os.CreateTemp(g.dir, ".new-") // private to the user
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp.Name())
	if _, err = tmp.Write(data); err == nil {
		err = tmp.Close()
	}
	if err != nil {
		return nil, err
	}
	if old == nil {
		err = os.Link(tmp.Name(), path) // not over one that another process has just made
	}
	if old != nil || err != nil && !errors.Is(err, fs.ErrExist) {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return loadAuthority(path)
}

func (g *Gateway) caPath(id outboard.SandboxID) string {
	return filepath.Join(g.dir, string(id)+".pem")
}

// newAuthority makes a key and a certificate that can sign for servers and nothing below it.
func newAuthority(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "Outboard egress gateway " + serial.Text(36)[:8]},
		NotBefore:             now,
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	sec, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: sec})...), nil
}

func loadAuthority(path string) (*authority, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key is of another kind")
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &authority{cert: pair.Leaf, key: key, leafKey: leaf, leaves: map[string]*tls.Certificate{},
		pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: bytes.Clone(pair.Leaf.Raw)})}, nil
}

// leaf returns a certificate for a canonical host.
func (a *authority) leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.leaves[host]; c != nil {
		return c, nil
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		NotBefore:    a.cert.NotBefore,
		NotAfter:     a.cert.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		t.IPAddresses = []net.IP{ip}
	} else {
		t.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("signing for %s: %w", host, err)
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey}
	a.leaves[host] = c
	return c, nil
}
