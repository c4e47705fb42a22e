package control

import (
	"context"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
)

// Limits of the Managed Agents wire on files.
const (
	maxFilename = 500
	maxMIME     = 255
	minExpiry   = time.Hour
	maxExpiry   = 90 * 24 * time.Hour
	// MaxFileIDs bounds the ids one list request may name.
	MaxFileIDs = 100
)

// unnamed is the name of a file that came without one.
const unnamed = "unnamed"

// Upload describes a file to store.
type Upload struct {
	Filename  string // "" = unnamed
	MediaType string
	Expires   time.Duration // 0 = never
}

// StoreBytes keeps what r yields, at most MaxFile bytes, without holding it in memory. It is no file yet: CreateFile
// makes it visible, once the whole request is known to be good.
func (c *Control) StoreBytes(ctx context.Context, by outboard.Caller, r io.Reader) (outboard.BlobRef, error) {
	if err := requireDeveloper(by, scopeFiles); err != nil {
		return outboard.BlobRef{}, err
	}
	left, err := c.roomForFile(ctx, by.In(), outboard.BlobRef{})
	if err != nil {
		return outboard.BlobRef{}, err
	}
	ref, err := c.blob.Put(ctx, r, min(left, outboard.MaxFile))
	if err != nil {
		err = c.overFileBytes(ctx, by.In(), left, err)
		return ref, outboard.Errorf(outboard.KindOf(err), "storing the file: %w", err)
	}
	return ref, nil
}

// CreateFile makes stored bytes a file.
func (c *Control) CreateFile(ctx context.Context, by outboard.Caller, u Upload,
	ref outboard.BlobRef) (outboard.File, error) {
	if err := requireDeveloper(by, scopeFiles); err != nil {
		return outboard.File{}, err
	}
	if u.Filename == "" { // SDKs send none for what they only read from
		u.Filename = unnamed
	}
	if err := checkUpload(u); err != nil {
		return outboard.File{}, err
	}
	f := outboard.File{ID: outboard.NewID[outboard.FileID](outboard.PrefixFile), Filename: u.Filename,
		MediaType: u.MediaType,
		Blob:      ref, CreatedAt: c.clock(), Org: by.In()}
	if u.Expires > 0 {
		f.ExpiresAt = f.CreatedAt.Add(u.Expires)
	}
	if err := c.record(ctx, by, "file.create", string(f.ID), ref); err != nil {
		return f, err
	}
	if err := c.keepFile(ctx, f); err != nil {
		return f, outboard.Errorf(outboard.KindOf(err), "storing the file: %w", err)
	}
	return f, nil
}

func checkUpload(u Upload) error {
	if err := length("filename", u.Filename, 1, maxFilename); err != nil {
		return err
	}
	if !utf8.ValidString(u.Filename) || strings.ContainsFunc(u.Filename, unicode.IsControl) ||
		strings.ContainsAny(u.Filename, `/\`) {
		return invalid("filename %s has control characters or slashes", quote(u.Filename))
	}
	if err := length("mime_type", u.MediaType, 1, maxMIME); err != nil {
		return err
	}
	if u.Expires != 0 && (u.Expires < minExpiry || u.Expires > maxExpiry) {
		return invalid("expires_in_seconds must be %d to %d, not %d", int(minExpiry.Seconds()),
			int(maxExpiry.Seconds()), int64(u.Expires.Seconds()))
	}
	return nil
}

// File returns one file's row. An expired file is NotFound.
func (c *Control) File(ctx context.Context, by outboard.Caller, id outboard.FileID) (outboard.File, error) {
	if err := requireReader(by); err != nil {
		return outboard.File{}, err
	}
	f, err := c.fileOf(ctx, by.In(), id)
	if err != nil {
		return outboard.File{}, err
	}
	if c.expired(f) {
		return f, outboard.Errorf(outboard.NotFound, "file %q expired at %s", id, f.ExpiresAt.Format(time.RFC3339)).
			WithCode("file_expired")
	}
	return f, nil
}

// fileOf is the only way to a file's row, wherever its id comes from: a block, a session's config, metadata or
// log. An organization has no files but its own; the id of another's is as good as none.
func (c *Control) fileOf(ctx context.Context, org outboard.OrgID, id outboard.FileID) (outboard.File, error) {
	if !outboard.ValidID(outboard.PrefixFile, string(id)) {
		return outboard.File{}, notFound("file", string(id))
	}
	f, err := c.store.File(ctx, id)
	if err == nil && f.Org != org {
		return outboard.File{}, notFound("file", string(id))
	}
	return f, wrapLookup("file", string(id), err)
}

func (c *Control) expired(f outboard.File) bool {
	return !f.ExpiresAt.IsZero() && !f.ExpiresAt.After(c.now())
}

// Files returns one page, newest first, of a session's files, or of all when session is "". Expired ones are left out.
// more tells whether older rows follow. at is when the cursor's row was made: it may be deleted by now.
func (c *Control) Files(ctx context.Context, by outboard.Caller, session outboard.SessionID, ids []outboard.FileID,
	p Page, at time.Time) (files []outboard.File, more bool, err error) {
	if err := requireReader(by); err != nil {
		return nil, false, err
	}
	limit := p.Limit
	p.Limit++
	p.Org = by.In()
	for {
		page, err := listAfter(func(p Page) ([]outboard.File, error) { return c.store.Files(ctx, session, ids, p) }, p,
			at,
			func(f outboard.File) (time.Time, string) { return f.CreatedAt, string(f.ID) })
		if err != nil {
			return nil, false, wrapLookup("files", "", err)
		}
		for _, f := range page {
			if c.expired(f) {
				continue
			}
			if len(files) == limit {
				return files, true, nil
			}
			files = append(files, f)
		}
		if len(page) < p.Limit || len(ids) > 0 {
			return files, false, nil
		}
		p.Cursor, at = string(page[len(page)-1].ID), page[len(page)-1].CreatedAt
	}
}

// OpenFile returns a file's bytes. Invalid: the file is an upload, which the wire never gives back.
func (c *Control) OpenFile(ctx context.Context, by outboard.Caller,
	id outboard.FileID) (outboard.File, io.ReadCloser, error) {
	f, err := c.File(ctx, by, id)
	if err != nil {
		return f, nil, err
	}
	if !f.Downloadable {
		return f, nil, invalid("file %s was uploaded and cannot be downloaded", id).WithCode("file_not_downloadable").
			WithHint("only files that a session wrote below /mnt/session/outputs can be downloaded")
	}
	r, err := c.blob.Open(ctx, f.Blob)
	if err != nil {
		return f, nil, outboard.Errorf(outboard.KindOf(err), "opening file %s: %w", id, err)
	}
	return f, r, nil
}

// DeleteFile removes a file. Sessions keep their copies.
func (c *Control) DeleteFile(ctx context.Context, by outboard.Caller, id outboard.FileID) error {
	if err := requireDeveloper(by, scopeFiles); err != nil {
		return err
	}
	if _, err := c.File(ctx, by, id); err != nil {
		return err
	}
	if err := c.record(ctx, by, "file.delete", string(id), nil); err != nil {
		return err
	}
	return wrapLookup("file", string(id), c.store.DeleteFile(ctx, id))
}
