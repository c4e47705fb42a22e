// Package ecrtest is AWS for tests, as far as registries of images need it. It checks the signature
// of a request (Signature Version 4) with its own code and what it knows of the key, and gives a
// password for it. Nothing that ships imports it.
package ecrtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// AWS answers for one region. Set its fields before it is asked.
type AWS struct {
	Region string
	KeyID  string
	Key    string
	Token  string                         // of a session, "" = the key is for good
	Life   time.Duration                  // of a password
	Now    func() time.Time               // nil = time.Now
	Bend   func(http.ResponseWriter) bool // answers in its place where it returns true; nil = never

	mu        sync.Mutex
	asked     int
	passwords []string
}

// Endpoint is the host that it answers for.
func (a *AWS) Endpoint() string { return "api.ecr." + a.Region + ".amazonaws.com" }

// Asked is how many requests there were, refused ones included.
func (a *AWS) Asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

// Passwords are those that it gave.
func (a *AWS) Passwords() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.passwords)
}

// Knows reports whether a request carries a password that it gave.
func (a *AWS) Knows(r *http.Request) bool {
	user, password, ok := r.BasicAuth()
	return ok && user == "AWS" && slices.Contains(a.Passwords(), password)
}

// ServeHTTP gives a new password to who has signed with the key.
func (a *AWS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.asked++
	a.mu.Unlock()
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	if a.Bend != nil && a.Bend(w) {
		return
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	if kind, why := a.check(r, body); kind != "" {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).
			Encode(map[string]string{"__type": kind, "message": why + ": " + r.Header.Get("Authorization")})
		return
	}
	password := "password-of-ecr-" + rand.Text()
	a.mu.Lock()
	a.passwords = append(a.passwords, password)
	a.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{"authorizationData": []map[string]any{{
		"authorizationToken": base64.StdEncoding.EncodeToString([]byte("AWS:" + password)),
		"expiresAt":          float64(a.now().Add(a.Life).UnixMilli()) / 1000,
		"proxyEndpoint":      "https://123456789012.dkr.ecr." + a.Region + ".amazonaws.com",
	}}})
}

func (a *AWS) now() time.Time {
	if a.Now != nil {
		return a.Now()
	}
	return time.Now()
}

// check says by AWS's own names what is wrong with a request, or "".
func (a *AWS) check(r *http.Request, body []byte) (kind, why string) {
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	fields := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		fields[name] = value
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	scope := []string{at.Format("20060102"), a.Region, "ecr", "aws4_request"}
	id, signed, _ := strings.Cut(fields["Credential"], "/")
	names := strings.Split(fields["SignedHeaders"], ";")
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/" ||
		r.Header.Get("X-Amz-Target") != "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken":
		return "UnknownOperationException", "no such operation"
	case r.Header.Get("Content-Type") != "application/x-amz-json-1.1" || !json.Valid(body):
		return "SerializationException", "no JSON 1.1"
	case !ok || err != nil || signed != strings.Join(scope, "/") || !slices.IsSorted(names):
		return "IncompleteSignatureException", "not signed for this service"
	case !slices.Contains(names, "host") || !slices.Contains(names, "x-amz-date") ||
		!slices.Contains(names, "x-amz-target"):
		return "IncompleteSignatureException", "a header is not signed"
	case id != a.KeyID || r.Header.Get("X-Amz-Security-Token") != a.Token || a.Token != "" &&
		!slices.Contains(names, "x-amz-security-token"):
		return "UnrecognizedClientException", "no such key"
	case a.now().Sub(at).Abs() > 5*time.Minute:
		return "InvalidSignatureException", "signed at another time"
	case !hmac.Equal([]byte(fields["Signature"]), []byte(a.signature(r, body, at, scope, names))):
		return "InvalidSignatureException", "signed with another key"
	}
	return "", ""
}

// signature is what a request must be signed with.
func (a *AWS) signature(r *http.Request, body []byte, at time.Time, scope, names []string) string {
	hash := func(b []byte) string { sum := sha256.Sum256(b); return hex.EncodeToString(sum[:]) }
	var canonical strings.Builder
	canonical.WriteString(r.Method + "\n" + r.URL.EscapedPath() + "\n" + r.URL.RawQuery + "\n")
	for _, n := range names {
		value := r.Header.Get(n)
		if n == "host" {
			value = r.Host
		}
		canonical.WriteString(n + ":" + strings.TrimSpace(value) + "\n")
	}
	canonical.WriteString("\n" + strings.Join(names, ";") + "\n" + hash(body))
	key := []byte("AWS4" + a.Key)
	for _, part := range append(slices.Clone(scope), fmt.Sprintf("AWS4-HMAC-SHA256\n%s\n%s\n%s",
		at.Format("20060102T150405Z"), strings.Join(scope, "/"), hash([]byte(canonical.String())))) {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(part))
		key = m.Sum(nil)
	}
	return hex.EncodeToString(key)
}

// Certificate returns a certificate for some hosts, which is its own authority, and that in PEM.
func Certificate(t testing.TB, hosts ...string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der},
		PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
