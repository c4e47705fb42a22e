package vault

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// If this fails, a service refuses what is signed, because it puts the request into another form than we do.
// What a service expects is written out here by AWS's rules: names of the query in order before their values; an
// object's name encoded in one way however the client did; a body in pieces that nobody signed named as such.
func TestAWSCanonicalForms(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for name, c := range map[string]struct {
		service, method, url, said string
		path, query, hash          string
	}{
		"ten of a list": {"ec2", "GET", "https://ec2.example/?InstanceId.10=b&InstanceId.1=c&InstanceId.2=a",
			"", "/", "InstanceId.1=c&InstanceId.10=b&InstanceId.2=a", empty},
		"same name": {"ec2", "GET", "https://ec2.example/?b=2&b=10&a-b=1&a=1", "", "/",
			"a=1&a-b=1&b=10&b=2", empty},
		"raw characters": {"s3", "GET", "https://b.example/year=2026/a(b)!,:@$&'*;.txt", "",
			"/year%3D2026/a%28b%29%21%2C%3A%40%24%26%27%2A%3B.txt", "", empty},
		"encoded characters": {"s3", "GET", "https://b.example/year%3d2026/a%28b%29%20%c3%a9", "",
			"/year%3D2026/a%28b%29%20%C3%A9", "", empty},
		"twice, not for S3": {"execute-api", "GET", "https://b.example/a%20b/c(d)", "", "/a%2520b/c%28d%29", "",
			empty},
		"checksum behind pieces": {"s3", "PUT", "https://b.example/k", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "/k", "",
			"STREAMING-UNSIGNED-PAYLOAD-TRAILER"},
	} {
		a := awsSigner{scope: outboard.AWSScope{Service: c.service, Region: "eu-north-1"},
			now:     func() time.Time { return at },
			secrets: Secrets{Value: outboard.NewSecret("key"), AccessKeyID: outboard.NewSecret("ID")}}
		r := &SignRequest{Method: c.method, URL: c.url, Header: http.Header{}, Held: true}
		headers, names := "host:"+hostIn(c.url)+"\n", "host"
		if c.said != "" {
			r.Header.Set("X-Amz-Content-Sha256", c.said)
		}
		if c.service == "s3" {
			headers, names = headers+"x-amz-content-sha256:"+c.hash+"\n", names+";x-amz-content-sha256"
		}
		headers, names = headers+"x-amz-date:20260102T030405Z\n", names+";x-amz-date"
		if err := a.sign(r); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		scope := "20260102/eu-north-1/" + c.service + "/aws4_request"
		sum := sha256.Sum256([]byte(strings.Join([]string{c.method, c.path, c.query, headers, names, c.hash}, "\n")))
		key := []byte("AWS4key")
		for part := range strings.SplitSeq(scope, "/") {
			key = mac(key, part)
		}
		want := hex.EncodeToString(mac(key,
			"AWS4-HMAC-SHA256\n20260102T030405Z\n"+scope+"\n"+hex.EncodeToString(sum[:])))
		if got := r.Header.Get("Authorization"); !strings.HasSuffix(got, "Signature="+want) {
			t.Errorf("%s: %s, want signature %s", name, got, want)
		}
	}
	a := awsSigner{scope: outboard.AWSScope{Service: "s3", Region: "eu-north-1"}, now: func() time.Time { return at }}
	for url, said := range map[string]string{"http://b.example/k": awsTrailing,
		"https://b.example/k": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"} {
		r := &SignRequest{Method: "PUT", URL: url, Header: http.Header{"X-Amz-Content-Sha256": {said}}, Held: true}
		if err := a.sign(r); outboard.KindOf(err) != outboard.Denied {
			t.Errorf("%s with %s: %v", url, said, err)
		}
	}
}

// hostIn is the host of a URL.
func hostIn(url string) string {
	_, rest, _ := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	return host
}
