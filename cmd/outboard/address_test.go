package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/server"
)

// privateCert is a certificate that no system trusts, for a name that is not this machine's.
func privateCert(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "outboard"},
		DNSNames: []string{"outboard.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().
				Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Fails if a command cannot use a server of this machine whose certificate the machine does not trust, uses one
// that shows another certificate, or starts a second server beside it.
func TestServerWithPrivateCertificate(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	env := func(string) string { return "" }
	s, err := startServer(t.Context(), server.Config{Data: data, Config: new(config.Config), Env: env, Serve: true,
		Listen: "127.0.0.1:0",
		TLS:    &tls.Config{Certificates: []tls.Certificate{privateCert(t)}, NextProtos: []string{"http/1.1"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	at := s.address(new(serveOptions))
	if at.Name != "outboard.example" {
		t.Errorf("name %q", at.Name)
	}
	list := func(at address) (int, string) {
		t.Helper()
		if err := publish(data, at); err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		code := run([]string{"--data", data, "ls"}, strings.NewReader(""), io.Discard, &errs, env)
		return code, errs.String()
	}
	if code, errs := list(at); code != exitOK {
		t.Fatalf("with the certificate that the server wrote down: %d\n%s", code, errs)
	}
	key, err := os.ReadFile(keyPath(data))
	if err != nil {
		t.Fatal(err)
	}
	other := at
	other.Certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: privateCert(t).
		Certificate[0]}))
	none := at
	none.Certificate = ""
	for what, at := range map[string]address{"another certificate": other, "no certificate": none} {
		code, errs := list(at)
		if code == exitOK || !strings.Contains(errs, "cannot be talked to") || !strings.Contains(errs, "certificate") {
			t.Errorf("%s: %d\n%s", what, code, errs)
		}
	}
	if now, err := os.ReadFile(keyPath(data)); err != nil || !bytes.Equal(now, key) {
		t.Errorf("the operator's key changed: %v", err)
	}
}
