package worktree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

// Messages of the commits that are not the session's.
const (
	sentMessage   = "Work sent to the sandbox"
	resultMessage = "Result of the session"
)

// Branched is what became of a result as a branch.
type Branched struct {
	Name    string   // "" when the session changed nothing
	Commits []Commit // the session's own, oldest first
	Rest    bool     // one more commit holds what the session changed and did not commit
	Left    []string // what the workspace holds and the branch does not, and why
	Links   []string // symbolic links in the commits that point out of the tree
	Notes   []string // what else the user must know
}

// Commit is a commit of the session's, as it is on the branch. What it says of itself is the session's word.
type Commit struct {
	ID      string    `json:"id"`
	Subject string    `json:"subject"`
	Author  string    `json:"author"`
	Email   string    `json:"email"`
	At      time.Time `json:"authored_at"`
}

// Branch makes the result a branch of the user's repository, on the commit that the work was sent from: first
// the session's own commits, then what of the work that was sent they do not hold, then what the session did not
// commit. The branch has the name, or the name with a number behind it when another branch has it. Objects are
// checked on the way in; nothing is checked out.
func (r *Result) Branch(ctx context.Context, name string) (Branched, error) {
	var b Branched
	if r.tree.Plain {
		return b, outboard.Errorf(outboard.Invalid, "%s is not in a git repository, so the result cannot become a "+
			"branch", r.tree.Root)
	}
	if _, err := run(ctx, r.dir, nil, nil, "check-ref-format", "--branch", name); err != nil {
		return b, outboard.Errorf(outboard.Invalid, "%q is not a branch name", name)
	}
	if r.sent.Far {
		return b, outboard.Errorf(outboard.NotFound, "the commit that the work was sent from is not in %s, so that "+
			"no branch can start there", r.tree.Root).
			WithHint("git fetch brings it, if it was pushed")
	}
	tip, err := r.line(ctx, &b)
	if err != nil {
		return b, fmt.Errorf("making a branch of the result: %w", err)
	}
	if len(b.Commits) == 0 && !r.Changed() {
		return b, nil
	}
	if _, err := r.git(ctx, "update-ref", "refs/heads/result", tip); err != nil {
		return b, fmt.Errorf("naming the result: %w", err)
	}
	var have bool
	if b.Name, have, err = r.freeName(ctx, name, tip); err != nil || have {
		return b, err
	}
	args := []string{"-c", "fetch.fsckObjects=true", "fetch", "-q", "--no-tags", "--no-write-fetch-head",
		"--no-recurse-submodules",
		"--no-auto-maintenance", filepath.Join(r.dir, "repo"), "refs/heads/result"}
	if _, err := r.tree.user(ctx, args...); err != nil {
		return b, fmt.Errorf("bringing the result into the repository: %w", err)
	}
	none := strings.Repeat("0", len(tip)) // the branch must not exist: one made meanwhile is not moved
	if _, err := r.tree.user(ctx, "update-ref", "refs/heads/"+b.Name, tip, none); err != nil {
		return b, outboard.Errorf(outboard.Conflict, "the branch %s cannot be made: %w", b.Name, err).
			WithHint("--branch NAME takes another name")
	}
	return b, nil
}

// line makes the commits of a branch and returns the last.
func (r *Result) line(ctx context.Context, b *Branched) (string, error) {
	if err := r.findModules(ctx); err != nil {
		return "", err
	}
	limited, cancel := context.WithTimeoutCause(ctx, commitTime, outboard.Errorf(outboard.Exhausted,
		"reading them takes too long"))
	defer cancel()
	tip, tree, err := r.remake(limited, b)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		*b = Branched{Notes: []string{"the session's commits are not brought, only what they changed: " + reason(err)}}
		tip = ""
	}
	if tip == "" {
		tip, err = r.sentHome(ctx)
	} else {
		tip, err = r.sentRest(ctx, tip, tree)
	}
	if err != nil {
		return "", err
	}
	last, err := r.commitHome(ctx, r.Commit, tip, resultMessage)
	b.Rest = last != tip
	return last, errors.Join(err, r.nameModules(ctx, b))
}

// findModules finds the submodules that the trees of a branch have: those of HEAD in the session's commits, and
// with uncommitted ones, and without those that the user has removed, in what follows.
func (r *Result) findModules(ctx context.Context) error {
	head, err := r.entries(ctx, r.sent.Head)
	if err != nil {
		return err
	}
	base, err := r.entries(ctx, r.Base)
	if err != nil {
		return err
	}
	r.headModules, r.baseModules = modulesOf(head), modulesOf(base)
	for p := range base {
		if m := moduleOf(r.headModules, p); m != "" { // it was sent, as a directory
			r.baseModules[m] = r.headModules[m]
		}
	}
	return nil
}

// reason is the first line of an error that may quote what a sandbox has written.
func reason(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return clip(plain(line, ""), 300)
}

// remake makes the session's commits anew on the user's HEAD, and returns the last with its tree as the session
// has it. Every tree is checked, not only the last: each can be checked out.
func (r *Result) remake(ctx context.Context, b *Branched) (tip, tree string, err error) {
	own, err := r.ownCommits(ctx)
	if err != nil || len(own) == 0 {
		return "", "", err
	}
	before, err := r.entries(ctx, r.sent.Start)
	if err != nil {
		return "", "", err
	}
	date, err := r.date(ctx, r.Base)
	if err != nil {
		return "", "", err
	}
	tip, now, merges := r.sent.Head, time.Now(), 0
	at := date.Unix()
	var links []change
	for _, c := range own {
		files, err := r.entries(ctx, c.tree)
		if err != nil {
			return "", "", err
		}
		changes := between(before, files)
		if err := refuse(changes); err != nil {
			return "", "", err
		}
		links = append(links, changes...)
		home, err := r.treeHome(ctx, c.tree, files, r.headModules)
		if err != nil {
			return "", "", err
		}
		if c.parents > 1 {
			merges++
		}
		clean := c.cleaned(at, now)
		if tip, err = r.write(ctx, clean, home, tip); err != nil {
			return "", "", err
		}
		b.Commits = append(b.Commits, Commit{tip, clean.subject(), clean.author.name, clean.author.mail,
			time.Unix(clean.author.at, 0).UTC()})
		before, at, tree = files, clean.committer.at, c.tree
	}
	if merges > 0 {
		b.Notes = append(b.Notes, fmt.Sprintf("merges among the session's commits: %d; each is one commit with all "+
			"that it merged", merges))
	}
	b.Links, err = r.leading(ctx, links)
	return tip, tree, err
}

// write makes a commit object. Only these lines of the session's own are kept: no signature, no other parent, no
// encoding.
func (r *Result) write(ctx context.Context, c foreignCommit, tree, parent string) (string, error) {
	var text strings.Builder
	fmt.Fprintf(&text, "tree %s\n", tree)
	if parent != "" {
		fmt.Fprintf(&text, "parent %s\n", parent)
	}
	fmt.Fprintf(&text, "author %s\ncommitter %s\n\n%s", c.author, c.committer, c.message)
	out, err := run(ctx, r.dir, r.env, strings.NewReader(text.String()), "hash-object", "-t", "commit", "-w", "--stdin")
	return strings.TrimSpace(string(out)), err
}

// sentHome returns the commit of what was sent, as it is in the user's repository.
func (r *Result) sentHome(ctx context.Context) (string, error) {
	files, err := r.entries(ctx, r.Base)
	if err != nil || maps.Equal(modulesOf(files), r.baseModules) {
		return r.Base, err
	}
	date, err := r.date(ctx, r.Base)
	if err != nil {
		return "", err
	}
	tree, err := r.treeHome(ctx, r.Base+"^{tree}", files, r.baseModules)
	if err != nil {
		return "", err
	}
	return r.commitAt(ctx, tree, r.sent.Head, sentMessage, date)
}

// sentRest commits, on the session's last commit, the work that was sent uncommitted and that the session did
// not commit either.
func (r *Result) sentRest(ctx context.Context, tip, tree string) (string, error) {
	var trees [3]map[string]entry
	for i, id := range []string{r.sent.Start, r.Base, tree} {
		var err error
		if trees[i], err = r.entries(ctx, id); err != nil {
			return "", err
		}
	}
	start, base, last := trees[0], trees[1], trees[2]
	var lines strings.Builder
	for _, c := range between(start, base) {
		if last[c.path] == c.base {
			lines.WriteString(r.indexLine(c.path, c.theirs))
		}
	}
	rest, err := r.treeWith(ctx, tree, lines.String())
	if err != nil {
		return "", err
	}
	return r.commitHome(ctx, rest, tip, sentMessage)
}

// commitHome commits a tree on parent as it is in the user's repository, with the date of the parent: the same
// result is then the same commit whenever it is brought home. When the parent has that tree, it returns the
// parent.
func (r *Result) commitHome(ctx context.Context, tree, parent, message string) (string, error) {
	files, err := r.entries(ctx, tree)
	if err != nil {
		return "", err
	}
	home, err := r.treeHome(ctx, tree+"^{tree}", files, r.baseModules)
	if err != nil {
		return "", err
	}
	date, err := r.date(ctx, parent)
	if err != nil {
		return "", err
	}
	return r.commitAt(ctx, home, parent, message, date)
}

func (r *Result) commitAt(ctx context.Context, tree, parent, message string, date time.Time) (string, error) {
	when := date.Format(time.RFC3339)
	t := &Tree{Root: filepath.Join(r.dir, "files"), GitDir: filepath.Join(r.dir, "repo")}
	return t.commit(ctx, append(slices.Clone(r.env), "GIT_AUTHOR_DATE="+when, "GIT_COMMITTER_DATE="+when), tree, parent,
		message)
}

// date returns when a commit was made.
func (r *Result) date(ctx context.Context, commit string) (time.Time, error) {
	out, err := r.git(ctx, "log", "-1", "--format=%cI", commit)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the date of a commit: %w", err)
	}
	return time.Parse(time.RFC3339, strings.TrimSpace(string(out)))
}

// treeHome returns a tree as it is in the user's repository: its submodules are those that are named. Submodules
// are plain directories in a workspace, and a repository that the session has made inside of the workspace does
// not come.
func (r *Result) treeHome(ctx context.Context, tree string, files, modules map[string]entry) (string, error) {
	have := modulesOf(files)
	var lines strings.Builder
	if !maps.Equal(have, modules) {
		for p := range files {
			if _, ok := have[p]; ok || moduleOf(modules, p) != "" {
				lines.WriteString(r.indexLine(p, entry{}))
			}
		}
		for p, e := range modules {
			lines.WriteString(r.indexLine(p, e))
		}
	}
	return r.treeWith(ctx, tree, lines.String())
}

// moduleOf returns the submodule that a path is in, or "".
func moduleOf(modules map[string]entry, p string) string {
	for i, c := range p {
		if c == '/' {
			if _, ok := modules[p[:i]]; ok {
				return p[:i]
			}
		}
	}
	return ""
}

// indexLine is one line of git update-index --index-info. The zero entry removes the path.
func (r *Result) indexLine(p string, e entry) string {
	if e == (entry{}) {
		e = entry{"0", strings.Repeat("0", len(r.Base))}
	}
	return fmt.Sprintf("%s %s\t%s\x00", e.mode, e.oid, p)
}

// treeWith returns a tree with some entries changed.
func (r *Result) treeWith(ctx context.Context, tree, lines string) (string, error) {
	if lines == "" {
		out, err := r.git(ctx, "rev-parse", "--verify", tree+"^{tree}")
		return strings.TrimSpace(string(out)), err
	}
	env := append(slices.Clone(r.env), "GIT_INDEX_FILE="+filepath.Join(r.dir, "home"),
		"GIT_WORK_TREE="+filepath.Join(r.dir, "files"))
	var out []byte
	for _, args := range [][]string{{"read-tree", tree}, {"update-index", "--replace", "-z", "--index-info"},
		{"write-tree"}} {
		var err error
		if out, err = run(ctx, r.dir, env, strings.NewReader(lines), args...); err != nil {
			return "", err
		}
	}
	return strings.TrimSpace(string(out)), nil
}

// nameModules names what a branch of the repository around submodules cannot hold.
func (r *Result) nameModules(ctx context.Context, b *Branched) error {
	if len(r.baseModules) == 0 {
		return nil
	}
	changes, err := r.changes(ctx)
	for _, c := range changes {
		if moduleOf(r.baseModules, c.path) != "" {
			b.Left = append(b.Left, c.path+": in a submodule, which a branch of the repository around it cannot hold")
		}
	}
	return err
}

// leading returns those of the changes that make symbolic links out of the tree.
func (r *Result) leading(ctx context.Context, changes []change) ([]string, error) {
	links := slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return c.theirs.mode != modeLink })
	var ids strings.Builder
	for _, c := range links {
		ids.WriteString(c.theirs.oid + "\n")
	}
	out, err := run(ctx, r.dir, r.env, strings.NewReader(ids.String()), "cat-file", "--batch=%(objectsize)")
	if err != nil {
		return nil, fmt.Errorf("reading links: %w", err)
	}
	var found []string
	for _, c := range links {
		size, rest, _ := bytes.Cut(out, []byte("\n"))
		n, err := strconv.Atoi(string(size))
		if err != nil || n > maxLinkBytes || n >= len(rest) {
			return nil, outboard.Errorf(outboard.Invalid, "%q is a link without a usable target", c.path)
		}
		to := filepath.ToSlash(string(rest[:n]))
		out = rest[n+1:]
		line := c.path + " -> " + to
		if out := strings.HasPrefix(to, "/") || !filepath.IsLocal(filepath.Join(filepath.Dir(c.path), to)); out &&
			!slices.Contains(found, line) {
			found = append(found, line)
		}
	}
	return found, nil
}

// Rootless reports whether what was sent shares no history with what the user is on: then git merges the result
// only when told to.
func (r *Result) Rootless(ctx context.Context) bool {
	_, err := r.tree.work(ctx, nil, "merge-base", "HEAD", r.Base)
	return err != nil
}

// freeName returns name or the first numbered form of it that no branch has, or that is at the commit already.
func (r *Result) freeName(ctx context.Context, name, commit string) (free string, have bool, err error) {
	for n, try := 1, name; n <= 100; n++ {
		if n > 1 {
			try = fmt.Sprintf("%s-%d", name, n)
		}
		out, err := r.tree.user(ctx, "rev-parse", "-q", "--verify", "refs/heads/"+try)
		switch at := strings.TrimSpace(string(out)); {
		case err != nil && at == "":
			return try, false, nil
		case at == commit:
			return try, true, nil
		}
	}
	return "", false, outboard.Errorf(outboard.Conflict, "a hundred branches named %s exist", name)
}
