package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/vault/ecrtest"
)

const ecrHost = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"

// startAWS is AWS on an address of loopback that is its own: who gives passwords, and a registry with app:1 to
// app:5 that wants one. ca is the file of whom to trust for it.
func startAWS(t *testing.T) (aws *ecrtest.AWS, at netip.Addr, ca string) {
	t.Helper()
	aws = &ecrtest.AWS{Region: "eu-central-1", KeyID: "AKIDCANARYOFATEST", Key: "key-canary-" + rand.Text(),
		Life: 12 * time.Hour}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	open := httptest.NewServer(inner)
	t.Cleanup(open.Close)
	push(t, strings.TrimPrefix(open.URL, "http://"))
	var b [2]byte
	rand.Read(b[:])
	at = netip.AddrFrom4([4]byte{127, 77, b[0], b[1] | 1})
	listener, err := net.Listen("tcp", netip.AddrPortFrom(at, 443).String())
	if err != nil {
		t.Skipf("AWS is at port 443, where this user may not listen: %v", err)
	}
	cert, pem := ecrtest.Certificate(t, aws.Endpoint(), ecrHost)
	srv := &httptest.Server{Listener: listener, TLS: &tls.Config{Certificates: []tls.Certificate{cert}},
		Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Host == aws.Endpoint():
				aws.ServeHTTP(w, r)
			case r.Host == ecrHost && aws.Knows(r):
				inner.ServeHTTP(w, r)
			default:
				w.Header().Set("WWW-Authenticate", `Basic realm="`+ecrHost+`",service="ecr.amazonaws.com"`)
				w.WriteHeader(http.StatusUnauthorized)
			}
		}), ErrorLog: log.New(io.Discard, "", 0)}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	return aws, at, ca
}

// If this fails, a template or a box cannot be made of an image in a registry at AWS, a wrong key gives a
// riddle, another organization has what the key pulled, or a key or password lies somewhere in the clear.
func TestRegistryAWS(t *testing.T) {
	aws, at, ca := startAWS(t)
	var logs, answers lockedBuffer
	o := &online{t: t, data: t.TempDir(),
		log: slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		cfg: &config.Config{Egress: config.Egress{PrivateNetworks: []string{"127.0.0.0/8"}, CAFiles: []string{ca}}},
		resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host != aws.Endpoint()+"." && host != ecrHost+"." {
				return nil, fmt.Errorf("there is no %s", host)
			}
			return []netip.Addr{at}, nil
		}}
	o.start()
	t.Cleanup(func() {
		o.s.Stop()
		removeSandboxes(t, filepath.Join(o.data, "sandboxes"))
	})
	if o.s.Problem != nil {
		noSandbox(t, o.s.Problem)
	}
	key, err := readKey(o.data)
	if err != nil {
		t.Fatal(err)
	}
	run := canaryRun{T: t, c: o.c, url: o.s.URL, key: key}
	build := func(name, image, id, secret string) client.TemplateBuild {
		t.Helper()
		var asked struct{ TemplateID, BuildID string }
		if status := o.call("POST", "/v3/templates", fmt.Sprintf(`{"name":%q}`, name),
			&asked); status != http.StatusAccepted {
			t.Fatalf("asking for a build: %d", status)
		}
		body := fmt.Sprintf(`{"fromImage":%q}`, image)
		if id != "" {
			body = fmt.Sprintf(`{"fromImage":%q,"fromImageRegistry":{"type":"aws","awsAccessKeyId":%q,"awsSecretAccessKey":%q,"awsRegion":"eu-central-1"}}`, image, id, secret)
		}
		if status := o.call("POST", "/v2/templates/"+asked.TemplateID+"/builds/"+asked.BuildID, body,
			nil); status != http.StatusAccepted {
			t.Fatalf("starting a build: %d", status)
		}
		b := o.built(o.c, name)
		answers.Write(run.get("/v1/templates/" + name + "/builds/" + b.ID))
		answers.Write(run.get("/v1/templates/" + name + "/builds/" + b.ID + "/log"))
		return b
	}
	failed := func(what string, b client.TemplateBuild, want string) {
		t.Helper()
		if b.State != "error" || !strings.Contains(b.Error.Message, want) {
			t.Errorf("%s: %s %+v", what, b.State, b.Error)
		}
	}
	const image = ecrHost + "/app:1"
	const wrong = "wrong-key-of-a-canary"
	failed("without a key", build("none", image, "", ""), "does not let this server have it")
	failed("with a wrong key", build("wrong", image, aws.KeyID, wrong), "400, InvalidSignatureException")
	if n := len(aws.Passwords()); n != 0 {
		t.Fatalf("%d passwords were given for a wrong key", n)
	}
	if b := build("right", image, aws.KeyID, aws.Key); b.State != "ready" || *b.Layers != 1 {
		t.Fatalf("with the right key: %s %+v", b.State, b.Error)
	}
	if b := build("later", ecrHost+"/app:2", "", ""); b.State != "ready" {
		t.Errorf("with the organization's: %s %+v", b.State, b.Error)
	}
	box, err := o.c.CreateBox(t.Context(), map[string]any{"image": ecrHost + "/app:2"})
	if err != nil {
		t.Fatalf("a box of the image, with the organization's: %v", err)
	}
	if err := o.c.DeleteBox(t.Context(), box.ID); err != nil {
		t.Error(err)
	}
	if n := len(aws.Passwords()); n != 1 {
		t.Errorf("%d passwords were asked for, want 1 for all pulls", n)
	}
	o.refusedKeys(aws, image)
	vaults := run.get("/v1/vaults")
	answers.Write(vaults)
	for v, err := range o.c.Vaults(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		answers.Write(run.get("/v1/vaults/" + v.ID + "/credentials"))
	}
	answers.Write(run.get("/v1/outboard/audit?limit=500"))
	for _, secret := range append(aws.Passwords(), aws.Key, aws.KeyID, wrong) {
		if where := o.holding(secret); len(where) > 0 || bytes.Contains(logs.Bytes(), []byte(secret)) ||
			bytes.Contains(answers.Bytes(), []byte(secret)) {
			t.Errorf("%q lies in the clear in %q, in the log, or in an answer", secret, where)
		}
	}
	if len(o.holding(ecrHost)) == 0 || !bytes.Contains(logs.Bytes(), []byte("template built")) ||
		!bytes.Contains(answers.Bytes(), []byte(`"outboard_aws"`)) ||
		!bytes.Contains(answers.Bytes(), []byte("https://"+aws.Endpoint()+":443/")) ||
		!bytes.Contains(answers.Bytes(), []byte("InvalidSignatureException")) {
		t.Errorf("nothing is found where keys and passwords were looked for: %s", answers.Bytes())
	}
}

// refusedKeys are logins that are refused before a build begins, and an organization that has none.
func (o *online) refusedKeys(aws *ecrtest.AWS, image string) {
	o.t.Helper()
	login := func(image string, key map[string]any) map[string]any {
		return map[string]any{"name": "refused", "image": image, "registry": key}
	}
	aKey := func(region string) map[string]any {
		return map[string]any{"type": "aws", "access_key_id": aws.KeyID, "secret_access_key": aws.Key, "region": region}
	}
	for what, c := range map[string]struct {
		body map[string]any
		want string
	}{
		"of another region": {login(image, aKey("us-east-1")), "is in the region eu-central-1"},
		"of another registry": {login("registry.example.com/app:1", aKey("eu-central-1")),
			"a key for AWS is for images of"},
		"without a secret": {login(image, map[string]any{"type": "aws", "access_key_id": aws.KeyID,
			"region": "eu-central-1"}), "registry.secret_access_key"},
		"of another kind": {login(image, map[string]any{"type": "azure"}), "registry.type"},
	} {
		if _, err := o.c.BuildTemplate(o.t.Context(), c.body); err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), aws.Key) {
			o.t.Errorf("a key %s: %v", what, err)
		}
	}
	org, err := o.c.CreateOrg(o.t.Context(), "second")
	if err != nil {
		o.t.Fatal(err)
	}
	key, err := readKey(o.data)
	if err != nil {
		o.t.Fatal(err)
	}
	second, err := client.New(client.Config{URL: o.s.URL, Key: key, Org: org.ID})
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(second.Close)
	if _, err := second.CreateBox(o.t.Context(), map[string]any{"image": image}); err == nil ||
		!strings.Contains(err.Error(), "does not let this server have it") {
		o.t.Errorf("a box of another organization: %v", err)
	}
	for i, step := range []struct {
		what  string
		key   map[string]any
		asked int // of AWS
	}{
		{"a key over HTTP", aKey("eu-central-1"), 1},
		{"a password in the place of a key", map[string]any{"username": "AWS", "password": aws.Passwords()[0]}, 0},
		{"a key in the place of a password", aKey("eu-central-1"), 1},
	} {
		before := aws.Asked()
		made, err := o.c.BuildTemplate(o.t.Context(), login(fmt.Sprintf("%s/app:%d", ecrHost, 3+i), step.key))
		if err != nil {
			o.t.Fatalf("%s: %v", step.what, err)
		}
		if b := o.built(o.c, "refused"); b.ID != made.ID || b.State != "ready" || aws.Asked() != before+step.asked {
			o.t.Errorf("%s: %s %+v; AWS was asked %d times", step.what, b.State, b.Error, aws.Asked()-before)
		}
	}
}
