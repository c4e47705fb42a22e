package api

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Limits of an upload.
const (
	multipartSlack = 1 << 20 // bytes of a multipart body besides the file
	maxFormValue   = 64      // bytes of a plain form value
	maxParts       = 8
)

// legacyFiles selects the older shape of the file list.
const legacyFiles = "files-api-2025-04-14"

// uploadFile streams the file part to where it stays; nothing of it is held in memory.
func (s *server) uploadFile(r *request) (any, error) {
	r.Body = http.MaxBytesReader(r.w, r.Body, outboard.MaxFile+multipartSlack)
	mr, err := r.MultipartReader()
	if err != nil {
		return nil, bad("the request body must be multipart/form-data with a part named file: %w", err)
	}
	var up control.Upload
	var ref *outboard.BlobRef
	for n := 0; ; n++ {
		part, err := mr.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && n >= maxParts {
			err = bad("the form has more than %d parts", maxParts)
		}
		if err == nil {
			err = s.uploadPart(r, part, &up, &ref)
		}
		if err != nil {
			return nil, uploadErr(err)
		}
	}
	if ref == nil {
		return nil, bad("file: required")
	}
	f, err := s.ctl.CreateFile(r.Context(), r.by, up, *ref)
	if err != nil {
		return nil, err
	}
	return showFile(f), nil
}

// uploadErr tells a body that is too large or broken off from a fault of the server.
func uploadErr(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return outboard.Errorf(outboard.TooLarge, "the file is larger than %d bytes", outboard.MaxFile)
	}
	if _, ok := errors.AsType[*outboard.Error](err); ok {
		return err
	}
	return bad("reading the form: %w", err)
}

func (s *server) uploadPart(r *request, part *multipart.Part, up *control.Upload, ref **outboard.BlobRef) error {
	defer part.Close()
	switch name := part.FormName(); {
	case name == "file" && *ref == nil:
		up.Filename, up.MediaType = part.FileName(), mediaType(part)
		read := &failing{r: part}
		b, err := s.ctl.StoreBytes(r.Context(), r.by, read)
		if read.err != nil {
			return read.err // the client's side broke, not the store
		}
		*ref = &b
		return err
	case name == "expires_in_seconds" && up.Expires == 0:
		b, err := io.ReadAll(io.LimitReader(part, maxFormValue))
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 32)
		if err != nil || n <= 0 {
			return bad("expires_in_seconds: must be a positive integer, not %q", clip(string(b)))
		}
		up.Expires = time.Duration(n) * time.Second
		return nil
	case name == "file" || name == "expires_in_seconds":
		return bad("%s: given twice", name)
	default:
		return bad("%s: unknown field", clip(name))
	}
}

// failing remembers why reading ended.
type failing struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// mediaType is what the part says, else what its name suggests.
func mediaType(part *multipart.Part) string {
	t, _, err := mime.ParseMediaType(part.Header.Get("Content-Type"))
	if err == nil && t != "application/octet-stream" {
		return t
	}
	if t, _, err := mime.ParseMediaType(mime.TypeByExtension(filepath.Ext(part.FileName()))); err == nil {
		return t
	}
	return "application/octet-stream"
}

func (s *server) getFile(r *request) (any, error) {
	f, err := s.ctl.File(r.Context(), r.by, outboard.FileID(r.PathValue("file")))
	if err != nil {
		return nil, err
	}
	return showFile(f), nil
}

func (s *server) deleteFile(r *request) (any, error) {
	id := outboard.FileID(r.PathValue("file"))
	if err := s.ctl.DeleteFile(r.Context(), r.by, id); err != nil {
		return nil, err
	}
	return deletedOut{string(id), "file_deleted"}, nil
}

func (s *server) fileContent(r *request) (any, error) {
	f, body, err := s.ctl.OpenFile(r.Context(), r.by, outboard.FileID(r.PathValue("file")))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	h := r.w.Header()
	h.Set("Content-Type", f.MediaType)
	h.Set("Content-Length", strconv.FormatInt(f.Blob.Size, 10))
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": f.Filename}))
	h.Set("X-Content-Type-Options", "nosniff") // a model wrote this: no browser may take it for a page of ours
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	if _, err := io.Copy(r.w, body); err != nil {
		s.cut(r, err)
	}
	return nil, nil
}

// cut ends a response that failed after its first byte: cutting the connection is all that can still tell the client.
func (s *server) cut(r *request, err error) {
	if r.Context().Err() == nil {
		s.log.Warn("sending content", "request", requestID(r.Context()), "path", r.URL.Path, "err", err)
	}
	panic(http.ErrAbortHandler)
}

// fileIDs reads ids[], which stands alone.
func (r *request) fileIDs() ([]outboard.FileID, error) {
	vs, err := r.list("ids", control.MaxFileIDs*2)
	if err != nil || len(vs) == 0 {
		return nil, err
	}
	if r.query.Has("page") || r.query.Has("limit") {
		return nil, bad("ids[]: cannot be combined with page or limit")
	}
	slices.Sort(vs)
	vs = slices.Compact(vs)
	if len(vs) > control.MaxFileIDs {
		return nil, bad("ids[]: at most %d, not %d", control.MaxFileIDs, len(vs))
	}
	ids := make([]outboard.FileID, 0, len(vs))
	for _, v := range vs {
		ids = append(ids, outboard.FileID(v))
	}
	return ids, nil
}

func (s *server) listFiles(r *request) (any, error) {
	if slices.ContainsFunc(r.Header.Values("anthropic-beta"),
		func(v string) bool { return strings.Contains(v, legacyFiles) }) {
		return s.listFilesLegacy(r)
	}
	ids, err := r.fileIDs()
	if err != nil {
		return nil, err
	}
	q, err := r.rows("files", otherPage, maxOtherPage)
	if err != nil {
		return nil, err
	}
	q.page.Limit-- // control looks ahead itself, past expired files
	if len(ids) > 0 {
		q.page.Limit = control.MaxFileIDs
	}
	list, more, err := s.ctl.Files(r.Context(), r.by, outboard.SessionID(r.query.Get("scope_id")), ids, q.page, q.at)
	if err != nil {
		return nil, err
	}
	out := listOut[fileOut]{Data: []fileOut{}}
	for _, f := range list {
		out.Data = append(out.Data, showFile(f))
	}
	if more && len(ids) == 0 {
		last := list[len(list)-1]
		out.NextPage = cursor{List: "files", After: string(last.ID), At: last.CreatedAt.UnixMicro()}.token()
	}
	return out, nil
}

// legacyListOut is the file list as clients of files-api-2025-04-14 know it.
type legacyListOut struct {
	Data    []fileOut `json:"data"`
	HasMore bool      `json:"has_more"`
	FirstID *string   `json:"first_id"`
	LastID  *string   `json:"last_id"`
}

func (s *server) listFilesLegacy(r *request) (any, error) {
	limit, err := r.limit(otherPage, maxOtherPage)
	if err != nil {
		return nil, err
	}
	scope, before := outboard.SessionID(r.query.Get("scope_id")), r.query.Get("before_id")
	p := control.Page{Limit: limit, Cursor: r.query.Get("after_id")}
	if before != "" && p.Cursor != "" {
		return nil, bad("before_id: cannot be combined with after_id")
	}
	list, more, err := s.filesBefore(r, scope, before, p)
	// nothing else is left of the request that could be wrong
	if p.Cursor != "" && outboard.KindOf(err) == outboard.Invalid {
		return nil, bad("after_id: there is no file %q in this list", clip(p.Cursor))
	}
	if err != nil {
		return nil, err
	}
	out := legacyListOut{Data: []fileOut{}, HasMore: more}
	for _, f := range list {
		out.Data = append(out.Data, showFile(f))
	}
	if n := len(out.Data); n > 0 {
		out.FirstID, out.LastID = &out.Data[0].ID, &out.Data[n-1].ID
	}
	return out, nil
}

// filesBefore returns the page that ends right before a file. The list runs newest first and is walked from its
// start, which is what the old shape costs.
func (s *server) filesBefore(r *request, scope outboard.SessionID, before string,
	p control.Page) ([]outboard.File, bool, error) {
	if before == "" {
		return s.ctl.Files(r.Context(), r.by, scope, nil, p, time.Time{})
	}
	limit := p.Limit
	p.Limit = maxOtherPage
	var kept []outboard.File
	for skipped := false; ; {
		list, more, err := s.ctl.Files(r.Context(), r.by, scope, nil, p, time.Time{})
		if err != nil {
			return nil, false, err
		}
		for _, f := range list {
			if string(f.ID) == before {
				return kept, skipped, nil
			}
			if kept = append(kept, f); len(kept) > limit {
				kept, skipped = kept[1:], true
			}
		}
		if !more {
			return nil, false, bad("before_id: there is no file %q in this list", clip(before))
		}
		p.Cursor = string(list[len(list)-1].ID)
	}
}
