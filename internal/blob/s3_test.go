package blob

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/outboard-dev/outboard"
)

// newS3 returns a store under a prefix of its own, on the server that scripts/with-s3 starts.
func newS3(t *testing.T, prefix string) *S3 {
	t.Helper()
	endpoint := os.Getenv("OUTBOARD_TEST_S3")
	if endpoint == "" {
		need(t, "an S3 server: run scripts/with-s3 go test ./internal/blob")
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
	s, err := NewS3(t.Context(), "s3://outboard/"+prefix+"?region=us-east-1&endpoint="+url.QueryEscape(endpoint),
		t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Broken if what one host stores in a bucket is not what another reads, if damage goes unseen, or if something
// is left behind here.
func TestS3(t *testing.T) {
	prefix := "a/" + rand.Text()
	s, other := newS3(t, prefix), newS3(t, prefix)
	random := make([]byte, 20<<20) // many pieces
	rand.Read(random)
	var ref outboard.BlobRef
	for _, content := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("text "), 500_000), random} {
		for range 2 { // the second finds the first
			var err error
			if ref, err = s.Put(t.Context(), bytes.NewReader(content), 0); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Bytes(t.Context(), other, ref, int64(len(content)))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes: %d, %v", len(content), len(got), err)
		}
	}
	if _, err := s.Open(t.Context(), outboard.BlobRef{Digest: strings.Repeat("a", 64),
		Size: 1}); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("absent: %v", err)
	}
	if _, err := s.Put(t.Context(), bytes.NewReader(random), 1000); outboard.KindOf(err) != outboard.TooLarge {
		t.Errorf("over the limit: %v", err)
	}
	changed := bytes.Clone(random)
	changed[10<<20] ^= 1
	before := objects(t, s)
	again, err := s.Put(t.Context(), bytes.NewReader(changed), 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := objects(t, s) - before; n < 2 || n > 4 { // the list, and the pieces around the byte
		t.Errorf("a byte of 20 MiB makes %d objects of %d", n, before)
	}
	if got, err := Bytes(t.Context(), other, again, again.Size); err != nil || !bytes.Equal(got, changed) {
		t.Errorf("a byte changed: %d, %v", len(got), err)
	}
	first := outboard.BlobRef{Size: int64(cut(random))}
	sum := sha256.Sum256(random[:first.Size])
	first.Digest = hex.EncodeToString(sum[:])
	for name, damage := range map[string][]byte{"other": random[:1000], "cut": encoder.EncodeAll(random[:1000], nil)} {
		for _, key := range []string{s.key(first.Digest), s.named(ref.Digest, piecesSuffix)} {
			if _, err := s.client.PutObject(t.Context(), s.bucket, key, bytes.NewReader(damage), int64(len(damage)),
				minio.PutObjectOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := Bytes(t.Context(), other, ref, ref.Size); outboard.KindOf(err) != outboard.Internal {
				t.Errorf("damaged %s (%s): %v", key, name, err)
			}
		}
	}
}

// objects counts what a store has in its bucket.
func objects(t *testing.T, s *S3) (n int) {
	t.Helper()
	for o := range s.client.ListObjects(t.Context(), s.bucket, minio.ListObjectsOptions{Prefix: s.prefix,
		Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		n++
	}
	return n
}

// Broken if a mistake in the configuration is found by the first checkpoint instead of the start, or shows a secret.
func TestNewS3Refuses(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
	denied := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	defer denied.Close()
	for address, kind := range map[string]outboard.Kind{
		"http://b":                      outboard.Invalid,
		"s3://":                         outboard.Invalid,
		"s3://key:secret@b":             outboard.Invalid,
		"s3://b?endpoint=ftp://x":       outboard.Invalid,
		"s3://b?endpoint=http://x/path": outboard.Invalid,
		"s3://b?acl=public":             outboard.Invalid,
		"s3://b?endpoint=" + denied.URL: outboard.Unavailable,
	} {
		_, err := NewS3(t.Context(), address, t.TempDir())
		if outboard.KindOf(err) != kind || strings.Contains(err.Error(), "very-secret") {
			t.Errorf("%s: %v", address, err)
		}
	}
	s := newS3(t, "control")
	if _, err := NewS3(t.Context(),
		"s3://no-such-bucket?region=us-east-1&endpoint="+url.QueryEscape(s.client.EndpointURL().
			String()), t.TempDir()); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("no bucket: %v", err)
	}
}

// Broken if what a crash left of an upload stays on the disk for ever, or one that another process is at is removed.
func TestS3SpoolIsTidied(t *testing.T) {
	s := newS3(t, "tidied")
	dir := t.TempDir()
	old := time.Now().Add(-2 * staleTemp)
	for _, name := range []string{"put-left", "put-young"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(filepath.Join(dir, "put-left"), old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := NewS3(t.Context(),
		"s3://outboard/tidied?region=us-east-1&endpoint="+url.QueryEscape(s.client.EndpointURL().
			String()), dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "put-young" {
		t.Errorf("left are %v, %v", entries, err)
	}
}

// Broken if a service that takes connections and says nothing holds up a start, or a turn, for minutes, or if
// nobody is told what it is.
func TestS3ThatSaysNothing(t *testing.T) {
	real := newS3(t, rand.Text()).client.EndpointURL()
	var silent atomic.Bool
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(real); r.Out.Host = r.In.Host }}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if silent.Load() {
			<-r.Context().Done()
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer srv.Close()
	address := "s3://outboard/" + rand.Text() + "?region=us-east-1&endpoint=" + url.QueryEscape(srv.URL)
	const look = 300 * time.Millisecond
	told := func(what string, err error) {
		t.Helper()
		if outboard.KindOf(err) != outboard.Unavailable || !strings.Contains(err.Error(),
			strings.TrimPrefix(srv.URL, "http://")+" did not answer within 300ms") ||
			!strings.Contains(outboard.HintOf(err), "endpoint") {
			t.Errorf("%s: %v, with the hint %q", what, err, outboard.HintOf(err))
		}
	}
	s, err := openS3(t.Context(), address, t.TempDir(), time.Minute)
	if err == nil {
		_, err = s.Put(t.Context(), strings.NewReader("control"), 0)
	}
	if err != nil {
		t.Fatal("control:", err)
	}
	silent.Store(true)
	_, err = openS3(t.Context(), address, t.TempDir(), look)
	told("at the start", err)
	s.look = look
	_, err = s.Put(t.Context(), strings.NewReader("lost"), 0)
	told("storing", err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = s.Put(gone, strings.NewReader("lost"), 0); outboard.KindOf(err) != outboard.Canceled {
		t.Errorf("by who went away: %v", err)
	}
}
