package e2b

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Limits of a file's metadata, as the original has them.
const (
	maxMetaKey   = 246
	maxMetaTotal = 4096
	maxParts     = 1000
)

// maxUnzipped bounds a body that comes compressed, which may be a thousand times what was sent: as much as a box
// can be restored with. What comes plain costs its client what it costs us.
const maxUnzipped = 8 << 30

// maxZippedExtra is how much larger a compressed body may be than what it unpacks to.
const maxZippedExtra = 16 << 20

// unzip holds a compressed body until it is known to be whole, and returns what it unpacks to: of one that
// breaks off, or that is followed by something else, no file is touched. The caller closes it.
func (s *Server) unzip(body io.Reader) (io.ReadCloser, error) {
	from := &source{r: io.LimitReader(body, s.unzipped+maxZippedExtra)} // many empty parts unpack to nothing
	whole, err := s.ctl.Hold(from, func(r io.Reader) error {
		u, err := s.unpack(r)
		if err == nil {
			_, err = io.Copy(io.Discard, u)
		}
		if from.err != nil {
			return outboard.Errorf(outboard.Invalid, "the body could not be read to its end: %w", from.err)
		}
		if err != nil && outboard.KindOf(err) != outboard.TooLarge {
			return outboard.Errorf(outboard.Invalid, "the body is no whole gzip, so nothing of it was written: %w", err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r, err := s.unpack(bufio.NewReader(whole))
	if err != nil { // of the disk: it was read before
		return nil, errors.Join(err, whole.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{r, whole}, nil
}

// source is a body that remembers why it could not be read to its end.
type source struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

func (s *Server) unpack(r io.Reader) (io.Reader, error) {
	zr, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	return &unzipped{zr, s.unzipped, s.unzipped}, nil
}

// unzipped is a compressed body that ends with an error where it is too large.
type unzipped struct {
	r          io.Reader
	left, most int64
}

// Read implements io.Reader.
func (u *unzipped) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if u.left -= int64(n); u.left < 0 {
		return 0, outboard.Errorf(outboard.TooLarge, "the body is larger than %d bytes when it is unpacked: send "+
			"large files without Content-Encoding", u.most)
	}
	return n, err
}

// signature computes what admits a request to one file.
func signature(r *http.Request, secret string) string { return signer(r)(secret) }

// signer returns the function that computes, for the secret of each box, what admits a request to one file.
func signer(r *http.Request) func(secret string) string {
	op := "write"
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		op = "read"
	}
	q := r.URL.Query()
	head, tail := q.Get("path")+":"+op+":"+q.Get("username")+":", ""
	if exp := q.Get("signature_expiration"); exp != "" {
		tail = ":" + exp
	}
	return func(secret string) string {
		sum := sha256.Sum256([]byte(head + secret + tail))
		return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
	}
}

// signed reports whether a request carries the signature of a box, whatever its time.
func signed(r *http.Request, secret string) bool {
	return control.HasSecret(signature(r, secret), r.URL.Query().Get("signature"))
}

// Bounds of the secrets that are tried for a signature that names no box. One organization does not push the
// others' out.
const (
	maxHanded    = 1024
	maxHandedOrg = 64
	// maxSigned bounds what such a signature covers: it is hashed once for each secret.
	maxSigned = 8 << 10
)

// handed remembers the secrets of boxes that this process gave to a client lately. The SDKs sign addresses that
// do not say which box they are for. Trying these alone is bounded work without a look into the store, whoever
// asks, and however many boxes there are.
type handed struct {
	mu   sync.Mutex
	list []handedBox // oldest first
}

type handedBox struct {
	id     outboard.BoxID
	org    outboard.OrgID
	secret string
}

// add remembers a box, as the newest of its organization. Where there is no space for it the oldest is
// forgotten: of the same organization when that has its share, else of the one that has most.
func (h *handed) add(b *outboard.Box) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = slices.DeleteFunc(h.list, func(o handedBox) bool { return o.id == b.ID })
	count := map[outboard.OrgID]int{}
	most := b.Org
	for _, o := range h.list {
		count[o.org]++
		if count[o.org] > count[most] {
			most = o.org
		}
	}
	switch {
	case count[b.Org] >= maxHandedOrg:
		most = b.Org
	case len(h.list) < maxHanded:
		most = ""
	}
	if i := slices.IndexFunc(h.list, func(o handedBox) bool { return o.org == most }); i >= 0 && most != "" {
		h.list = slices.Delete(h.list, i, i+1)
	}
	h.list = append(h.list, handedBox{b.ID, b.Org, b.Secret})
}

// signer returns the box whose secret a request is signed with.
func (h *handed) signer(r *http.Request) (outboard.BoxID, error) {
	const whose = "the signature is of no sandbox whose token this server gave out lately"
	if len(r.URL.RawQuery) > maxSigned {
		return "", outboard.Errorf(outboard.Unauthenticated, whose)
	}
	h.mu.Lock()
	list := slices.Clone(h.list)
	h.mu.Unlock()
	got, of := r.URL.Query().Get("signature"), signer(r)
	for _, o := range slices.Backward(list) {
		if control.HasSecret(of(o.secret), got) {
			return o.id, nil
		}
	}
	return "", outboard.Errorf(outboard.Unauthenticated, whose).
		WithHint("name the sandbox: in the host name (49983-SANDBOX.DOMAIN), or in E2b-Sandbox-Id and E2b-Sandbox-Port")
}

// checkSignature refuses a request without a valid signature.
func checkSignature(r *http.Request, b *outboard.Box, now time.Time) error {
	q := r.URL.Query()
	if !q.Has("signature") {
		return outboard.Errorf(outboard.Unauthenticated, "missing signature query parameter")
	}
	if !signed(r, b.Secret) {
		return outboard.Errorf(outboard.Unauthenticated, "invalid signature")
	}
	if exp := q.Get("signature_expiration"); exp != "" {
		if n, err := strconv.ParseInt(exp, 10, 64); err != nil || n < now.Unix() {
			return outboard.Errorf(outboard.Unauthenticated, "signature is already expired")
		}
	}
	return nil
}

// readFile answers with a file, or a part of it.
func (v *visit) readFile() {
	ctx, cancel := context.WithCancel(v.Context())
	defer cancel()
	ref := v.ref(v.URL.Query().Get("path"))
	e, err := v.m.Stat(ctx, ref)
	if err == nil && e.Kind != "file" {
		err = &control.Refusal{Code: "invalid", Message: fmt.Sprintf("path '%s' is not a regular file", ref.Path)}
	}
	if r, ok := errors.AsType[*control.Refusal](err); ok && r.Code == "not_found" {
		err = &control.Refusal{Code: r.Code, Message: fmt.Sprintf("path '%s' does not exist", ref.Path)}
	}
	if err != nil {
		v.failed(err)
		return
	}
	name := path.Base(string(e.Path))
	h := v.w.Header()
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": name}))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox") // a file is shown under a name that other files share
	if mime.TypeByExtension(path.Ext(name)) == "" {
		h.Set("Content-Type", "application/octet-stream")
	}
	if strings.Contains(v.Header.Get("Range"), ",") {
		// several parts are read by a goroutine of net/http's, which may go on when content is stopped
		v.Header.Del("Range")
	}
	content := &remote{ctx: ctx, m: v.m, ref: ref, size: e.Size}
	defer content.stop()
	http.ServeContent(v.w, v.Request, name, time.UnixMicro(e.ModTime), content)
	if content.err != nil && ctx.Err() == nil {
		panic(http.ErrAbortHandler) // less than was promised
	}
}

// remote is a file of a box as an io.ReadSeeker: nothing is read before somebody asks.
type remote struct {
	ctx  context.Context
	m    control.Sandbox
	ref  control.FileRef
	size int64
	at   int64

	r      *io.PipeReader
	cancel context.CancelFunc
	err    error
}

// Seek moves to where the next Read begins.
func (f *remote) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.size
	}
	if offset < 0 {
		return 0, errors.New("seeking before the beginning")
	}
	if offset != f.at {
		f.stop()
	}
	f.at = offset
	return offset, nil
}

// Read reads on.
func (f *remote) Read(p []byte) (int, error) {
	if f.at >= f.size {
		return 0, io.EOF
	}
	if f.r == nil {
		ctx, cancel := context.WithCancel(f.ctx)
		r, w := io.Pipe()
		f.r, f.cancel = r, cancel
		from := f.at
		go func() { // ends with stop, or with the file
			w.CloseWithError(f.m.ReadFile(ctx, f.ref, from, f.size-from, w))
		}()
	}
	n, err := f.r.Read(p)
	f.at += int64(n)
	if err != nil && f.at < f.size {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF // it has become shorter
		}
		f.err = err
	}
	return n, err
}

func (f *remote) stop() {
	if f.r != nil {
		f.cancel()
		f.r.Close()
		f.r = nil
	}
}

type writtenOut struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// writeFiles stores the body, or the parts of it.
func (v *visit) writeFiles() {
	attrs, err := v.metadata()
	var body io.Reader = v.Body
	if err == nil && strings.EqualFold(v.Header.Get("Content-Encoding"), "gzip") {
		var whole io.ReadCloser
		if whole, err = v.s.unzip(v.Body); err == nil {
			defer whole.Close()
			body = whole
		}
	} else if enc := v.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		err = outboard.Errorf(outboard.Invalid, "Content-Encoding %q is not supported", enc)
	}
	if err != nil {
		fail(v.w, err)
		return
	}
	kind, params, err := mime.ParseMediaType(v.Header.Get("Content-Type"))
	out, to := []writtenOut{}, v.URL.Query().Get("path")
	switch {
	case err == nil && kind == "multipart/form-data":
		out, err = v.writeParts(multipart.NewReader(body, params["boundary"]), to, attrs)
	case to == "":
		err = outboard.Errorf(outboard.Invalid, "path is required")
	default:
		var one writtenOut
		one, err = v.writeOne(to, attrs, body)
		out = append(out, one)
	}
	if err != nil {
		v.failed(err)
		return
	}
	reply(v.w, http.StatusOK, out)
}

// writeParts stores every part called file, under its own name where the request names none.
func (v *visit) writeParts(mr *multipart.Reader, to string, attrs map[string]string) ([]writtenOut, error) {
	out := []writtenOut{}
	for n := 0; ; n++ {
		part, err := mr.NextRawPart()
		if err == io.EOF && len(out) > 0 {
			return out, nil
		}
		if outboard.KindOf(err) == outboard.TooLarge {
			return nil, err
		}
		if err != nil {
			return nil, outboard.Errorf(outboard.Invalid, "reading the form: %w", err)
		}
		if n >= maxParts {
			return nil, outboard.Errorf(outboard.Invalid, "more than %d parts", maxParts)
		}
		if part.FormName() != "file" {
			continue
		}
		name := to
		if name == "" { // with its directories, which Part.FileName leaves out
			_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			name = params["filename"]
		}
		if name == "" {
			return nil, outboard.Errorf(outboard.Invalid, "a part has no file name")
		}
		one, err := v.writeOne(name, attrs, part)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
}

func (v *visit) writeOne(to string, attrs map[string]string, r io.Reader) (writtenOut, error) {
	e, err := v.m.WriteFile(v.Context(), v.ref(to), attrs, r)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return writtenOut{}, outboard.Errorf(outboard.Invalid, "the body ends before the file does")
	}
	if err != nil {
		return writtenOut{}, err
	}
	return writtenOut{string(e.Path), path.Base(string(e.Path)), "file", metadataOf(e)}, nil
}

// metadata reads what a file is to be marked with.
func (v *visit) metadata() (map[string]string, error) {
	out, total := map[string]string{}, 0
	for name, values := range v.Header {
		key, ok := strings.CutPrefix(name, "X-Metadata-")
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		if key == "" || len(key) > maxMetaKey || strings.ContainsFunc(key+values[0],
			func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, outboard.Errorf(outboard.Invalid, "metadata %q must be printable ASCII of at most %d bytes",
				key, maxMetaKey)
		}
		total += len(key) + len(values[0])
		out[key] = values[0]
	}
	if total > maxMetaTotal {
		return nil, outboard.Errorf(outboard.Invalid, "metadata must have at most %d bytes", maxMetaTotal)
	}
	return out, nil
}

// compose joins files into one and removes them.
func (v *visit) compose() {
	var in struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		Username    string   `json:"username"`
	}
	if err := decode(v.w, v.Request, &in); err != nil {
		fail(v.w, err)
		return
	}
	if len(in.Sources) == 0 || len(in.Sources) > maxParts || in.Destination == "" {
		fail(v.w, outboard.Errorf(outboard.Invalid, "source_paths must have 1 to %d entries, and destination is "+
			"required", maxParts))
		return
	}
	ref := func(p string) control.FileRef {
		f := v.ref(p)
		if in.Username != "" {
			f.User = in.Username
		}
		return f
	}
	if err := v.joinable(in.Sources, in.Destination, ref); err != nil {
		v.failed(err)
		return
	}
	r, w := io.Pipe()
	defer r.Close()
	go func() { // ends with the pipe
		for _, p := range in.Sources {
			if err := v.m.ReadFile(v.Context(), ref(p), 0, 0, w); err != nil {
				w.CloseWithError(err)
				return
			}
		}
		w.Close()
	}()
	e, err := v.m.WriteFile(v.Context(), ref(in.Destination), nil, r)
	for _, p := range in.Sources {
		if err == nil {
			err = v.m.Remove(v.Context(), ref(p))
		}
	}
	if err != nil {
		v.failed(err)
		return
	}
	reply(v.w, http.StatusOK, showEntry(e))
}

// joinable finds what cannot be joined before the destination is touched: a part that is no file, or that is the
// destination itself, which would be emptied while it is read, and removed at the end.
func (v *visit) joinable(names []string, to string, ref func(string) control.FileRef) error {
	into, err := v.m.Stat(v.Context(), ref(to))
	if r, ok := errors.AsType[*control.Refusal](err); err != nil && (!ok || r.Code != "not_found") {
		return err
	}
	for _, p := range names {
		e, err := v.m.Stat(v.Context(), ref(p))
		switch {
		case err != nil:
			return err
		case e.Kind != "file":
			return &control.Refusal{Code: "invalid", Message: fmt.Sprintf("path '%s' is not a regular file", p)}
		case into.Path != "" && whole(e) == whole(into):
			return &control.Refusal{Code: "invalid", Message: fmt.Sprintf("path '%s' is the destination", p)}
		}
	}
	return nil
}

// whole is where a file is, whichever way it was named.
func whole(e control.Entry) string { return path.Clean(string(cmp.Or(e.Target, e.Path))) }
