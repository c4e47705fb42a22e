package worktree

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// maxBelow bounds how many files are listed of a directory that stands where the result has a file.
const maxBelow = 100_000

// looker sees what the user has at the paths of a result, without ever following a symbolic link.
type looker struct {
	root  *os.Root
	fold  bool // the file system ignores case
	newID func() hash.Hash
	now   map[string]here
}

func newLooker(root *os.Root, format string) *looker {
	l := &looker{root: root, newID: sha1.New, now: map[string]here{}}
	if format == "sha256" {
		l.newID = sha256.New
	}
	return l
}

// see remembers what is at p, and at the parent that hides it.
func (l *looker) see(p string) error {
	if _, ok := l.now[p]; ok {
		return nil
	}
	h := here{}
	for i, c := range p {
		if c != '/' {
			continue
		}
		info, err := l.root.Lstat(p[:i])
		if errors.Is(err, fs.ErrNotExist) {
			l.now[p] = h
			return nil
		}
		if err != nil {
			return fmt.Errorf("looking at %q: %w", p[:i], err)
		}
		if !info.IsDir() {
			h.behind = p[:i]
			l.now[p] = h
			return l.see(p[:i])
		}
	}
	var err error
	if h, err = l.at(p); err != nil {
		return fmt.Errorf("looking at %q: %w", p, err)
	}
	l.now[p] = h
	return nil
}

// at returns what is at a path whose parents are directories.
func (l *looker) at(p string) (here, error) {
	var h here
	info, err := l.root.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	}
	if err != nil {
		return h, err
	}
	if l.fold && !l.exact(p) {
		h.below = []string{l.alias(p, info)} // there is room once that has left
		return h, nil
	}
	if info.IsDir() {
		h.dir = true
		h.below, err = l.files(p)
		return h, err
	}
	h.entry, h.perm, err = l.fingerprint(p)
	h.raw = h.oid
	return h, err
}

// fingerprint returns what the file at p is, byte for byte. Its mode for git is the file system's.
func (l *looker) fingerprint(p string) (entry, fs.FileMode, error) {
	info, err := l.root.Lstat(p)
	if err != nil {
		return entry{}, 0, err
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := l.root.Readlink(p)
		return entry{modeLink, l.blobID(int64(len(to)), strings.NewReader(to))}, 0, err
	case !info.Mode().IsRegular():
		return entry{mode: modeOther}, 0, nil
	}
	f, err := l.root.Open(p)
	if err != nil {
		return entry{}, 0, err
	}
	defer f.Close()
	e := entry{mode: modeFile, oid: l.blobID(info.Size(), f)}
	if info.Mode()&0o100 != 0 {
		e.mode = modeExec
	}
	return e, info.Mode().Perm(), nil
}

// blobID returns the name that git gives to content. One that is not of the stated size has a name that no blob has.
func (l *looker) blobID(size int64, r io.Reader) string {
	h := l.newID()
	fmt.Fprintf(h, "blob %d\x00", size)
	if n, err := io.Copy(h, r); err != nil || n != size {
		fmt.Fprintf(h, "\x00%d %v", n, err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// files lists what is below a directory and is no directory itself.
func (l *looker) files(dir string) ([]string, error) {
	var out []string
	err := fs.WalkDir(l.root.FS(), dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, p)
		}
		if err == nil && len(out) > maxBelow {
			return fs.SkipAll
		}
		return err
	})
	return out, err
}

func (l *looker) exact(p string) bool { return slices.Contains(l.names(path.Dir(p)), path.Base(p)) }

// alias returns the path, in another case, of what answers to p.
func (l *looker) alias(p string, info fs.FileInfo) string {
	for _, name := range l.names(path.Dir(p)) {
		q := path.Join(path.Dir(p), name)
		if other, err := l.root.Lstat(q); err == nil && strings.EqualFold(name, path.Base(p)) &&
			os.SameFile(info, other) {
			return q
		}
	}
	return p
}

func (l *looker) names(dir string) []string {
	list, err := fs.ReadDir(l.root.FS(), dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, d := range list {
		out = append(out, d.Name())
	}
	return out
}

// conversions are the settings that say how git turns a file into a blob and back by itself. They, and no
// program the user's configuration may name, have a say in what is written.
const conversions = `^core\.(autocrlf|eol|filemode|symlinks|ignorecase|precomposeunicode|checkroundtripencoding|attributesfile)$`

// converter is the environment of git commands that convert the user's files: the throwaway repository's objects and no
// configuration but conversions.
func (r *Result) converter(ctx context.Context) ([]string, error) {
	env := append(slices.Clone(r.env), "GIT_WORK_TREE="+r.tree.Root)
	set := map[string]string{"core.bare": "false", "core.safecrlf": "false"}
	out, err := r.tree.work(ctx, nil, "config", "-z", "--get-regexp", conversions)
	if _, failed := errors.AsType[*gitError](err); err != nil && !failed { // git fails when there are none
		return nil, err
	}
	for kv := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if k, v, ok := strings.Cut(kv, "\n"); ok {
			set[k] = v
		} else if k != "" {
			set[k] = "true" // a key without a value
		}
	}
	env = append(env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(set)))
	for i, k := range slices.Sorted(maps.Keys(set)) {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, k), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, set[k]))
	}
	return env, nil
}

// survey returns what the user has at every path that changes, as git would store it.
func (r *Result) survey(ctx context.Context, l *looker, env []string, changes []change) error {
	var files []string
	for _, c := range changes {
		if err := l.see(c.path); err != nil {
			return err
		}
	}
	for p, h := range l.now {
		if h.regular() {
			files = append(files, p)
		}
	}
	env = append(slices.Clone(env), "GIT_INDEX_FILE="+filepath.Join(r.dir, "survey"))
	if _, err := run(ctx, r.tree.Root, env, nil, "read-tree", r.Base); err != nil {
		return fmt.Errorf("reading what was sent: %w", err)
	}
	if _, err := run(ctx, r.tree.Root, env, zeros(files), "update-index", "--add", "--replace", "-z",
		"--stdin"); err != nil {
		return fmt.Errorf("reading your files: %w", err)
	}
	out, err := run(ctx, r.tree.Root, env, nil, "ls-files", "-s", "-z")
	if err != nil {
		return fmt.Errorf("reading your files: %w", err)
	}
	for line := range strings.SplitSeq(string(out), "\x00") {
		meta, p, _ := strings.Cut(line, "\t")
		f := strings.Fields(meta)
		if h, ok := l.now[p]; ok && len(f) == 3 && h.regular() {
			h.entry = entry{f[0], f[1]}
			l.now[p] = h
		}
	}
	if err := r.findLossy(ctx, l, env); err != nil {
		return err
	}
	return r.findSparse(ctx, l, changes)
}

// findLossy finds the files that git's conversion and its reverse would not leave as they are.
func (r *Result) findLossy(ctx context.Context, l *looker, env []string) error {
	var converted []string
	for p, h := range l.now {
		if h.regular() && h.raw != h.oid {
			converted = append(converted, p)
		}
	}
	if len(converted) == 0 {
		return nil
	}
	dir := filepath.Join(r.dir, "back")
	defer os.RemoveAll(dir)
	if err := checkoutIndex(ctx, r.tree.Root, env, dir, converted); err != nil {
		return err
	}
	back, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("opening converted files: %w", err)
	}
	defer back.Close()
	again := &looker{root: back, newID: l.newID}
	for _, p := range converted {
		e, _, err := again.fingerprint(p)
		if err != nil {
			return fmt.Errorf("reading a converted file: %w", err)
		}
		h := l.now[p]
		h.lossy = e.oid != h.raw
		l.now[p] = h
	}
	return nil
}

// findSparse finds the paths that the user has told git not to have in the work tree.
func (r *Result) findSparse(ctx context.Context, l *looker, changes []change) error {
	absent := func(c change) bool { return c.base != entry{} && l.now[c.path].entry == entry{} }
	if r.tree.Plain || !slices.ContainsFunc(changes, absent) {
		return nil
	}
	out, err := r.tree.work(ctx, nil, "ls-files", "-t", "-z")
	if err != nil {
		return fmt.Errorf("reading the index: %w", err)
	}
	for line := range strings.SplitSeq(string(out), "\x00") {
		p, ok := strings.CutPrefix(line, "S ")
		if h, known := l.now[p]; ok && known && h.entry == (entry{}) {
			h.sparse = true
			l.now[p] = h
		}
	}
	return nil
}

// maxSparse is how many paths one command names.
const maxSparse = 20

// SparseAdd returns the command after which the clashes that a sparse checkout causes are none, "" when it causes none.
func (r *Result) SparseAdd(ctx context.Context, clashes []Clash) string {
	cone, _ := r.tree.work(ctx, nil, "config", "--type=bool", "core.sparseCheckoutCone") // fails when it is not set
	var add []string
	for _, c := range clashes {
		what := path.Dir(c.Path)
		if strings.TrimSpace(string(cone)) != "true" {
			what = "/" + strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(c.Path)
		}
		if c.Why == whySparse && !slices.Contains(add, what) {
			add = append(add, what)
		}
	}
	git := "git -C " + quoted(r.tree.Root) + " sparse-checkout "
	switch {
	case len(add) == 0:
		return ""
	case len(add) > maxSparse:
		return git + "disable"
	}
	for i := range add {
		add[i] = quoted(add[i])
	}
	return git + "add " + strings.Join(add, " ")
}

// quoted is a word as a shell reads it.
func quoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-+,:@", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// checkoutIndex writes files of an index below dir the way git writes them into the work tree root.
func checkoutIndex(ctx context.Context, root string, env []string, dir string, files []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making a temporary directory: %w", err)
	}
	if _, err := run(ctx, root, env, zeros(files), "checkout-index", "-f", "-q", "-z", "--stdin",
		"--prefix="+filepath.ToSlash(dir)+"/"); err != nil {
		return fmt.Errorf("writing files: %w", err)
	}
	return nil
}

// zeros is a list of names as git reads it from its standard input.
func zeros(names []string) io.Reader {
	var b strings.Builder
	for _, n := range names {
		b.WriteString(n)
		b.WriteByte(0)
	}
	return strings.NewReader(b.String())
}

// changes lists the paths in which the result differs from what was sent.
func (r *Result) changes(ctx context.Context) ([]change, error) {
	out, err := r.git(ctx, "diff", "--raw", "--no-abbrev", "--no-renames", "-z", r.Base, r.Commit, "--")
	if err != nil {
		return nil, fmt.Errorf("listing changes: %w", err)
	}
	var list []change
	fields := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		f := strings.Fields(strings.TrimPrefix(fields[i], ":")) // oldmode newmode oldid newid status
		if len(f) != 5 {
			return nil, fmt.Errorf("listing changes: git printed %q", fields[i])
		}
		list = append(list, change{fields[i+1], rawEntry(f[0], f[2]), rawEntry(f[1], f[3])})
	}
	return list, nil
}

// Files returns the paths that the result changes.
func (r *Result) Files(ctx context.Context) ([]string, error) {
	list, err := r.changes(ctx)
	var out []string
	for _, c := range list {
		out = append(out, c.path)
	}
	return out, err
}

func rawEntry(mode, oid string) entry {
	if mode == "000000" {
		return entry{}
	}
	return entry{mode, oid}
}
