package guest

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A workspace's tar holds the saved directories by their names inside the sandbox, without the leading slash. A
// delta begins with one entry, deletedName, whose content is the paths that are no more, each ended by a zero
// byte; then follow the new and changed names. The tar of everything has no such entry. Tars can be
// concatenated.
const deletedName = ".outboard/deleted"

// save is Save of the protocol.
func (s *server) save(ctx context.Context, a Save, st *stream) (Saved, error) {
	if _, err := s.table.find(ctx, "", a.Epoch); err != nil { // for the fence alone
		return Saved{}, err
	}
	if a.Next == "" {
		return Saved{}, &Error{Code: Invalid, Message: "a state needs a label"}
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	now, err := s.look(a.Next)
	if err != nil {
		return Saved{}, internal(err)
	}
	base := s.store.find(a.Base)
	changed, deleted := now.order, []string(nil)
	if base != nil {
		if changed, deleted, err = s.diff(base, now); err != nil {
			return Saved{}, internal(err)
		}
		if len(changed)+len(deleted) == 0 {
			base.adopt(now)
			return Saved{}, nil // the answer ends the stream as well
		}
	}
	w := &sender{ctx: ctx, s: st}
	tw := tar.NewWriter(w)
	p := &packer{s: s, now: now, w: w, tw: tw, sparse: NewSparse(w, tw), links: make(map[inode]*item)}
	if err := p.pack(changed, deleted, base != nil); err != nil {
		return Saved{}, err
	}
	if err := w.flush(); err != nil {
		return Saved{}, err
	}
	if err := st.end(ctx); err != nil {
		return Saved{}, err
	}
	s.store.keep(base, now)
	return Saved{Changed: true, Full: base == nil, Entries: len(changed) + len(deleted), Bytes: w.n}, nil
}

func (ws *workspace) find(label string) *scan {
	i := slices.IndexFunc(ws.scans, func(sc *scan) bool { return sc.label == label && label != "" })
	if i < 0 {
		return nil
	}
	return ws.scans[i]
}

// keep remembers a new state, and of the older ones the one it was compared with: a caller that did not get the
// answer has only that. Without one, it is the newest.
func (ws *workspace) keep(base, now *scan) {
	if n := len(ws.scans); base == nil && n > 0 {
		base = ws.scans[n-1]
	}
	ws.scans = ws.scans[:0]
	if base != nil && base.label != now.label {
		ws.scans = append(ws.scans, base)
	}
	ws.scans = append(ws.scans, now)
}

// adopt replaces a scan's knowledge by a newer look that found no change: what was looked at too early then may
// be certain now.
func (sc *scan) adopt(now *scan) {
	label := sc.label
	*sc = *now
	sc.label = label
}

// packer writes items as a tar.
type packer struct {
	s      *server
	now    *scan
	w      *sender
	tw     *tar.Writer
	sparse *Sparse
	links  map[inode]*item // what was written and has several names: the first one
}

func (p *packer) pack(items []*item, deleted []string, delta bool) error {
	if delta {
		list := strings.Join(deleted, "\x00")
		if len(deleted) > 0 {
			list += "\x00"
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: deletedName, Size: int64(len(list)), Mode: 0o600,
			Format: tar.FormatPAX}
		if err := p.tw.WriteHeader(h); err != nil {
			return internal(err)
		}
		if _, err := io.WriteString(p.tw, list); err != nil {
			return err
		}
	}
	for _, it := range items {
		if err := p.item(it); err != nil {
			return err
		}
		if err := p.fits(it.path, 0); err != nil {
			return err
		}
	}
	return p.tw.Close()
}

// fits refuses what makes a tar too long.
func (p *packer) fits(path string, more int64) error {
	if p.w.n+more <= maxSave {
		return nil
	}
	return &Error{Code: TooLarge, Message: fmt.Sprintf("more than the %d bytes that can be saved, with %q",
		int64(maxSave), path)}
}

func (p *packer) item(it *item) error {
	h := &tar.Header{
		Name: it.path, Mode: int64(it.mark.mode & 0o7777), ModTime: time.Unix(it.mark.mtime.Unix()), Format: tar.FormatPAX,
	}
	if it.mark.mode&syscall.S_IFMT == syscall.S_IFDIR {
		return p.dir(it, h)
	}
	if it.mark.nlink > 1 {
		id := it.mark.inode()
		if first, ok := p.links[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first.path
			it.racy, it.sum = first.racy, first.sum
			return p.tw.WriteHeader(h)
		}
		p.links[id] = it
	}
	switch it.mark.mode & syscall.S_IFMT {
	case syscall.S_IFLNK:
		h.Typeflag, h.Linkname = tar.TypeSymlink, it.link
	case syscall.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	default:
		return p.file(it, h)
	}
	return p.tw.WriteHeader(h)
}

// dir writes a directory with the attributes that it has now.
func (p *packer) dir(it *item, h *tar.Header) error {
	h.Typeflag = tar.TypeDir
	h.Name += "/"
	f, err := p.s.find(it)
	if err != nil {
		return internal(err)
	}
	if f == nil { // gone since the scan, which the next Save finds
		return p.tw.WriteHeader(h)
	}
	defer f.Close()
	if err := PackAttrs(h, int(f.Fd())); err != nil {
		return internal(err)
	}
	if p.now.uncertain(it) {
		sum := sha256.New()
		sumAttrs(sum, h)
		it.racy = true
		sum.Sum(it.sum[:0])
	}
	return p.tw.WriteHeader(h)
}

// file writes a regular file as it is now, cut or filled up with zeros to the size that the scan saw. The scan
// is what the next Save compares with, so a file that changes meanwhile is sent again then.
func (p *packer) file(it *item, h *tar.Header) error {
	h.Typeflag, h.Size = tar.TypeReg, it.mark.size
	f, err := p.s.reach(it)
	if err != nil {
		return internal(err)
	}
	if f == nil {
		delete(p.links, it.mark.inode())
		it.mark = mark{} // gone since the scan: the next Save finds it deleted, or changed
		return nil
	}
	defer f.Close()
	if err := PackAttrs(h, int(f.Fd())); err != nil {
		return internal(err)
	}
	if !p.now.uncertain(it) {
		return p.content(h, f, nil)
	}
	sum := sha256.New()
	err = p.content(h, f, sum)
	sumAttrs(sum, h)
	it.racy = true
	sum.Sum(it.sum[:0])
	return err
}

// content writes a header and h.Size bytes, to sum as well if it is not nil.
func (p *packer) content(h *tar.Header, f *os.File, sum io.Writer) error {
	if done, err := p.sparse.Pack(h, f, sum); done || err != nil {
		return err
	}
	if err := p.fits(h.Name, h.Size); err != nil {
		return err
	}
	if err := p.tw.WriteHeader(h); err != nil {
		return internal(err)
	}
	var w io.Writer = p.tw
	if sum != nil {
		w = io.MultiWriter(w, sum)
	}
	_, err := io.CopyN(w, io.MultiReader(f, zeros{}), h.Size)
	return err
}

// zeros reads as zero bytes without end.
type zeros struct{}

// Read fills p.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
