package worktree

import (
	"archive/tar"
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Pack writes a snapshot to w as a tar of a workspace: the files, and a repository of their own on branch "work"
// in which the uncommitted work is uncommitted. Names in the tar start with prefix, which is "" or ends in a
// slash. History over maxHistory, or that cannot be read, stays at home; a note says so.
func (t *Tree) Pack(ctx context.Context, s *Snapshot, prefix string, w io.Writer) error {
	dir, err := os.MkdirTemp("", "outboard-pack-")
	if err != nil {
		return fmt.Errorf("making a temporary checkout: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := t.checkout(ctx, s, dir); err != nil {
		return err
	}
	return writeTar(ctx, dir, prefix, w)
}

// checkout makes a repository in dir that holds the snapshot and nothing else of the user's.
func (t *Tree) checkout(ctx context.Context, s *Snapshot, dir string) error {
	env := isolated()
	format, err := t.objectFormat(ctx)
	if err != nil {
		return err
	}
	if _, err := run(ctx, dir, env, nil, "init", "-q", "--template=", "--object-format="+format, "-b", "work",
		"."); err != nil {
		return fmt.Errorf("making a temporary repository: %w", err)
	}
	for _, kv := range [][2]string{{"receive.denyCurrentBranch", "ignore"}, {"receive.shallowUpdate", "true"}} {
		if _, err := run(ctx, dir, env, nil, "config", kv[0], kv[1]); err != nil {
			return fmt.Errorf("configuring a temporary repository: %w", err)
		}
	}
	if err := t.checkHistory(ctx, s); err != nil {
		return err
	}
	if err := t.pushHistory(ctx, s, dir); err != nil {
		return err
	}
	// The files come from here and not from the repository in dir, which need not hold what is not committed.
	files := append(isolated(), "GIT_DIR="+t.Store, "GIT_WORK_TREE="+dir,
		"GIT_INDEX_FILE="+filepath.Join(dir, ".git", "files"))
	if _, err := run(ctx, dir, files, nil, "read-tree", "-u", "--reset", s.Base); err != nil {
		return fmt.Errorf("checking the work out: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, ".git", "files")); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("checking the work out: %w", err)
	}
	version, extensions := "0", ""
	if format != "sha1" { // git cannot read it otherwise
		version, extensions = "1", "[extensions]\n\tobjectFormat = "+format+"\n"
	}
	config := "[core]\n\trepositoryformatversion = " + version + "\n\tfilemode = true\n\tbare = false\n" + extensions +
		"[user]\n\tname = Outboard agent\n\temail = agent@outboard.invalid\n"
	return os.WriteFile(filepath.Join(dir, ".git", "config"), []byte(config), 0o644)
}

// checkHistory replaces Start by a commit without parents when the history is too large to send, or is not all there.
func (t *Tree) checkHistory(ctx context.Context, s *Snapshot) error {
	if s.Start == "" {
		return nil
	}
	size, err := t.historySize(ctx, s.Start)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil && size <= maxHistory {
		return nil
	}
	tree, terr := t.oid(ctx, nil, "rev-parse", "--verify", s.Start+"^{tree}")
	if terr != nil {
		return terr
	}
	if s.Start, terr = t.commit(ctx, nil, tree, "", "Work sent to the sandbox, without its history"); terr != nil {
		return terr
	}
	note := fmt.Sprintf("the history (%d MB) is not sent, only the files", size>>20)
	if err != nil {
		note = fmt.Sprintf("the history is not sent, only the files: git cannot read all of it here (%v)", err)
	}
	s.Notes = append(s.Notes, note)
	s.HistoryLeft = true
	return nil
}

// pushHistory copies the commits and what is staged.
func (t *Tree) pushHistory(ctx context.Context, s *Snapshot, dir string) error {
	if s.Start == "" {
		return nil
	}
	staged, err := t.commit(ctx, nil, s.Index, s.Start, "Staged")
	if err != nil {
		return err
	}
	push := func(commit, ref string) error {
		if _, err := t.bare(ctx, nil, "push", "-q", "--no-verify", "--no-signed", dir, commit+":"+ref); err != nil {
			return fmt.Errorf("copying the work: %w", err)
		}
		return nil
	}
	const index = "refs/outboard/index"
	steps := [][]string{{"read-tree", staged}}
	err = push(s.Start, "refs/heads/work")
	if err == nil && staged != s.Start {
		steps = append(steps, []string{"update-ref", "-d", index})
		err = push(staged, index)
	}
	if err != nil {
		return err
	}
	for _, args := range steps {
		if _, err := run(ctx, dir, isolated(), nil, args...); err != nil {
			return fmt.Errorf("copying what is staged: %w", err)
		}
	}
	return nil
}

// packedSize is about how many bytes the files of a snapshot take when they are compressed.
func (t *Tree) packedSize(ctx context.Context, s *Snapshot) (int64, error) {
	var ids strings.Builder
	for _, f := range s.Sizes {
		ids.WriteString(f.oid + "\n")
	}
	env := []string{"GIT_DIR=" + t.Store}
	out, err := run(ctx, t.Root, env, strings.NewReader(ids.String()), "cat-file", "--batch-check=%(objectsize:disk)")
	if err != nil {
		return 0, fmt.Errorf("measuring the work: %w", err)
	}
	var total int64
	for line := range strings.Lines(string(out)) {
		n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("measuring the work: git printed %q", line)
		}
		total += n
	}
	return total, nil
}

// Fits refuses a snapshot that takes more than limit bytes when it is compressed, without packing it.
func (t *Tree) Fits(ctx context.Context, s *Snapshot, limit int64) error {
	var plain int64
	for _, f := range s.Sizes {
		plain += f.Bytes
	}
	if plain > MaxUnpacked {
		return s.TooLarge(plain, MaxUnpacked, "")
	}
	if plain <= limit {
		return nil
	}
	packed, err := t.packedSize(ctx, s)
	if err != nil || packed <= limit {
		return err
	}
	return s.TooLarge(packed, limit, " compressed")
}

// maxNamed is how many paths an error names.
const maxNamed = 5

// TooLarge is the error for a snapshot that has more bytes than it may, with the paths that take most.
func (s *Snapshot) TooLarge(bytes, limit int64, how string) error {
	var named, top int64
	dirs := map[string]int64{}
	for i, f := range s.Sizes {
		dir, _, below := strings.Cut(f.Path, "/")
		if below {
			dir += "/"
		}
		dirs[dir] += f.Bytes
		if named += f.Bytes; i < maxNamed {
			top += f.Bytes
		}
	}
	list := s.Sizes
	if top < named/2 { // many files that are small: their directories say more
		list = nil
		for dir, n := range dirs {
			list = append(list, Sized{Path: dir, Bytes: n})
		}
		slices.SortFunc(list,
			func(a, b Sized) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Path, b.Path)) })
	}
	var paths []string
	for _, f := range list[:min(len(list), maxNamed)] {
		paths = append(paths, fmt.Sprintf("%s (%d MB)", f.Path, f.Bytes>>20))
	}
	return outboard.Errorf(outboard.TooLarge, "the work is too large to send: %d MB%s, and at most %d MB can be "+
		"sent. The largest: %s",
		bytes>>20, how, limit>>20, strings.Join(paths, ", ")).
		WithHint("let .gitignore name what the agent does not need, or leave uncommitted files out with --clean; " +
			"large files can come " +
			"with a template (outboard template build), or with outboard box cp into a box")
}

// objectFormat returns how the repository names its objects: sha1 or sha256. Only repositories that agree in it
// can exchange any.
func (t *Tree) objectFormat(ctx context.Context) (string, error) {
	out, err := t.bare(ctx, nil, "rev-parse", "--show-object-format")
	if err != nil {
		return "", fmt.Errorf("opening %s: %w", t.GitDir, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// isolated is the environment of a git command that must not read the user's configuration.
func isolated() []string {
	return []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_SYSTEM=" + os.DevNull,
		"GIT_ATTR_NOSYSTEM=1"}
}

// writeTar writes everything below dir. Only files, directories and links exist there: git made it.
func writeTar(ctx context.Context, dir, prefix string, w io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("opening the checkout: %w", err)
	}
	defer root.Close()
	tw := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if name == "." && prefix == "" {
			return nil
		}
		return addEntry(tw, root, name, prefix, d)
	})
	if err != nil {
		return fmt.Errorf("packing the work: %w", err)
	}
	return tw.Close()
}

func addEntry(tw *tar.Writer, root *os.Root, name, prefix string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = root.Readlink(name); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, filepath.ToSlash(link))
	if err != nil {
		return err
	}
	h.Name = path.Join(prefix, name)
	if d.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname, h.Format = 0, 0, "", "", tar.FormatPAX
	if err := tw.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(tw, f, info.Size())
	return err
}

// The limits of a workspace that comes back: against a sandbox that fills the user's disk.
const (
	maxEntries   = 1_000_000
	MaxUnpacked  = 8 << 30 // also of what is sent
	maxLinkBytes = 4096
)

// Unpack writes the entries of a workspace tar whose names start with prefix below dir, for as long as want
// (nil: all) accepts the rest of the name. The tar is hostile: names may not leave dir, links are made but never
// followed, .git entries and devices are left out, and sizes are bounded. Existing files are refused unless
// overwrite.
func Unpack(ctx context.Context, r io.Reader, prefix, dir string, want func(name string) bool,
	overwrite bool) (Unpacked, error) {
	return unpack(ctx, r, unpacker{prefix: prefix, overwrite: overwrite, want: want}, dir)
}

func unpack(ctx context.Context, r io.Reader, u unpacker, dir string) (Unpacked, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Unpacked{}, fmt.Errorf("opening %s: %w", dir, err)
	}
	defer root.Close()
	u.root = root
	tr := tar.NewReader(r)
	for entries := 0; ; entries++ {
		if ctx.Err() != nil {
			return u.Unpacked, context.Cause(ctx)
		}
		h, err := tr.Next()
		if err == io.EOF {
			return u.Unpacked, nil
		}
		if err != nil {
			return u.Unpacked, fmt.Errorf("reading the workspace: %w", err)
		}
		if entries >= maxEntries {
			return u.Unpacked, outboard.Errorf(outboard.TooLarge, "the workspace has more than %d files", maxEntries)
		}
		name, refused, ok := entryName(h.Name, u.prefix)
		if u.repo != nil && refused == ".git" {
			u.repo.take(h, strings.TrimPrefix(path.Clean("/" + h.Name)[1:], u.prefix+".git/"), tr)
		}
		if refused != "" && refused != ".git" && (u.want == nil || u.want(refused)) {
			u.leave(refused, "no result may hold a git repository")
		}
		if !ok || u.want != nil && !u.want(name) {
			continue
		}
		if err := u.entry(h, name, tr); err != nil {
			return u.Unpacked, fmt.Errorf("unpacking %q: %w", name, err)
		}
	}
}

// Unpacked is what became of a workspace tar.
type Unpacked struct {
	Files int
	Left  []string // what was left out and why, in words for the user; the workspace's own .git is not counted
}

// maxLeft bounds how much of what is left out is listed.
const maxLeft = 20

// leave notes once that something is left out.
func (u *unpacker) leave(name, why string) {
	line := name + ": " + why
	switch {
	case slices.Contains(u.Left, line) || len(u.Left) > maxLeft:
	case len(u.Left) == maxLeft:
		u.Left = append(u.Left, "and more")
	default:
		u.Left = append(u.Left, line)
	}
}

// notStage keeps out of a result what an apply would take for its own.
func notStage(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return !strings.EqualFold(first, stageName)
}

// entryName returns the name below prefix, or false for what is not to be unpacked. Of a name that is part of a
// git repository, refused is that repository.
func entryName(name, prefix string) (rest, refused string, ok bool) {
	name = path.Clean("/" + name)[1:]
	rest, ok = strings.CutPrefix(name+"/", strings.TrimSuffix(prefix, "/")+"/")
	if prefix == "" {
		rest, ok = name, true
	}
	rest = strings.TrimSuffix(rest, "/")
	if !ok || rest == "" || !filepath.IsLocal(filepath.FromSlash(rest)) {
		return "", "", false
	}
	at := 0
	for part := range strings.SplitSeq(rest, "/") {
		at += len(part) + 1
		if gitName(part) {
			return "", rest[:at-1], false
		}
	}
	return rest, "", true
}

// gitName reports whether some file system would take part for ".git": case folding, NTFS short names, streams,
// trailing dots and spaces, and the characters HFS+ ignores.
func gitName(part string) bool {
	fold := strings.Map(func(r rune) rune {
		if r >= 0x200c && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x206a && r <= 0x206f || r == 0xfeff {
			return -1
		}
		return r
	}, strings.ToLower(part))
	fold, _, _ = strings.Cut(fold, ":")
	fold = strings.TrimRight(fold, ". ")
	return fold == ".git" || fold == "git~1"
}

type unpacker struct {
	root      *os.Root
	prefix    string
	overwrite bool
	want      func(name string) bool // nil: all
	repo      *foreign               // takes the repository of the workspace itself; nil: nobody does
	bytes     int64
	Unpacked
}

func (u *unpacker) entry(h *tar.Header, name string, r io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return u.root.MkdirAll(name, 0o755)
	case tar.TypeReg, tar.TypeSymlink, tar.TypeLink:
	default:
		u.leave(name, "devices, pipes and sockets are not brought home")
		return nil
	}
	if dir := path.Dir(name); dir != "." {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if u.overwrite {
		if err := u.root.Remove(name); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	if to, ok := u.linkedLink(h); ok {
		h.Typeflag, h.Linkname = tar.TypeSymlink, to
	}
	if h.Typeflag == tar.TypeSymlink {
		u.Files++
		if h.Linkname == "" || len(h.Linkname) > maxLinkBytes {
			return outboard.Errorf(outboard.Invalid, "a link without a usable target")
		}
		return u.root.Symlink(h.Linkname, name)
	}
	size, mode := h.Size, fs.FileMode(h.Mode)
	if h.Typeflag == tar.TypeLink {
		from, info, err := u.linked(h.Linkname)
		if err != nil {
			return err
		}
		if from == nil {
			u.leave(name, "a hard link to what was left out")
			return nil
		}
		defer from.Close()
		r, size, mode = from, info.Size(), info.Mode()
	}
	return u.file(name, mode, size, r)
}

// linkedLink returns where the symbolic link leads that a hard link is another name of.
func (u *unpacker) linkedLink(h *tar.Header) (to string, ok bool) {
	name, _, ok := entryName(h.Linkname, u.prefix)
	if h.Typeflag != tar.TypeLink || !ok {
		return "", false
	}
	to, err := u.root.Readlink(name)
	return to, err == nil
}

// linked opens the file that a hard link means: one this tar has made before. The link becomes a copy, so that
// no later change of one file reaches another. It returns nil for a target that was left out.
func (u *unpacker) linked(target string) (*os.File, fs.FileInfo, error) {
	name, _, ok := entryName(target, u.prefix)
	if !ok {
		return nil, nil, nil
	}
	info, err := u.root.Lstat(name)
	if os.IsNotExist(err) || err == nil && !info.Mode().IsRegular() {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	f, err := u.root.Open(name)
	return f, info, err
}

func (u *unpacker) file(name string, mode fs.FileMode, size int64, r io.Reader) error {
	u.Files++
	if u.bytes += size; u.bytes > MaxUnpacked {
		return outboard.Errorf(outboard.TooLarge, "the workspace is larger than %d GB", MaxUnpacked>>30)
	}
	if mode &= 0o111; mode != 0 {
		mode = 0o111
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644|mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
