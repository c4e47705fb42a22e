package control

import (
	"cmp"
	"context"
	"hash/maphash"
	"sync"

	"github.com/outboard-dev/outboard"
)

// Bounds are what the organizations of an installation share. Where there are several, one may have OrgPercent
// hundredths of each.
type Bounds struct {
	OrgPercent int   // 0 = outboard.DefaultOrgPercent
	Streams    int   // that this process answers at a time; 0 = outboard.MaxStreams
	Files      int64 // 0 = outboard.MaxFiles
	FileBytes  int64 // 0 = no bound
}

// share is what one organization may have of a bound, and the settings that say so.
func (c *Control) share(ctx context.Context, total int64, setting string) (most int64, settings string) {
	if c.store.Shared(ctx) {
		return outboard.OrgShare(total, c.bounds.OrgPercent), "limits.organization_percent of " + setting
	}
	return total, setting
}

// streams are the answers of this process that last as long as their clients like. The zero value is ready.
type streams struct {
	mu  sync.Mutex
	all int
	of  map[outboard.OrgID]int
}

// OpenStream counts an answer that lasts as long as its client likes, until done is called. Exhausted if the
// process or the organization has as many as it may.
func (c *Control) OpenStream(ctx context.Context, org outboard.OrgID) (done func(), err error) {
	org = cmp.Or(org, outboard.DefaultOrg)
	total := cmp.Or(c.bounds.Streams, outboard.MaxStreams)
	most, settings := c.share(ctx, int64(total), "limits.streams")
	s := &c.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	const hint = "close some, or list the events; %s of the server's configuration is the limit"
	if n := s.of[org]; int64(n) >= most {
		return nil, outboard.Errorf(outboard.Exhausted, "organization %s has %d streams open, and may have %d (%s)",
			org, n, most, settings).
			WithHint(hint, settings)
	}
	if s.all >= total {
		return nil, outboard.Errorf(outboard.Exhausted, "%d streams are open, and at most %d may (limits.streams)",
			s.all, total).
			WithHint(hint, "limits.streams")
	}
	if s.of == nil {
		s.of = map[outboard.OrgID]int{}
	}
	s.all++
	s.of[org]++
	return sync.OnceFunc(func() { s.close(org) }), nil
}

func (s *streams) close(org outboard.OrgID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[org]--; s.of[org] == 0 {
		delete(s.of, org)
	}
}

// storing lets one file of an organization be counted and stored at a time. Processes that share a database can each
// pass the bound by one file.
type storing [64]sync.Mutex

var storingSeed = maphash.MakeSeed()

func (s *storing) lock(org outboard.OrgID) (unlock func()) {
	mu := &s[maphash.String(storingSeed, string(org))%uint64(len(s))]
	mu.Lock()
	return mu.Unlock
}

// roomForFile returns how many bytes more the files of an organization may be. Exhausted if it may have no file
// more, or not this content; the zero value is one that is not known yet.
func (c *Control) roomForFile(ctx context.Context, org outboard.OrgID,
	content outboard.BlobRef) (left int64, err error) {
	files, bytes, err := c.store.FileUse(ctx, org, content.Digest)
	if err != nil {
		return 0, err
	}
	const hint = "delete files, or raise the limit in the server's configuration"
	most, settings := c.share(ctx, cmp.Or(c.bounds.Files, outboard.MaxFiles), "limits.files")
	if files >= most {
		return 0, outboard.Errorf(outboard.Exhausted, "organization %s has %d files, and may have %d (%s)", org, files,
			most, settings).
			WithHint(hint)
	}
	if c.bounds.FileBytes == 0 {
		return outboard.MaxFile, nil
	}
	most, settings = c.share(ctx, c.bounds.FileBytes, "limits.file_bytes")
	if left = most - bytes; left < content.Size || left <= 0 && content.Digest == "" {
		return 0, outboard.Errorf(outboard.Exhausted, "the files of organization %s are %d bytes, and may be %d (%s)",
			org, bytes, most, settings).
			WithHint(hint)
	}
	return left, nil
}

// keepFile stores the row of one file more, if its organization has room for it.
func (c *Control) keepFile(ctx context.Context, f outboard.File) error {
	defer c.storing.lock(f.Org)()
	if _, err := c.roomForFile(ctx, f.Org, f.Blob); err != nil {
		return err
	}
	return c.store.PutFile(ctx, f)
}

// overFileBytes is the error of content that did not fit into what was left.
func (c *Control) overFileBytes(ctx context.Context, org outboard.OrgID, left int64, err error) error {
	if left >= outboard.MaxFile || outboard.KindOf(err) != outboard.TooLarge {
		return err
	}
	if _, full := c.roomForFile(ctx, org, outboard.BlobRef{Size: left + 1}); full != nil {
		return full
	}
	return err
}
