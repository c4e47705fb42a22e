package vault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/vault/ecrtest"
)

const ecrRegistry = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"

// withAWS lets a rig's keeper reach AWS, and nobody else by that way.
func (r *rig) withAWS(a *ecrtest.AWS) {
	r.Helper()
	cert, pem := ecrtest.Certificate(r.T, a.Endpoint())
	srv := httptest.NewUnstartedServer(a)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	srv.StartTLS()
	r.Cleanup(srv.Close)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	r.cfg.Registries = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool},
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			if addr != a.Endpoint()+":443" {
				return nil, errors.New("nobody is at " + addr)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", srv.Listener.Addr().String())
		}}}
}

func newAWS(r *rig) *ecrtest.AWS {
	return &ecrtest.AWS{Region: "eu-central-1", KeyID: "AKIDCANARYOFATEST", Key: "secret-canary-of-a-key",
		Life: 12 * time.Hour, Now: func() time.Time { return r.now }}
}

// addECR stores a credential for the registry.
func (r *rig) addECR(id, key string) outboard.CredentialID {
	r.Helper()
	c := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential), Vault: r.vault,
		CreatedAt: r.now, Auth: outboard.Auth{Type: outboard.AuthAWS,
			Name: ecrRegistry, AWS: &outboard.AWSScope{Service: ServiceECR,
				Region: "eu-central-1"}, Rule: outboard.UseRule{Hosts: []string{ecrRegistry}}}}
	r.must(r.Create(r.Context(), c, Secrets{Value: outboard.NewSecret(key), AccessKeyID: outboard.NewSecret(id)}))
	return c.ID
}

// If this fails, images at AWS are not pulled, AWS is asked for each, a password is used past its end, or a key
// or a password is repeated where it does not belong.
func TestECRPassword(t *testing.T) {
	r := newRig(t)
	aws := newAWS(r)
	r.withAWS(aws)
	id := r.addECR(aws.KeyID, aws.Key)
	login := func() string {
		t.Helper()
		user, password, err := r.Registry(t.Context(), string(id), ecrRegistry, "")
		r.must(err)
		if user != "AWS" {
			t.Fatalf("the user is %q", user)
		}
		return password.Reveal()
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, _, err := r.Registry(t.Context(), string(id), ecrRegistry, ""); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	first := login()
	if aws.Asked() != 1 || first != aws.Passwords()[0] {
		t.Errorf("AWS was asked %d times, for 21 pulls", aws.Asked())
	}
	r.now = r.now.Add(aws.Life - pullTime - 2*renewBefore)
	if login() != first || aws.Asked() != 1 {
		t.Error("a password that is good for long enough is not used")
	}
	r.now = r.now.Add(2 * renewBefore)
	if second := login(); second == first || aws.Asked() != 2 {
		t.Error("a password is used so close to its end that a pull would fail on the way")
	}
	_, err := r.Update(t.Context(), id, func(_ *outboard.Credential, s *Secrets) error {
		s.Value = outboard.NewSecret("another key")
		return nil
	})
	r.must(err)
	_, _, err = r.Registry(t.Context(), string(id), ecrRegistry, "")
	r.wantKind(err, outboard.Denied, "InvalidSignatureException") // it is not the old key's password
	entries, err := r.store.AuditEntries(t.Context(), store.AuditQuery{Text: "api.ecr.eu-central-1.amazonaws.com",
		Limit: 100})
	r.must(err)
	if len(entries) != 3 || entries[0].Action != AuditUse {
		t.Errorf("%d requests to AWS are on record, want 3", len(entries))
	}
	for _, path := range []string{"outboard.db", "outboard.db-wal"} {
		b, err := os.ReadFile(filepath.Join(r.dir, path))
		r.must(err)
		for _, secret := range append(aws.Passwords(), aws.Key, aws.KeyID, "QVdTO") {
			if strings.Contains(string(b), secret) {
				t.Errorf("%s has %q in it", path, secret)
			}
		}
		if path == "outboard.db-wal" && !strings.Contains(string(b), "api.ecr.eu-central-1") {
			t.Error("the control: nothing is found where secrets were looked for")
		}
	}
}

// If this fails, a key is sent where it is not for, a wrong one gives a riddle, or an error repeats a part of a key.
func TestECRRefusals(t *testing.T) {
	r := newRig(t)
	aws := newAWS(r)
	r.withAWS(aws)
	right := r.addECR(aws.KeyID, aws.Key)
	refused := func(what string, id outboard.CredentialID, registry string, kind outboard.Kind, words ...string) {
		t.Helper()
		user, password, err := r.Registry(t.Context(), string(id), registry, "")
		if err == nil || user != "" || !password.IsZero() {
			t.Fatalf("%s: %q, %v", what, user, err)
		}
		r.wantKind(err, kind, words...)
		text := err.Error() + outboard.HintOf(err)
		for _, secret := range []string{aws.KeyID, aws.Key, "secret-wrong", "AKIDOTHER", "Signature="} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: the error repeats %q: %s", what, secret, text)
			}
		}
	}
	add := func(name string, change func(*outboard.Auth)) outboard.CredentialID {
		t.Helper()
		c := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential), Vault: r.vault,
			CreatedAt: r.now, Auth: outboard.Auth{Type: outboard.AuthAWS,
				Name: name, AWS: &outboard.AWSScope{Service: ServiceECR,
					Region: "eu-central-1"}, Rule: outboard.UseRule{Hosts: []string{ecrRegistry}}}}
		change(&c.Auth)
		r.must(r.Create(t.Context(), c, Secrets{Value: outboard.NewSecret(aws.Key),
			AccessKeyID: outboard.NewSecret(aws.KeyID)}))
		return c.ID
	}
	refused("another registry", right, "999999999999.dkr.ecr.eu-central-1.amazonaws.com", outboard.Denied,
		"none of its hosts")
	refused("another port", right, ecrRegistry+":5000", outboard.Denied, "port 443")
	for name, host := range map[string]string{"a": "123456789012.dkr.ecr.eu-central-1.amazonaws.com.evil.example",
		"b": "evil.example", "c": "x.dkr.ecr.eu-central-1.amazonaws.com",
		"d": "123456789012.dkr.ecr.eu.central-1.amazonaws.com", "e": "123456789012-dkr.ecr.eu-central-1.amazonaws.com"} {
		refused(host, add(name, func(a *outboard.Auth) { a.Rule.Hosts = []string{host} }), host, outboard.Invalid,
			"must be a registry")
	}
	refused("another region", add("region", func(a *outboard.Auth) { a.AWS.Region = "us-east-1" }), ecrRegistry,
		outboard.Invalid, "region eu-central-1", "us-east-1")
	refused("many hosts", add("hosts", func(a *outboard.Auth) { a.Rule.Hosts = []string{ecrRegistry, "evil.example"} }),
		ecrRegistry, outboard.Invalid, "one host")
	refused("another service", add("service", func(a *outboard.Auth) { a.AWS.Service = "s3" }), ecrRegistry,
		outboard.Invalid, "the service s3")
	if aws.Asked() != 0 {
		t.Fatalf("AWS was asked %d times by who may not", aws.Asked())
	}
	r.vault = r.addVault()
	refused("a wrong key", r.addECR(aws.KeyID, "secret-wrong"), ecrRegistry, outboard.Denied,
		"InvalidSignatureException")
	r.vault = r.addVault()
	refused("an unknown key", r.addECR("AKIDOTHER", aws.Key), ecrRegistry, outboard.Denied,
		"UnrecognizedClientException")
	if len(aws.Passwords()) != 0 {
		t.Error("a password was given for a wrong key")
	}
	if _, _, err := r.Registry(t.Context(), string(right), ecrRegistry, ""); err != nil || len(aws.Passwords()) != 1 {
		t.Errorf("the control, the right key: %v", err)
	}
}

// If this fails, what AWS or somebody in its place answers becomes a password, or part of an error.
func TestECRAnswers(t *testing.T) {
	r := newRig(t)
	aws := newAWS(r)
	r.withAWS(aws)
	id := r.addECR(aws.KeyID, aws.Key)
	token := func(text string) string {
		b, err := json.Marshal(map[string]any{"authorizationData": []any{map[string]any{"authorizationToken": base64.StdEncoding.EncodeToString([]byte(text)), "expiresAt": 4e12}}})
		r.must(err)
		return string(b)
	}
	for name, answer := range map[string]struct {
		status int
		body   string
		kind   outboard.Kind
	}{
		"nothing":         {200, "", outboard.Unavailable},
		"no data":         {200, `{"authorizationData":[]}`, outboard.Unavailable},
		"no base64":       {200, `{"authorizationData":[{"authorizationToken":"!canary!"}]}`, outboard.Unavailable},
		"no colon":        {200, token("canary"), outboard.Unavailable},
		"no user":         {200, token(":canary"), outboard.Unavailable},
		"no password":     {200, token("canary:"), outboard.Unavailable},
		"too much":        {200, token("AWS:" + strings.Repeat("canary", maxIssued)), outboard.Unavailable},
		"a failure":       {500, `{"__type":"ServerException"}`, outboard.Unavailable},
		"many requests":   {429, `{"__type":"ThrottlingException"}`, outboard.Unavailable},
		"a strange name":  {400, `{"__type":"canary <b>"}`, outboard.Unavailable},
		"a redirect":      {307, ``, outboard.Unavailable},
		"what is refused": {400, `{"__type":"com.amazon#AccessDeniedException","message":"canary"}`, outboard.Denied},
	} {
		aws.Bend = func(w http.ResponseWriter) bool {
			w.Header().Set("Location", "https://evil.example/")
			w.WriteHeader(answer.status)
			_, _ = w.Write([]byte(answer.body))
			return true
		}
		_, password, err := r.Registry(t.Context(), string(id), ecrRegistry, "")
		if outboard.KindOf(err) != answer.kind || !password.IsZero() || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.cfg.Registries = Client(&outbound.Guard{Resolve: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
	}}, nil)
	_, _, err := r.Registry(t.Context(), string(id), ecrRegistry, "")
	r.wantKind(err, outboard.Unavailable, "not on the public internet")
	aws.Bend = func(w http.ResponseWriter) bool {
		_, _ = w.Write([]byte(token("AWS:good")))
		return true
	}
	r.withAWS(aws)
	if _, p, err := r.Registry(t.Context(), string(id), ecrRegistry, ""); err != nil || p.Reveal() != "good" {
		t.Errorf("the control, a whole answer: %v", err)
	}
	r.now = r.now.Add(ecrLife)
	aws.Bend = nil
	if _, p, err := r.Registry(t.Context(), string(id), ecrRegistry, ""); err != nil || p.Reveal() == "good" {
		t.Errorf("a password that claims to be good for a thousand years is used after a day: %v", err)
	}
}

// If this fails, a password of a registry goes on being used after the kill that covers its credential, or the
// record says it was revoked.
func TestECRForgotten(t *testing.T) {
	r := newRig(t)
	t.Cleanup(r.Keeper.Stop)
	aws := newAWS(r)
	r.withAWS(aws)
	id := r.addECR(aws.KeyID, aws.Key)
	for range 2 {
		_, _, err := r.Registry(t.Context(), string(id), ecrRegistry, "")
		r.must(err)
	}
	r.Withdraw("kill kill_1", func(c outboard.CredentialID, _ outboard.SessionID) bool { return c == id })
	_, _, err := r.Registry(t.Context(), string(id), ecrRegistry, "")
	if r.must(err); aws.Asked() != 2 {
		t.Errorf("AWS was asked %d times, want once before the kill and once after", aws.Asked())
	}
	if got := r.withdrawn(1); len(got) != 1 || got[0] != AuditWithdrawFailed {
		t.Errorf("on record is %v", got)
	}
}
