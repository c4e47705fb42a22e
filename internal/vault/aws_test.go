package vault

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// If this fails, AWS refuses what the gateway signs: the signatures are those of AWS's own documentation and
// test suite.
func TestAWSVectors(t *testing.T) {
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for _, c := range []struct {
		name, service, method, url string
		key, at                    string
		header                     map[string]string
		want                       string
	}{
		{"test suite, get-vanilla", "service", "GET", "https://example.amazonaws.com/",
			"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20150830T123600Z", nil,
			"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, " +
				"SignedHeaders=host;x-amz-date, " +
				"Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		{"test suite, get-vanilla-query-order-key-case", "service", "GET",
			"https://example.amazonaws.com/?Param2=value2&Param1=value1", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20150830T123600Z", nil,
			"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, " +
				"SignedHeaders=host;x-amz-date, " +
				"Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
		{"documentation, IAM ListUsers", "iam", "GET", "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08",
			"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20150830T123600Z",
			map[string]string{"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
			"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, " +
				"SignedHeaders=content-type;host;x-amz-date, " +
				"Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"},
		{"documentation, S3 GET object", "s3", "GET", "https://examplebucket.s3.amazonaws.com/test.txt",
			"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524T000000Z",
			map[string]string{"Range": "bytes=0-9"},
			"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20130524/us-east-1/s3/aws4_request, " +
				"SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, " +
				"Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
		{"documentation, S3 list with a query", "s3", "GET",
			"https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524T000000Z", nil,
			"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20130524/us-east-1/s3/aws4_request, " +
				"SignedHeaders=host;x-amz-content-sha256;x-amz-date, " +
				"Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, err := time.Parse(awsTime, c.at)
			if err != nil {
				t.Fatal(err)
			}
			id := "AKIDEXAMPLE"
			if c.service == "s3" {
				id = "AKIAIOSFODNN7EXAMPLE"
				c.want = strings.Replace(c.want, "AKIDEXAMPLE", id, 1)
			}
			a := awsSigner{scope: outboard.AWSScope{Service: c.service, Region: "us-east-1"},
				now:     func() time.Time { return at },
				secrets: Secrets{Value: outboard.NewSecret(c.key), AccessKeyID: outboard.NewSecret(id)}}
			r := &SignRequest{Method: c.method, URL: c.url,
				Header: http.Header{"Authorization": {"AWS4-HMAC-SHA256 the client's own"}}, Held: true}
			for k, v := range c.header {
				r.Header.Set(k, v)
			}
			if err := a.sign(r); err != nil {
				t.Fatal(err)
			}
			if got := r.Header.Get("Authorization"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if c.service == "s3" && r.Header.Get("X-Amz-Content-Sha256") != empty {
				t.Errorf("hash %s", r.Header.Get("X-Amz-Content-Sha256"))
			}
		})
	}
}

// If this fails, whoever controls the sandbox can have the gateway sign for another service or region, hand out
// presigned URLs, or send a body that nobody vouches for.
func TestAWSRefusals(t *testing.T) {
	r := newRig(t)
	c := outboard.Credential{ID: "vcrd_01a", Vault: r.vault, CreatedAt: r.now,
		Auth: outboard.Auth{Type: outboard.AuthAWS, Name: "s3",
			AWS: &outboard.AWSScope{Service: "s3",
				Region: "eu-central-1"}, Rule: outboard.UseRule{Hosts: []string{"b.s3.eu-central-1.amazonaws.com"}}}}
	r.must(r.Create(t.Context(), c, Secrets{Value: outboard.NewSecret("secretkey"),
		AccessKeyID: outboard.NewSecret("AKIA"), SessionToken: outboard.NewSecret("token")}))
	sign := func(scope, hash string, held bool) (http.Header, error) {
		t.Helper()
		in, err := r.Use(t.Context(), r.to("PUT", "b.s3.eu-central-1.amazonaws.com", "/k"))
		r.must(err)
		s := &SignRequest{Method: "PUT", URL: "https://b.s3.eu-central-1.amazonaws.com/k", Held: held,
			Body: []byte("x"), Header: http.Header{}}
		if scope != "" {
			s.Header.Set("Authorization",
				"AWS4-HMAC-SHA256 Credential=dummy/20260101/"+scope+"/aws4_request, SignedHeaders=host, Signature=0")
		}
		if hash != "" {
			s.Header.Set("X-Amz-Content-Sha256", hash)
		}
		return s.Header, in.Sign(s)
	}
	h, err := sign("eu-central-1/s3", "", true)
	r.must(err)
	if a := h.Get("Authorization"); !strings.Contains(a, "Credential=AKIA/") || strings.Contains(a, "dummy") ||
		h.Get("X-Amz-Security-Token") != "token" {
		t.Errorf("signed: %v", h)
	}
	if h, err := sign("", "UNSIGNED-PAYLOAD", false); err != nil ||
		h.Get("X-Amz-Content-Sha256") != "UNSIGNED-PAYLOAD" {
		t.Errorf("a long body over TLS: %v, %v", h, err)
	}
	for name, try := range map[string]func() error{
		"another region":  func() error { _, err := sign("us-east-1/s3", "", true); return err },
		"another service": func() error { _, err := sign("eu-central-1/iam", "", true); return err },
		"signed chunks": func() error {
			_, err := sign("eu-central-1/s3", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", false)
			return err
		},
		"a signature in the query": func() error {
			q := r.to("GET", "b.s3.eu-central-1.amazonaws.com", "/k")
			q.Query = "a=b&X-Amz-Signature=00"
			_, err := r.Use(t.Context(), q)
			return err
		},
		"one that is encoded": func() error {
			q := r.to("GET", "b.s3.eu-central-1.amazonaws.com", "/k")
			q.Query = "%58-amz-Credential=00"
			_, err := r.Use(t.Context(), q)
			return err
		},
	} {
		if err := try(); outboard.KindOf(err) != outboard.Denied || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	in, err := r.Use(t.Context(), r.to("GET", "other.s3.eu-central-1.amazonaws.com", "/k"))
	if r.must(err); in.Sign != nil {
		t.Error("signed for another bucket")
	}
}

// If this fails, what else a session has for a host takes the signer's place or the client's scope from it, or
// the signer removes what another credential has set: in either order.
func TestSignerBesideOthers(t *testing.T) {
	const host = "b.s3.eu-central-1.amazonaws.com"
	rule := outboard.UseRule{Hosts: []string{host}}
	signer := outboard.Auth{Type: outboard.AuthAWS, Name: "s3", AWS: &outboard.AWSScope{Service: "s3",
		Region: "eu-central-1"}, Rule: rule}
	other := outboard.Auth{Type: outboard.AuthHeader, Name: "key", HeaderName: "X-Api-Key", Format: "{secret}",
		Rule: rule}
	env := outboard.Auth{Type: outboard.AuthEnv, Name: "TOKEN", InHeader: true, Rule: rule}
	date := outboard.Auth{Type: outboard.AuthHeader, Name: "date", HeaderName: "X-Amz-Security-Token",
		Format: "{secret}", Rule: rule}
	for name, auths := range map[string][]outboard.Auth{"signer alone": {signer}, "signer first": {signer, other, env},
		"signer last":             {env, other, signer},
		"its own header after it": {signer, other, date}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for _, a := range auths {
				c := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential),
					Vault: r.vault, Auth: a, CreatedAt: r.now}
				s := Secrets{Value: outboard.NewSecret("the-value")}
				if a.Type == outboard.AuthAWS {
					s.AccessKeyID, s.SessionToken = outboard.NewSecret("AKIA"), outboard.NewSecret("session")
				}
				r.must(r.Create(t.Context(), c, s))
			}
			in, err := r.Use(t.Context(), r.to("PUT", host, "/k"))
			r.must(err)
			if slices.Contains(in.Strip, "Authorization") || !slices.Contains(in.Strip, "Cookie") || in.Sign == nil {
				t.Fatalf("what is removed of the client's: %v; signed: %v", in.Strip, in.Sign != nil)
			}
			send := func(region string) (http.Header, error) {
				s := &SignRequest{Method: "PUT", URL: "https://" + host + "/k", Held: true, Header: http.Header{}}
				s.Header.Set("Authorization",
					"AWS4-HMAC-SHA256 Credential=dummy/20260101/"+region+"/s3/aws4_request, SignedHeaders=host, "+
						"Signature=0")
				for k, v := range in.Set { // as the gateway does, before it signs
					s.Header.Set(k, v.Reveal())
				}
				return s.Header, in.Sign(s)
			}
			h, err := send("eu-central-1")
			r.must(err)
			if a := h.Get("Authorization"); !strings.Contains(a, "Credential=AKIA/") ||
				h.Get("X-Amz-Security-Token") != "session" {
				t.Errorf("the signature is lost: %v", h)
			}
			if len(auths) > 1 && h.Get("X-Api-Key") != "the-value" {
				t.Errorf("what the other credential set is lost: %v", h)
			}
			_, err = send("us-east-1")
			r.wantKind(err, outboard.Denied, "us-east-1")
		})
	}
}

// If this fails, clients of AWS or GitHub refuse to start though the gateway has a credential for them, see
// something of it, or lose variables that a person has set.
func TestMadeUpCredentials(t *testing.T) {
	r := newRig(t)
	hosts := outboard.UseRule{Hosts: []string{"*.amazonaws.com"}}
	scope := &outboard.AWSScope{Service: "s3", Region: "eu-west-1"}
	if env, err := r.Environment(t.Context(), r.session); err != nil || len(env) != 0 {
		t.Errorf("without a credential: %v, %v", env, err)
	}
	r.add(outboard.Auth{Type: outboard.AuthAWS, Name: "aws", AWS: scope, Rule: hosts}, "the-real-secret-key")
	env, err := r.Environment(t.Context(), r.session)
	r.must(err)
	if !regexp.MustCompile(`^AKIA[A-Z2-7]{16}$`).MatchString(env["AWS_ACCESS_KEY_ID"]) ||
		len(env["AWS_SECRET_ACCESS_KEY"]) != 40 ||
		env["AWS_REGION"] != "eu-west-1" || env["AWS_DEFAULT_REGION"] != "eu-west-1" ||
		strings.Contains(fmt.Sprint(env), "real") {
		t.Errorf("%v", env)
	}
	if other, err := r.Environment(t.Context(), r.addSession(r.vault)); err != nil ||
		other["AWS_ACCESS_KEY_ID"] == env["AWS_ACCESS_KEY_ID"] {
		t.Errorf("another session has the same: %v, %v", other, err)
	}
	r.add(outboard.Auth{Type: outboard.AuthEnv, Name: "AWS_ACCESS_KEY_ID", InHeader: true, Rule: hosts},
		"a-persons-own-id")
	if env, err := r.Environment(t.Context(), r.session); err != nil ||
		strings.HasPrefix(env["AWS_ACCESS_KEY_ID"], "AKIA") || env["AWS_SECRET_ACCESS_KEY"] != "" {
		t.Errorf("beside a variable of the same name: %v, %v", env, err)
	}
}
