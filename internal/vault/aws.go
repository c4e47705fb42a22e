package vault

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

// SignRequest is a request that is about to be sent. A signer changes its headers.
type SignRequest struct {
	Method string
	URL    string // absolute
	Header http.Header
	Body   []byte // nil when it is empty, or too long to hold
	Held   bool   // Body is the whole body
}

// awsSigner signs for one service and region, with Signature Version 4.
type awsSigner struct {
	scope   outboard.AWSScope
	secrets Secrets
	now     func() time.Time
}

const (
	awsAlgorithm = "AWS4-HMAC-SHA256"
	awsTime      = "20060102T150405Z"
	awsUnsigned  = "UNSIGNED-PAYLOAD"
	// in pieces that nobody signed, and a checksum behind them: how SDKs upload over TLS
	awsTrailing = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

// awsOwn are the headers that are the signer's alone: what the client or another credential says there is replaced.
var awsOwn = []string{"Authorization", "X-Amz-Date", "Date", "X-Amz-Security-Token"}

// presigned refuses a query that carries a signature: nobody inside holds a key to have made it with, and ours
// makes none.
func presigned(query string) error {
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if n, err := url.QueryUnescape(name); err != nil || strings.HasPrefix(strings.ToLower(n), "x-amz-") &&
			!awsQuery[strings.ToLower(n)] {
			return outboard.Errorf(outboard.Denied, "a request signed in its query is not signed again").
				WithHint("let the client sign in headers, with any key: the gateway replaces the signature")
		}
	}
	return nil
}

// awsQuery are the x-amz- parameters that sign nothing.
var awsQuery = map[string]bool{"x-amz-expected-bucket-owner": true}

// awsScopeRE finds what a client signed for: Credential=KEY/DATE/REGION/SERVICE/aws4_request.
var awsScopeRE = regexp.MustCompile(`Credential=[^/,]*/[0-9]{8}/([^/,]*)/([^/,]*)/aws4_request`)

// sign replaces whatever signature a request has. A request that its client meant for another service or region
// is refused.
func (a awsSigner) sign(r *SignRequest) error {
	if m := awsScopeRE.FindStringSubmatch(r.Header.Get("Authorization")); m != nil &&
		(m[1] != a.scope.Region || m[2] != a.scope.Service) {
		return outboard.Errorf(outboard.Denied, "the request is for service %q in region %q, and the credential is "+
			"for %q in %q", m[2], m[1],
			a.scope.Service, a.scope.Region).WithHint("set the client's region, or add a credential for that service")
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return outboard.Errorf(outboard.Invalid, "signing: the URL is malformed")
	}
	hash, err := a.payload(r)
	if err != nil {
		return err
	}
	for name := range r.Header {
		if slices.ContainsFunc(awsOwn, func(own string) bool { return strings.EqualFold(own, name) }) {
			delete(r.Header, name)
		}
	}
	at := a.now().UTC()
	r.Header.Set("X-Amz-Date", at.Format(awsTime))
	if a.scope.Service == "s3" {
		r.Header.Set("X-Amz-Content-Sha256", hash)
	}
	if !a.secrets.SessionToken.IsZero() {
		r.Header.Set("X-Amz-Security-Token", a.secrets.SessionToken.Reveal())
	}
	scope := strings.Join([]string{at.Format("20060102"), a.scope.Region, a.scope.Service, "aws4_request"}, "/")
	headers, names := awsHeaders(u.Host, r.Header)
	canonical := strings.Join([]string{r.Method, a.path(u), awsQueryString(u.RawQuery), headers, names, hash}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	text := strings.Join([]string{awsAlgorithm, at.Format(awsTime), scope, hex.EncodeToString(sum[:])}, "\n")
	key := []byte("AWS4" + a.secrets.Value.Reveal())
	for part := range strings.SplitSeq(scope, "/") {
		key = mac(key, part)
	}
	r.Header.Set("Authorization",
		awsAlgorithm+" Credential="+a.secrets.AccessKeyID.Reveal()+"/"+scope+", SignedHeaders="+names+
			", Signature="+hex.EncodeToString(mac(key, text)))
	return nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

var awsHash = regexp.MustCompile(`^[0-9a-f]{64}$`)

// payload is the hash of the body: our own where the body is held, else what the client says of it, which the
// service checks.
func (a awsSigner) payload(r *SignRequest) (string, error) {
	said := r.Header.Get("X-Amz-Content-Sha256")
	s3 := a.scope.Service == "s3"
	switch {
	case said == awsTrailing && s3 && strings.HasPrefix(r.URL, "https:"):
		return said, nil
	case strings.HasPrefix(said, "STREAMING-"):
		return "", outboard.Errorf(outboard.Denied, "a body whose pieces are each signed by the client cannot be "+
			"signed again").
			WithHint("turn chunked signing off: payload_signing_enabled, or a client setting such as disable " +
				"chunked encoding")
	case r.Held:
		sum := sha256.Sum256(r.Body)
		return hex.EncodeToString(sum[:]), nil
	case awsHash.MatchString(said), said == awsUnsigned && s3:
		return said, nil
	case s3 && strings.HasPrefix(r.URL, "https:"):
		return awsUnsigned, nil
	}
	return "", outboard.Errorf(outboard.TooLarge, "the body is too long to sign (over %d bytes), and the client "+
		"gave no hash of it", maxSigned)
}

// path is the canonical path: for S3 the object's name, encoded as AWS does it and not as the client did; for
// everything else what is sent, encoded once more.
func (a awsSigner) path(u *url.URL) string {
	p := u.EscapedPath()
	if a.scope.Service == "s3" {
		p = u.Path
	}
	if p == "" {
		return "/"
	}
	return awsEscape(p, true)
}

// awsEscape percent-encodes all but unreserved characters.
func awsEscape(s string, keepSlash bool) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("-_.~", c) >= 0 ||
			c == '/' && keepSlash {
			b.WriteByte(c)
			continue
		}
		b.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
	}
	return b.String()
}

// awsQueryString is the canonical query: decoded, encoded anew and sorted, by the name and then by the value.
// Sorted as whole pairs a.10 would come before a.1, since = is behind the digits.
func awsQueryString(raw string) string {
	var pairs [][2]string
	for pair := range strings.SplitSeq(raw, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		pairs = append(pairs, [2]string{awsEscape(unescape(name), false), awsEscape(unescape(value), false)})
	}
	slices.SortFunc(pairs, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	var b strings.Builder
	for i, p := range pairs {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(p[0] + "=" + p[1])
	}
	return b.String()
}

func unescape(s string) string {
	if v, err := url.PathUnescape(s); err == nil { // a plus is a plus
		return v
	}
	return s
}

// awsHeaders are the headers that are signed, and their names.
func awsHeaders(host string, h http.Header) (canonical, names string) {
	values := map[string]string{"host": host}
	for name, vs := range h {
		n := strings.ToLower(name)
		if !strings.HasPrefix(n, "x-amz-") && n != "content-type" && n != "content-md5" && n != "range" {
			continue
		}
		var trimmed []string
		for _, v := range vs {
			trimmed = append(trimmed, strings.Join(strings.Fields(v), " "))
		}
		values[n] = strings.Join(trimmed, ",")
	}
	var list []string
	for n := range values {
		list = append(list, n)
	}
	slices.Sort(list)
	for _, n := range list {
		canonical += n + ":" + values[n] + "\n"
	}
	return canonical, strings.Join(list, ";")
}
