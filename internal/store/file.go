package store

import (
	"context"

	"github.com/outboard-dev/outboard"
)

const fileCols = `id, session, filename, media_type, digest, size, downloadable, path, created_at, expires_at, org`

// A session's file is of its organization, whoever adds it.
const insertFileSQL = `INSERT INTO files (` + fileCols + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
	COALESCE(NULLIF(?, ''), (SELECT org FROM sessions WHERE id = ?), 'default'))`

func fileArgs(f *outboard.File) []any {
	return []any{string(f.ID), string(f.Session), f.Filename, f.MediaType, f.Blob.Digest, f.Blob.Size,
		flag(f.Downloadable), f.Path,
		micros(f.CreatedAt), micros(f.ExpiresAt), string(f.Org), string(f.Session)}
}

func scanFile(sc scanner) (outboard.File, error) {
	var f outboard.File
	var downloadable, created, expires int64
	err := sc.Scan(&f.ID, &f.Session, &f.Filename, &f.MediaType, &f.Blob.Digest, &f.Blob.Size, &downloadable, &f.Path,
		&created, &expires, &f.Org)
	f.Downloadable, f.CreatedAt, f.ExpiresAt = downloadable != 0, timeOf(created), timeOf(expires)
	return f, err
}

// PutFile inserts a file row. ErrDuplicate if the id exists.
func (s *Store) PutFile(ctx context.Context, f outboard.File) error {
	return s.update(ctx, "storing file", func(t tx) error {
		_, err := t.exec(ctx, insertFileSQL, fileArgs(&f)...)
		if s.d.unique(err) {
			return ErrDuplicate
		}
		return err
	})
}

const fileSQL = `SELECT ` + fileCols + ` FROM files WHERE id = ?`

// File returns one.
func (s *Store) File(ctx context.Context, id outboard.FileID) (outboard.File, error) {
	return one(ctx, s, "file", id, scanFile, fileSQL, string(id))
}

// Files returns one page; session "" selects uploads and session files alike. ids, when not empty, selects among those.
func (s *Store) Files(ctx context.Context, session outboard.SessionID, ids []outboard.FileID,
	p Page) ([]outboard.File, error) {
	w, err := s.list(ctx, "files", p)
	if err != nil {
		return nil, err
	}
	if session != "" {
		w.add(`session = ?`, string(session))
	}
	if len(ids) > 0 {
		w.add(`id IN (`+marks(len(ids))+`)`, texts(ids)...)
	}
	query := `SELECT ` + fileCols + ` FROM files` + w.String() + order("created_at, id", false) + ` LIMIT ?`
	return collect(ctx, s, "listing files", scanFile, query, append(w.args, limitOr(p.Limit, defaultPage))...)
}

// The content of a file that several sessions have a copy of is stored once.
const fileUseSQL = `SELECT (SELECT count(*) FROM files WHERE org = ?),
	(SELECT COALESCE(SUM(size), 0) FROM (SELECT DISTINCT digest, size FROM files WHERE org = ? AND digest <> ?) AS contents)`

// FileUse returns how many files an organization has, and how many bytes they are, those with one digest left out.
func (s *Store) FileUse(ctx context.Context, org outboard.OrgID, but string) (files, bytes int64, err error) {
	err = s.queryRow(ctx, fileUseSQL, string(org), string(org), but).Scan(&files, &bytes)
	return files, bytes, s.fail("counting files", err)
}

const deleteFileSQL = `DELETE FROM files WHERE id = ?`

// DeleteFile removes the row; the blob stays until PruneBlobs of control.
func (s *Store) DeleteFile(ctx context.Context, id outboard.FileID) error {
	return s.delete(ctx, "file", string(id), deleteFileSQL)
}
