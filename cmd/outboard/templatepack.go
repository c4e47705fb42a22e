package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
)

// packer makes archives of parts of a directory, for COPY. The same files make the same bytes, whenever and
// whoever: the server does a step again only when they change.
type packer struct {
	root   *os.Root // nothing outside of it is read, whatever links say
	dir    string
	ignore []ignoring
}

// openContext opens the directory that files are copied from.
func openContext(dir string) (*packer, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, outboard.Errorf(outboard.NotFound, "opening the directory to copy from: %w", err)
	}
	p := &packer{root: root, dir: dir}
	f, err := root.Open(".dockerignore")
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		defer f.Close()
		var text string
		if text, err = readBounded(f, ".dockerignore"); err == nil {
			p.ignore = parseIgnore(text)
			return p, nil
		}
	}
	root.Close()
	return nil, outboard.Errorf(outboard.Invalid, "reading .dockerignore: %w", err)
}

func (p *packer) close() { p.root.Close() }

// upload stores an archive of what source names.
func (p *packer) upload(ctx context.Context, c *client.Client, source string) (client.File, error) {
	names, err := p.names(source)
	if err != nil {
		return client.File{}, err
	}
	var file client.File
	err = withSpool(func(f *os.File) error {
		if err := p.pack(f, names); err != nil {
			return err
		}
		file, err = sendSpool(ctx, c, "template.tar.gz", "what COPY "+source+" takes", f, nil)
		return err
	})
	return file, err
}

// names lists what source takes, a directory before what is in it.
func (p *packer) names(source string) ([]string, error) {
	top := source // the walk begins above the first pattern
	if i := strings.IndexAny(source, "*?["); i >= 0 {
		top = path.Dir(source[:i] + "x")
	}
	var names []string
	err := fs.WalkDir(p.root.FS(), top, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && name == top && errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return fmt.Errorf("reading what to copy: %w", err)
		case name != "." && p.ignored(name):
			if d.IsDir() && !p.excepts() {
				return fs.SkipDir
			}
		case taken(source, name):
			names = append(names, name)
		}
		return nil
	})
	if err == nil && len(names) == 0 {
		err = outboard.Errorf(outboard.NotFound, "COPY %s: there is nothing called that in %s, or .dockerignore "+
			"leaves it out", source, p.dir)
	}
	return names, err
}

// taken reports whether a name is what source names, or lies below that.
func taken(source, name string) bool {
	if source == "." {
		return name != "."
	}
	want, have := strings.Split(source, "/"), strings.Split(name, "/")
	if len(have) < len(want) {
		return false
	}
	ok, err := path.Match(source, strings.Join(have[:len(want)], "/"))
	return ok && err == nil || strings.HasPrefix(name+"/", source+"/")
}

func (p *packer) pack(w io.Writer, names []string) error {
	zw, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(zw)
	for _, name := range names {
		if err := p.entry(tw, name); err != nil {
			return err
		}
	}
	return errors.Join(tw.Close(), zw.Close())
}

func (p *packer) entry(tw *tar.Writer, name string) error {
	fi, err := p.root.Lstat(name)
	if err != nil {
		return fmt.Errorf("reading what to copy: %w", err)
	}
	h := &tar.Header{Name: name, Mode: int64(fi.Mode().Perm())} // no owner and no time
	switch {
	case fi.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		return tw.WriteHeader(h)
	case fi.Mode().Type() == fs.ModeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = p.root.Readlink(name); err != nil {
			return fmt.Errorf("reading a link: %w", err)
		}
		return tw.WriteHeader(h)
	case !fi.Mode().IsRegular():
		return outboard.Errorf(outboard.Invalid, "%s is neither a file nor a directory nor a link; .dockerignore "+
			"may leave it out", name)
	}
	f, err := p.root.Open(name)
	if err != nil {
		return fmt.Errorf("reading what to copy: %w", err)
	}
	defer f.Close()
	h.Size, h.Typeflag = fi.Size(), tar.TypeReg
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if n, err := io.Copy(tw, io.LimitReader(f, h.Size)); err != nil || n < h.Size {
		return outboard.Errorf(outboard.Conflict, "%s changed while it was read: %v", name, err)
	}
	return nil
}

// ignoring is a line of .dockerignore.
type ignoring struct {
	match  *regexp.Regexp
	except bool // what matches is not ignored after all
}

func parseIgnore(text string) []ignoring {
	var out []ignoring
	for line := range strings.Lines(strings.ToValidUTF8(text, "?")) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, except := strings.CutPrefix(line, "!")
		pattern = strings.TrimPrefix(path.Clean("/"+strings.TrimSpace(pattern)), "/")
		text := regexp.QuoteMeta(pattern)
		for _, r := range [][2]string{{`\*\*/`, `(.*/)?`}, {`\*\*`, `.*`}, {`\*`, `[^/]*`}, {`\?`, `[^/]`}} {
			text = strings.ReplaceAll(text, r[0], r[1])
		}
		out = append(out, ignoring{regexp.MustCompile(`^` + text + `(/.*)?$`), except})
	}
	return out
}

// ignored reports what .dockerignore says: the last line that matches decides.
func (p *packer) ignored(name string) bool {
	ignored := false
	for _, i := range p.ignore {
		if i.match.MatchString(name) {
			ignored = !i.except
		}
	}
	return ignored
}

// excepts reports whether something in a directory that is ignored may be taken.
func (p *packer) excepts() bool {
	for _, i := range p.ignore {
		if i.except {
			return true
		}
	}
	return false
}
