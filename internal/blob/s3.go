package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/outboard-dev/outboard"
)

// S3 is a Store in a bucket of an S3-compatible service, so that any host can restore what another saved. Every
// object is compressed and named by the digest of its content: PREFIX/ab/abcd...zst, or a list of others:
// PREFIX/ab/abcd...pieces. Nothing is ever deleted or changed: a bucket has no lock under which both could be
// done.
type S3 struct {
	client *minio.Client
	bucket string
	prefix string        // "" or ending in a slash
	look   time.Duration // see s3Look
	there  known
}

// known remembers what is in the bucket, so that the pieces of a large file that has hardly changed are not asked
// for one by one. It is safe for concurrent use.
type known struct {
	mu   sync.Mutex
	keys map[string]bool
}

// maxKnown bounds what is remembered: some 20 MB.
const maxKnown = 100_000

func (k *known) has(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[key]
}

func (k *known) add(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil || len(k.keys) >= maxKnown {
		k.keys = map[string]bool{}
	}
	k.keys[key] = true
}

const (
	// s3Retries bounds how often a request is tried again; the turn waits.
	s3Retries = 5
	// s3Header bounds waiting for the first byte of an answer.
	s3Header = 30 * time.Second
	// s3Look bounds a question with its repetitions, whether a bucket or an object is there: a service that
	// takes connections and says nothing would have them all wait for as long as s3Header, one after the other.
	s3Look = 20 * time.Second
)

// NewS3 returns the store that address names: s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME]. Without an endpoint
// it is AWS. Credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), else from
// the file that AWS_SHARED_CREDENTIALS_FILE names, or ~/.aws/credentials, with the profile AWS_PROFILE. spool is a
// directory that earlier releases had content on its way in; what a crash left there is removed. It talks to the
// service once: a bucket that is not there, or not ours, is an error now.
func NewS3(ctx context.Context, address, spool string) (*S3, error) {
	return openS3(ctx, address, spool, s3Look)
}

func openS3(ctx context.Context, address, spool string, look time.Duration) (*S3, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "s3" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return nil, outboard.Errorf(outboard.Invalid,
			"blob store: %q is not s3://BUCKET/PREFIX?endpoint=URL&region=NAME", address)
	}
	q := u.Query()
	for key := range q {
		if key != "endpoint" && key != "region" {
			return nil, outboard.Errorf(outboard.Invalid, "blob store: %q is not a parameter of %s; endpoint and "+
				"region are", key, u.Scheme)
		}
	}
	end := &url.URL{Scheme: "https", Host: "s3.amazonaws.com"}
	if e := q.Get("endpoint"); e != "" {
		if end, err = url.Parse(e); err != nil || end.Scheme != "https" && end.Scheme != "http" || end.Host == "" ||
			strings.Trim(end.Path, "/") != "" {
			return nil, outboard.Errorf(outboard.Invalid, "blob store: endpoint %q is not http(s)://HOST[:PORT]", e)
		}
	}
	if err := os.MkdirAll(spool, 0o700); err != nil {
		return nil, failed("creating", spool, err)
	}
	if err := sweep(spool, time.Now().Add(-staleTemp)); err != nil { // what a crash left
		return nil, failed("tidying", spool, err)
	}
	transport, err := minio.DefaultTransport(end.Scheme == "https")
	if err != nil {
		return nil, fmt.Errorf("blob store: %w", err)
	}
	transport.ResponseHeaderTimeout = s3Header
	s := &S3{bucket: u.Host, look: look}
	if p := strings.Trim(u.Path, "/"); p != "" {
		s.prefix = p + "/"
	}
	s.client, err = minio.New(end.Host, &minio.Options{Secure: end.Scheme == "https", Region: q.Get("region"),
		Transport: transport, MaxRetries: s3Retries,
		Creds: credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{},
			&credentials.FileAWSCredentials{}})})
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "blob store: %w", err)
	}
	asking, cancel := context.WithTimeout(ctx, look)
	defer cancel()
	switch ok, err := s.client.BucketExists(asking, s.bucket); {
	case err != nil:
		return nil, s.ended(ctx, s.failed("looking for bucket", s.bucket, err))
	case !ok:
		return nil, outboard.Errorf(outboard.Invalid, "blob store: there is no bucket %q at %s", s.bucket, end.Host).
			WithHint("make it, or correct blob in the configuration")
	}
	return s, nil
}

func (s *S3) key(digest string) string {
	return s.named(digest, compressedSuffix)
}

func (s *S3) named(digest, suffix string) string {
	return s.prefix + digest[:2] + "/" + digest + suffix
}

// failed is an error of the service. It is Unavailable: the same call works again once the service does.
func (s *S3) failed(doing, what string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) { // of look; the caller's is told by ended
		return outboard.Errorf(outboard.Unavailable, "blob store: %s %s: %s did not answer within %s: %w", doing, what,
			s.client.EndpointURL().Host, s.look, err).
			WithHint("check that an S3 service answers there, and the endpoint in blob of the configuration")
	}
	e := outboard.Errorf(outboard.Unavailable, "blob store: %s %s: %w", doing, what, err)
	switch minio.ToErrorResponse(err).Code {
	case "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch":
		return e.WithHint("check the credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or " +
			"AWS_SHARED_CREDENTIALS_FILE")
	}
	return e
}

// Put implements Store. What the bucket has already is not sent again.
func (s *S3) Put(ctx context.Context, r io.Reader, limit int64) (outboard.BlobRef, error) {
	src := &source{ctx: ctx, r: r, limit: limit, sum: sha256.New()}
	var head bytes.Buffer
	_, err := io.CopyN(&head, src, smallBlob)
	if err == io.EOF {
		return s.sendBlob(ctx, src.ref(), head.Bytes())
	}
	if err != nil {
		return outboard.BlobRef{}, err
	}
	list, err := putPieces(io.MultiReader(&head, src), func(ref outboard.BlobRef, content []byte) error {
		_, err := s.sendBlob(ctx, ref, content)
		return err
	})
	if src.err != nil {
		return outboard.BlobRef{}, src.err
	}
	ref := src.ref()
	if err != nil || len(list) == 1 { // one piece is the blob
		return ref, err
	}
	return ref, s.send(ctx, s.named(ref.Digest, piecesSuffix), pieceList(list))
}

func (s *S3) sendBlob(ctx context.Context, ref outboard.BlobRef, content []byte) (outboard.BlobRef, error) {
	key := s.key(ref.Digest)
	if s.there.has(key) {
		return ref, nil
	}
	return ref, s.send(ctx, key, encoder.EncodeAll(content, nil))
}

func (s *S3) send(ctx context.Context, key string, content []byte) error {
	asking, cancel := context.WithTimeout(ctx, s.look)
	info, err := s.client.StatObject(asking, s.bucket, key, minio.StatObjectOptions{})
	cancel()
	if err == nil && info.Size > 0 {
		s.there.add(key)
		return nil
	}
	if err != nil && !absent(err) {
		return s.ended(ctx, s.failed("looking for", key, err))
	}
	// A checksum in the header, instead of a signature in each chunk, which not every service understands.
	// Whoever reads compares the digest of the content.
	_, err = s.client.PutObject(ctx, s.bucket, key, bytes.NewReader(content), int64(len(content)),
		minio.PutObjectOptions{
			ContentType: "application/octet-stream", SendContentMd5: true, DisableContentSha256: true})
	if err != nil {
		return s.ended(ctx, s.failed("storing", key, err))
	}
	s.there.add(key)
	return nil
}

// ended is err, or Canceled when it comes of the caller's going away.
func (s *S3) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return outboard.Errorf(outboard.Canceled, "storing blob: %w", context.Cause(ctx))
	}
	return err
}

func absent(err error) bool {
	r := minio.ToErrorResponse(err)
	return r.StatusCode == http.StatusNotFound || r.Code == "NoSuchKey"
}

// Open implements Store.
func (s *S3) Open(ctx context.Context, ref outboard.BlobRef) (io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, outboard.Errorf(outboard.Canceled, "opening blob: %w", context.Cause(ctx))
	}
	if !validRef(ref) {
		return nil, outboard.Errorf(outboard.NotFound, "blob %.80q does not exist", ref.Digest)
	}
	if ref.Size <= smallBlob {
		return s.openWhole(ctx, ref)
	}
	list, err := s.pieces(ctx, ref)
	if outboard.KindOf(err) == outboard.NotFound { // of one piece, or stored by an earlier release
		return s.openWhole(ctx, ref)
	}
	if err != nil {
		return nil, err
	}
	name := s.address(s.named(ref.Digest, piecesSuffix))
	return newVerified(openPieces(ctx, name, list, s.openWhole), ref, name, false)
}

func (s *S3) address(key string) string { return "s3://" + s.bucket + "/" + key }

// pieces returns the pieces of a blob; NotFound when it has no list of them.
func (s *S3) pieces(ctx context.Context, ref outboard.BlobRef) ([]outboard.BlobRef, error) {
	key := s.named(ref.Digest, piecesSuffix)
	o, err := s.object(ctx, key)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	return readPieceList(o, s.address(key))
}

// openWhole opens what is stored as one object.
func (s *S3) openWhole(ctx context.Context, ref outboard.BlobRef) (io.ReadCloser, error) {
	key := s.key(ref.Digest)
	o, err := s.object(ctx, key)
	if outboard.KindOf(err) == outboard.NotFound {
		return nil, outboard.Errorf(outboard.NotFound, "blob %s does not exist", ref.Digest)
	}
	if err != nil {
		return nil, err
	}
	return newVerified(o, ref, s.address(key), true)
}

// object opens an object that is there.
func (s *S3) object(ctx context.Context, key string) (object, error) {
	o, err := s.client.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{})
	if err == nil {
		if _, err = o.Stat(); err != nil {
			o.Close()
		}
	}
	if err != nil && absent(err) {
		return object{}, outboard.Errorf(outboard.NotFound, "object %s does not exist", key)
	}
	if err != nil {
		return object{}, s.ended(ctx, s.failed("opening", key, err))
	}
	return object{o}, nil
}

// object marks errors of the service, which say nothing about the content.
type object struct{ *minio.Object }

// Read implements io.Reader.
func (o object) Read(p []byte) (int, error) {
	n, err := o.Object.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &os.PathError{Op: "get", Path: "object", Err: err}
	}
	return n, err
}
