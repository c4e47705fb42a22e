package fleet

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
)

// copying does a COPY step. The archive comes from a client and is read twice: once to see all of it, when
// everything that could be a trick is refused, and once to write it. It is written through the guest, with the
// rights of the user it is for: whatever the archive says, nothing outside of the sandbox is touched.
type copying struct {
	x    *stepRun
	step outboard.TemplateStep
	user string
	dir  string // relative targets begin here

	base    string // of names in the archive that are taken
	single  bool   // one file is taken, and becomes the target or lies in it
	entries map[string]copied
}

// copied is what is taken of the archive, by its name there.
type copied struct {
	kind byte // tar.TypeReg, TypeDir, TypeSymlink or TypeLink
	mode int64
	link string
}

func (c *copying) copy(ctx context.Context, m *machine) error {
	m.defaults = defaults{user: c.user, dir: c.dir}
	if err := c.read(ctx, func(tr *tar.Reader) error { return c.survey(ctx, tr) }); err != nil {
		return err
	}
	target, err := c.target(ctx, m)
	if err != nil {
		return err
	}
	if !c.single {
		if err := c.mkdir(ctx, m, target); err != nil {
			return err
		}
	}
	place := func(name string) string {
		if c.single {
			return target
		}
		return path.Join(target, strings.TrimPrefix(strings.TrimPrefix(name, c.base), "/"))
	}
	for _, name := range slices.Sorted(maps.Keys(c.entries)) {
		if c.entries[name].kind == tar.TypeDir {
			if err := c.mkdir(ctx, m, place(name)); err != nil {
				return err
			}
		}
	}
	err = c.read(ctx, func(tr *tar.Reader) error { return c.write(ctx, m, tr, place) })
	if err != nil {
		return err
	}
	return c.finish(ctx, m, place)
}

// read opens the archive.
func (c *copying) read(ctx context.Context, do func(*tar.Reader) error) error {
	body, err := c.x.f.cfg.Blob.Open(ctx, c.step.Files)
	if err != nil {
		return fmt.Errorf("opening what was uploaded: %w", err)
	}
	defer body.Close()
	r := bufio.NewReader(body)
	if magic, _ := r.Peek(2); string(magic) == "\x1f\x8b" {
		zr, err := gzip.NewReader(r)
		if err != nil {
			return badArchive("it is not what gzip writes: %w", err)
		}
		return do(tar.NewReader(io.LimitReader(zr, maxCopyBytes+1)))
	}
	return do(tar.NewReader(io.LimitReader(r, maxCopyBytes+1)))
}

func badArchive(format string, args ...any) error {
	return outboard.Errorf(outboard.Invalid, "the archive of files is refused: "+format, args...)
}

// survey notes what is taken of the archive, and refuses what has no business in one.
func (c *copying) survey(ctx context.Context, tr *tar.Reader) error {
	source := strings.TrimPrefix(path.Clean("/"+c.step.Source), "/")
	glob := strings.ContainsAny(source, "*?[")
	c.base = source
	if glob {
		c.base = path.Dir(source[:strings.IndexAny(source, "*?[")] + "x")
	}
	if c.base == "." {
		c.base = ""
	}
	c.entries = map[string]copied{}
	seen := map[string]byte{}
	for n, size, names := 0, int64(0), 0; ; n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return badArchive("it cannot be read: %w", err)
		}
		if names += len(h.Name) + len(h.Linkname); names > maxCopyNames {
			return outboard.Errorf(outboard.TooLarge, "the archive of files is refused: its names have more than %d "+
				"bytes together", maxCopyNames)
		}
		if size += h.Size; n >= maxCopyEntries || size > maxCopyBytes {
			return outboard.Errorf(outboard.TooLarge, "the archive of files is refused: it has more than %d files "+
				"or %d bytes", maxCopyEntries, int64(maxCopyBytes))
		}
		name, err := entryName(h, seen)
		if err != nil {
			return err
		}
		if name == "" || name != c.base && c.base != "" && !strings.HasPrefix(name, c.base+"/") {
			continue
		}
		// a part of a header of up to 1 MiB, which would stay
		c.entries[name] = copied{h.Typeflag, h.Mode & 0o777, strings.Clone(h.Linkname)}
	}
	if len(c.entries) == 0 {
		return outboard.Errorf(outboard.Invalid, "the uploaded files have nothing called %q", c.step.Source)
	}
	e, whole := c.entries[source]
	c.single = whole && !glob && e.kind != tar.TypeDir
	return nil
}

// entryName returns the name of an entry, "" for the top. seen are those before it.
func entryName(h *tar.Header, seen map[string]byte) (string, error) {
	shown := h.Name[:min(len(h.Name), 200)]
	if path.IsAbs(h.Name) || strings.ContainsRune(h.Name, 0) || slices.Contains(strings.Split(h.Name, "/"), "..") ||
		len(h.Name) > maxCopyName {
		return "", badArchive("the name %q leaves it", shown)
	}
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink:
	case tar.TypeLink:
		h.Linkname = strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
		if seen[h.Linkname] != tar.TypeReg {
			return "", badArchive("%q is another name of %q, which is no file before it", shown, h.Linkname)
		}
	default:
		return "", badArchive("%q is neither a file nor a directory nor a link", shown)
	}
	if kind, twice := seen[name]; twice && (kind != tar.TypeDir || h.Typeflag != tar.TypeDir) {
		return "", badArchive("%q is there twice", shown)
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if kind, there := seen[dir]; there && kind != tar.TypeDir {
			return "", badArchive("%q lies below what is no directory", shown)
		}
	}
	if name != "" {
		seen[name] = h.Typeflag
	}
	return name, nil
}

// target is where the files go.
func (c *copying) target(ctx context.Context, m *machine) (string, error) {
	to := c.step.Target
	if to == "" {
		to = "."
	}
	into := strings.HasSuffix(to, "/") || to == "." || strings.HasSuffix(to, "/.")
	e, err := m.Stat(ctx, FileRef{Path: Name(to)})
	if err != nil && !is(err, guest.NotFound) {
		return "", plain(err)
	}
	var abs string
	switch {
	case path.IsAbs(to):
		abs = path.Clean(to)
	case err == nil:
		abs = string(e.Path)
	case c.dir == "" || strings.HasPrefix(to, "~"): // below a home that only the guest knows
		made, err := m.Mkdir(ctx, FileRef{Path: Name(path.Dir(strings.TrimSuffix(to, "/")))})
		if is(err, guest.Conflict) {
			made, err = m.Stat(ctx, FileRef{Path: Name(path.Dir(strings.TrimSuffix(to, "/")))})
		}
		if err != nil {
			return "", plain(err)
		}
		abs = path.Join(string(made.Path), path.Base(to))
	default:
		abs = path.Join(c.dir, to)
	}
	if c.single && (into || err == nil && e.Kind == guest.KindDirectory) {
		abs = path.Join(abs, path.Base(c.base))
	}
	return abs, nil
}

func (c *copying) mkdir(ctx context.Context, m *machine, dir string) error {
	_, err := m.Mkdir(ctx, FileRef{Path: Name(dir)})
	if is(err, guest.Conflict) || dir == "/" {
		return nil
	}
	return plain(err)
}

// write writes the regular files.
func (c *copying) write(ctx context.Context, m *machine, tr *tar.Reader, place func(string) string) error {
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return badArchive("it cannot be read: %w", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if _, taken := c.entries[name]; !taken || h.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := m.WriteFile(ctx, FileRef{Path: Name(place(name))}, nil, tr); err != nil {
			return fmt.Errorf("writing %q: %w", name, plain(err))
		}
	}
}

// finish makes links and sets permissions, with programs of the sandbox: the guest has no calls for them.
func (c *copying) finish(ctx context.Context, m *machine, place func(string) string) error {
	byMode := map[int64][]string{}
	for _, name := range slices.Sorted(maps.Keys(c.entries)) {
		e, to := c.entries[name], place(name)
		argv := []string{"ln", "-sfn", "--", e.link, to}
		switch e.kind {
		case tar.TypeLink:
			if _, taken := c.entries[e.link]; !taken || c.single {
				return badArchive("%q is another name of %q, which is not copied", name, e.link)
			}
			argv = []string{"ln", "-f", "--", place(e.link), to}
		case tar.TypeSymlink:
		default:
			if mode, err := c.mode(e); err != nil {
				return err
			} else if mode != map[byte]int64{tar.TypeReg: 0o644, tar.TypeDir: 0o755}[e.kind] {
				byMode[mode] = append(byMode[mode], to)
			}
			continue
		}
		if err := c.mkdir(ctx, m, path.Dir(to)); err != nil { // an archive need not name it
			return err
		}
		if err := c.program(ctx, m, c.user, argv); err != nil {
			return err
		}
	}
	for mode, names := range byMode {
		for batch := range slices.Chunk(names, 200) {
			if err := c.program(ctx, m, "root", append([]string{"chmod", strconv.FormatInt(mode, 8), "--"},
				batch...)); err != nil {
				return err
			}
		}
	}
	return nil
}

// mode is what a file or directory is to have.
func (c *copying) mode(e copied) (int64, error) {
	if c.step.Mode == "" {
		return e.mode, nil
	}
	mode, err := strconv.ParseInt(c.step.Mode, 8, 32)
	if err != nil || mode < 0 || mode > 0o777 {
		return 0, outboard.Errorf(outboard.Invalid, "%q is no mode of a file: write it as 0644", c.step.Mode)
	}
	if e.kind == tar.TypeDir {
		mode |= mode & 0o444 >> 2 // who may read it may look into it
	}
	return mode, nil
}

func (c *copying) program(ctx context.Context, m *machine, user string, argv []string) error {
	code, said, err := command(ctx, m, ProcessStart{Argv: argv, User: user, Cwd: "/"})
	if err != nil {
		return plain(err)
	}
	if code != 0 {
		return fmt.Errorf("%s ended with status %d%s", argv[0], code, words(" and said: ", said))
	}
	return nil
}
