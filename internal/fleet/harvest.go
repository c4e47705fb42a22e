package fleet

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/text"
)

// harvests remembers, per box, what each output file held when it was last read. It only saves reading: without
// it a file is read again and compared by digest.
type harvests map[outboard.SandboxID]map[string]output

// output is one file as it was read.
type output struct {
	size    int64
	modTime int64
	ref     outboard.BlobRef
	media   string
}

// Harvest returns files under the outputs directory that are new or changed since the last harvest of this box,
// stored as blobs. What counts as harvested are the session's committed file rows: rows that were returned and
// never committed are returned again.
func (f *Fleet) Harvest(ctx context.Context, b *Lease, session outboard.SessionID) ([]outboard.File, error) {
	m := b.use.machine
	m.saving.Lock()
	defer m.saving.Unlock()
	stats, err := m.List(ctx, sandbox.Outputs)
	if err != nil {
		return nil, fmt.Errorf("listing outputs: %w", err)
	}
	if len(stats) == 0 {
		return nil, nil
	}
	rows, err := f.harvested(ctx, session)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(stats, func(a, b guest.Stat) int { return strings.Compare(a.Path, b.Path) })
	known, now := f.known(m.ID()), map[string]output{}
	var files []outboard.File
	var skipped []string
	for _, st := range stats {
		rel, ok := outputPath(st)
		if !ok || st.Size > outboard.MaxFile || len(now) >= MaxOutputs {
			skipped = append(skipped, st.Path)
			continue
		}
		out, ok := known[rel]
		if !ok || out.size != st.Size || out.modTime != st.ModTime {
			if out, err = f.fetch(ctx, m, st, rel); err != nil {
				if ctx.Err() != nil || !m.usable() || outboard.KindOf(err) == outboard.Unavailable {
					return nil, fmt.Errorf("harvesting %s: %w", rel, err)
				}
				skipped = append(skipped, st.Path) // removed or grown over the limit since it was listed
				continue
			}
		}
		now[rel] = out
		if rows[rel] != out.ref.Digest {
			files = append(files, f.deliverable(session, rel, out))
		}
	}
	f.remember(m.ID(), now)
	if len(skipped) > 0 {
		f.log.Warn("outputs not harvested", "session", session, "files", len(skipped), "first",
			text.Clip(skipped[0], 200))
	}
	return files, nil
}

func (f *Fleet) deliverable(session outboard.SessionID, rel string, out output) outboard.File {
	return outboard.File{
		ID:           outboard.NewID[outboard.FileID](outboard.PrefixFile),
		Filename:     path.Base(rel),
		MediaType:    out.media,
		Blob:         out.ref,
		Downloadable: true,
		Session:      session,
		Path:         rel,
		CreatedAt:    f.now(),
	}
}

// harvested returns the digest of the newest committed file row for each output path of a session.
func (f *Fleet) harvested(ctx context.Context, session outboard.SessionID) (map[string]string, error) {
	digests := map[string]string{}
	page := store.Page{Limit: 500}
	for {
		files, err := f.cfg.Store.Files(ctx, session, nil, page)
		if err != nil {
			return nil, err
		}
		for _, file := range files { // newest first
			if _, ok := digests[file.Path]; !ok && file.Path != "" {
				digests[file.Path] = file.Blob.Digest
			}
		}
		if len(files) < page.Limit {
			return digests, nil
		}
		page.Cursor = string(files[len(files)-1].ID)
	}
}

// fetch reads one output file into a blob. Its size and time are those of the listing: a file that is written
// meanwhile has others the next time, and is read again.
func (f *Fleet) fetch(ctx context.Context, m *machine, st guest.Stat, rel string) (output, error) {
	var head []byte
	ref, err := f.receive(ctx, outboard.MaxFile, func(w io.Writer) error {
		sniff := &sniffer{w: w}
		err := m.Get(ctx, path.Join(sandbox.Outputs, rel), sniff)
		head = sniff.head
		return err
	})
	if err != nil {
		return output{}, err
	}
	return output{size: st.Size, modTime: st.ModTime, ref: ref, media: mediaType(rel, head)}, nil
}

// outputPath returns a listed file's path below Outputs. The guest is not trusted to name files that can be named here.
func outputPath(st guest.Stat) (string, bool) {
	p := st.Path
	if !path.IsAbs(p) {
		p = path.Join(sandbox.Outputs, p)
	}
	rel, ok := strings.CutPrefix(path.Clean(p), sandbox.Outputs+"/")
	if !ok || len(rel) > MaxOutputPath || !utf8.ValidString(rel) || strings.ContainsFunc(rel, unicode.IsControl) {
		return "", false
	}
	return rel, true
}

// known returns what was read from a box before; the map must not be changed.
func (f *Fleet) known(id outboard.SandboxID) map[string]output {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[id]
}

// remember keeps what was read from a box, at the cost of forgetting any other when there are too many.
func (f *Fleet) remember(id outboard.SandboxID, now map[string]output) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == nil {
		f.seen = harvests{}
	}
	if _, ok := f.seen[id]; !ok && len(f.seen) >= maxHarvests {
		for other := range f.seen {
			delete(f.seen, other)
			break
		}
	}
	f.seen[id] = now
}

func (f *Fleet) forget(id outboard.SandboxID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.seen, id)
	delete(f.owners, id)
}
