package worktree

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/outboard-dev/outboard"
)

// The limits of commits that come home: against a sandbox that fills the user's disk or memory, or keeps git
// busy for ever.
const (
	maxCommits    = 1000
	maxRepository = 2 << 30 // bytes of objects
	maxRefs       = 8 << 20 // bytes of names and ids
	maxMessage    = 64 << 10
	maxIdent      = 200             // bytes of a name or an address
	maxAllocation = "1g"            // of git at a time, against objects that unpack to much more than they are
	commitTime    = 5 * time.Minute // for all of git's work on foreign objects
)

// foreign is what is taken of the repository in a workspace: its objects, and the text that says at which of
// them its HEAD is. Its configuration, hooks, attributes, alternates, indexes and other refs are not taken.
type foreign struct {
	root  *os.Root
	refs  map[string]string // HEAD, packed-refs and refs/heads/*
	text  int
	bytes int64
	err   error // why it is not whole
}

var (
	foreignObject = regexp.MustCompile(`^objects/([0-9a-f]{2}/[0-9a-f]{38,62}|pack/pack-[0-9a-f]{40,64}\.pack)$`)
	objectID      = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
)

// newForeign collects below dir.
func newForeign(dir string) (*foreign, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making a temporary directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("opening a temporary directory: %w", err)
	}
	return &foreign{root: root, refs: map[string]string{}}, nil
}

// take reads one entry of the repository, if it is of use. What cannot be taken costs the commits, never the files.
func (f *foreign) take(h *tar.Header, name string, r io.Reader) {
	ref := name == "HEAD" || name == "packed-refs" || strings.HasPrefix(name, "refs/heads/")
	switch {
	case f.err != nil || h.Typeflag == tar.TypeDir || !ref && !foreignObject.MatchString(name):
	case h.Typeflag != tar.TypeReg:
		f.err = outboard.Errorf(outboard.Invalid, ".git/%s is not a plain file", name)
	case ref && h.Size > int64(maxRefs-f.text), f.bytes+h.Size > maxRepository:
		f.err = outboard.Errorf(outboard.TooLarge, "its repository is larger than %d MB", maxRepository>>20)
	case ref:
		var b []byte
		b, f.err = io.ReadAll(r)
		f.text += len(name) + len(b)
		f.refs[name] = string(b)
	default:
		f.bytes += h.Size
		f.err = f.write(name, r)
	}
}

func (f *foreign) write(name string, r io.Reader) error {
	if err := f.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := f.root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, r); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// tip returns the commit that HEAD is at: "" before the first one. It is text until git has found the commit.
func (f *foreign) tip() (string, error) {
	head, ok := f.refs["HEAD"]
	switch {
	case f.err != nil:
		return "", f.err
	case !ok:
		return "", outboard.Errorf(outboard.Invalid, "the workspace has no git repository any more")
	}
	id := strings.TrimSpace(head)
	if name, ok := strings.CutPrefix(id, "ref: refs/heads/"); ok {
		name = "refs/heads/" + name
		id = strings.TrimSpace(f.refs[name])
		for line := range strings.Lines(f.refs["packed-refs"]) {
			if oid, ref, _ := strings.Cut(strings.TrimSpace(line), " "); id == "" && ref == name {
				id = oid
			}
		}
		if id == "" {
			return "", nil
		}
	}
	if !objectID.MatchString(id) {
		return "", outboard.Errorf(outboard.Invalid, "its HEAD names no commit")
	}
	return id, nil
}

// ident is who made a commit, and when.
type ident struct {
	name, mail string
	at         int64 // seconds since 1970
	zone       string
}

func (i ident) String() string { return fmt.Sprintf("%s <%s> %d %s", i.name, i.mail, i.at, i.zone) }

// foreignCommit is a commit of the session's, as it is: text is not cleaned yet.
type foreignCommit struct {
	id, tree          string
	parents           int
	author, committer ident
	message           string
}

// ownCommits returns the commits that the session made since the work was sent, oldest first. Their objects are
// in the throwaway repository then, and git has checked each of them. Of a merge, only the first parent is
// followed.
func (r *Result) ownCommits(ctx context.Context) ([]foreignCommit, error) {
	if r.theirs == nil {
		return nil, nil
	}
	tip, err := r.theirs.tip()
	if err != nil || tip == "" || tip == r.sent.Start {
		return nil, err
	}
	if err := r.admit(ctx, tip); err != nil {
		return nil, err
	}
	args := []string{"rev-list", "--first-parent", "--reverse", fmt.Sprintf("--max-count=%d", maxCommits+1), tip}
	if r.sent.Start != "" {
		args = append(args, "^"+r.sent.Start)
	}
	out, err := r.git(ctx, append(args, "--")...)
	if err != nil {
		return nil, err
	}
	ids := strings.Fields(string(out))
	if len(ids) > maxCommits {
		return nil, outboard.Errorf(outboard.TooLarge, "there are more than %d", maxCommits)
	}
	var list []foreignCommit
	for _, id := range ids {
		text, err := r.git(ctx, "cat-file", "commit", id)
		if err != nil {
			return nil, err
		}
		c, ok := parseCommit(id, string(text))
		if !ok {
			return nil, outboard.Errorf(outboard.Invalid, "the commit %s is not in order", id)
		}
		list = append(list, c)
	}
	return list, nil
}

// openForeign makes a repository of ours around foreign objects, and returns what runs git there.
func (t *Tree) openForeign(ctx context.Context,
	dir string) (func(stdin io.Reader, args ...string) (string, error), error) {
	env := append(isolated(), "GIT_DIR="+dir, "GIT_ALLOC_LIMIT="+maxAllocation, "GIT_NO_REPLACE_OBJECTS=1")
	git := func(stdin io.Reader, args ...string) (string, error) {
		out, err := run(ctx, dir, env, stdin, args...)
		return strings.TrimSpace(string(out)), err
	}
	format, err := t.objectFormat(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := git(nil, "init", "-q", "--bare", "--template=", "--object-format="+format, dir); err != nil {
		return nil, err
	}
	if err := copyShallow(dir, t.Store); err != nil {
		return nil, err
	}
	packs, err := filepath.Glob(filepath.Join(dir, "objects", "pack", "*.pack"))
	for _, p := range packs {
		if _, err := git(nil, "index-pack", p); err != nil {
			return nil, err
		}
	}
	return git, err
}

// admit copies what the session's commits need into the throwaway repository. The foreign objects lie in a
// repository that is ours but for them. From there they come as a pack, of which git computes every name anew:
// an object with a forged name, or one that breaks a rule of git fsck, ends it.
func (r *Result) admit(ctx context.Context, tip string) error {
	dir := filepath.Join(r.dir, "theirs")
	git, err := r.tree.openForeign(ctx, dir)
	if err != nil {
		return err
	}
	want := tip + "\n"
	if start := r.sent.Start; start != "" {
		if _, err := git(nil, "cat-file", "-e", start+"^{commit}"); err != nil {
			return outboard.Errorf(outboard.Invalid, "its repository does not hold the commit that was sent any more")
		}
		want += "^" + start + "\n"
	}
	name, err := git(strings.NewReader(want), "pack-objects", "-q", "--revs", "--window=0", filepath.Join(dir, "new"))
	if err != nil {
		return err
	}
	pack, err := os.Open(filepath.Join(dir, "new-"+name+".pack"))
	if err != nil {
		return err
	}
	defer pack.Close()
	_, err = run(ctx, r.dir, append(slices.Clone(r.env), "GIT_ALLOC_LIMIT="+maxAllocation), pack, "index-pack",
		"--stdin", "--strict")
	return err
}

var identLine = regexp.MustCompile(`^([^<>\n\x00]*?) ?<([^<>\n\x00]*)> ([0-9]{1,18}) ([+-][0-9]{4})$`)

// parseCommit reads the object of a commit.
func parseCommit(id, text string) (foreignCommit, bool) {
	c := foreignCommit{id: id}
	head, message, ok := strings.Cut(text, "\n\n")
	if !ok {
		head, ok = strings.CutSuffix(text, "\n")
	}
	c.message = message
	whose := map[string]*ident{"author": &c.author, "committer": &c.committer}
	for line := range strings.SplitSeq(head, "\n") {
		key, value, _ := strings.Cut(line, " ")
		switch key {
		case "tree":
			ok = ok && c.tree == "" && objectID.MatchString(value)
			c.tree = value
		case "parent":
			c.parents++
		case "author", "committer":
			m := identLine.FindStringSubmatch(value)
			if m == nil || whose[key].zone != "" {
				return c, false
			}
			at, err := strconv.ParseInt(m[3], 10, 64)
			ok = ok && err == nil
			*whose[key] = ident{m[1], m[2], at, m[4]}
		}
	}
	return c, ok && c.tree != "" && c.author.zone != "" && c.committer.zone != ""
}

// cleaned makes a commit fit to be shown: without control characters and those that change the direction of
// text, of bounded size, and with a date that is not ahead of now. A date that cannot be is the one of the
// commit before.
func (c foreignCommit) cleaned(before int64, now time.Time) foreignCommit {
	for _, i := range []*ident{&c.author, &c.committer} {
		i.name, i.mail = clip(strings.TrimSpace(plain(i.name, "")),
			maxIdent), clip(strings.TrimSpace(plain(i.mail, "")), maxIdent)
		if i.name == "" {
			i.name = "unknown"
		}
		if i.at > now.Add(24*time.Hour).Unix() {
			i.at = before
		}
	}
	if c.message = plain(c.message, "\n\t"); len(c.message) > maxMessage {
		c.message = clip(c.message, maxMessage) + "\n\n[cut]\n"
	}
	if strings.TrimSpace(c.message) == "" {
		c.message = "(no message)\n"
	}
	return c
}

// subject is the first line of the message.
func (c foreignCommit) subject() string {
	line, _, _ := strings.Cut(strings.TrimSpace(c.message), "\n")
	return line
}

// plain drops what a terminal may act on, but for the characters in keep.
func plain(s, keep string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(keep, r) {
			return r
		}
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r >= 0x2028 && r <= 0x2029 {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// clip cuts s to at most n bytes, at a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// entries returns the files of a tree by their paths. The tree may be foreign: one that names itself a billion
// times ends with an error.
func (r *Result) entries(ctx context.Context, tree string) (map[string]entry, error) {
	list := map[string]entry{}
	if tree == "" {
		return list, nil
	}
	out, err := r.git(ctx, "ls-tree", "-r", "-z", "--full-tree", tree)
	if err != nil {
		return nil, err
	}
	for line := range records(out) {
		meta, p, _ := strings.Cut(line, "\t")
		f := strings.Fields(meta) // mode type oid
		if len(f) != 3 {
			return nil, fmt.Errorf("listing files: git printed %q", line)
		}
		list[p] = entry{f[0], f[2]}
	}
	return list, nil
}

// between lists how two trees differ, by path.
func between(base, theirs map[string]entry) []change {
	var list []change
	for p, e := range theirs {
		if base[p] != e {
			list = append(list, change{p, base[p], e})
		}
	}
	for p, e := range base {
		if _, ok := theirs[p]; !ok {
			list = append(list, change{path: p, base: e})
		}
	}
	slices.SortFunc(list, func(a, b change) int { return strings.Compare(a.path, b.path) })
	return list
}

// refuse returns an error for a change that no commit may bring.
func refuse(changes []change) error {
	for _, c := range changes {
		if c.theirs == (entry{}) {
			continue
		}
		if why := badPath(c.path); why != "" {
			return outboard.Errorf(outboard.Invalid, "%q: %s", c.path, why)
		}
		if c.theirs.mode != modeLink && c.theirs.mode != modeModule && !c.theirs.regular() {
			return outboard.Errorf(outboard.Invalid, "%q is of a kind that git does not have", c.path)
		}
	}
	return nil
}

// modulesOf returns the submodules of a tree.
func modulesOf(list map[string]entry) map[string]entry {
	out := maps.Clone(list)
	maps.DeleteFunc(out, func(_ string, e entry) bool { return e.mode != modeModule })
	return out
}
