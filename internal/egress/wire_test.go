package egress

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// tap is a socket whose writes can be kept instead.
type tap struct {
	net.Conn
	keep bool
	kept []byte
}

func (p *tap) Write(b []byte) (int, error) {
	if p.keep {
		p.kept = append(p.kept, b...)
		return len(b), nil
	}
	return p.Conn.Write(b)
}

// sides are the two ends of one connection under TLS, the second on a wire, and the socket of the first.
func sides(t *testing.T, version uint16) (plain *tls.Conn, under *tap, s *secured) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	for _, c := range []net.Conn{a, b} {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"a.test"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	under = &tap{Conn: a}
	plain = tls.Server(under, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MaxVersion: version,
		DynamicRecordSizingDisabled: true})
	roots := x509.NewCertPool()
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(cert)
	w := &wire{Conn: b}
	s = &secured{tls.Client(w, &tls.Config{RootCAs: roots, ServerName: "a.test"}), w}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := plain.Handshake(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Handshake(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	return plain, under, s
}

// Broken if bytes are lost, doubled or swapped, for any lengths of what is written and read on either side.
func TestWireCarriesEverything(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		plain, _, s := sides(t, version)
		const total = 8 << 20
		text := make([]byte, total)
		_, _ = rand.Read(text)
		send := func(to net.Conn) {
			for rest := text; len(rest) > 0; {
				n := min(1+mrand.IntN(200<<10), len(rest))
				if _, err := to.Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
		}
		receive := func(from net.Conn) {
			h, left := sha256.New(), total
			for left > 0 {
				b := make([]byte, 1+mrand.IntN(150<<10))
				n, err := from.Read(b)
				if err != nil {
					t.Error(err)
					return
				}
				h.Write(b[:n])
				left -= n
			}
			if want := sha256.Sum256(text); left != 0 || !bytes.Equal(h.Sum(nil), want[:]) {
				t.Errorf("version %x: what came is not what was sent", version)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() { send(plain) })
		wg.Go(func() { send(s) })
		wg.Go(func() { receive(plain) })
		wg.Go(func() { receive(s) })
		wg.Wait()
		if s.wire.spoken() || s.wire.in != nil || s.wire.out != nil {
			t.Errorf("version %x: a buffer is kept by a connection that is silent", version)
		}
	}
}

// Broken if what has come waits for a record that has come only in part: a stream would stand still in the gateway.
func TestWireDoesNotWaitForMore(t *testing.T) {
	plain, under, s := sides(t, tls.VersionTLS13)
	b := make([]byte, 64<<10)
	if _, err := plain.Write(b[:maxRecord]); err != nil { // from here on more is expected
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, b[:maxRecord]); err != nil {
		t.Fatal(err)
	}
	// Three records, of which the last comes without its end.
	under.keep = true
	if _, err := plain.Write(bytes.Repeat([]byte("x"), 3*maxRecord)); err != nil {
		t.Fatal(err)
	}
	under.keep = false
	records := under.kept
	cut := len(records) - 100
	if _, err := under.Write(records[:cut]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, b[:2*maxRecord]); err != nil {
		t.Fatalf("two records that are whole: %v", err)
	}
	_ = s.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	var timeout net.Error
	if n, err := s.Read(b); n != 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("%d bytes, %v of a record without its end", n, err)
	}
	_ = s.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := under.Write(records[cut:]); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, b[:maxRecord]); err != nil || b[maxRecord-1] != 'x' {
		t.Fatalf("the third record, whole: %v", err)
	}
	plain.Close()
	if n, err := s.Read(b); n != 0 || err != io.EOF {
		t.Errorf("after the end: %d, %v", n, err)
	}
}

// Broken if a client that has gone is answered with success: the gateway would read a large answer to its end for nobody.
func TestWireTellsOfFailedWrites(t *testing.T) {
	plain, _, s := sides(t, tls.VersionTLS13)
	large := make([]byte, 64<<10)
	go func() { _, _ = io.Copy(io.Discard, plain) }()
	if n, err := s.Write(large); n != len(large) || err != nil {
		t.Fatalf("while somebody reads: %d, %v", n, err)
	}
	s.wire.Conn.Close()
	for range 2 {
		if n, err := s.Write(large); n != 0 || err == nil {
			t.Errorf("to a closed socket: %d, %v", n, err)
		}
	}
	if s.wire.out != nil {
		t.Error("a buffer is kept by a connection that is broken")
	}
}
