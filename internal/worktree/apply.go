package worktree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// maxTries is how often an apply starts again because the user's files changed under it.
const maxTries = 5

// Outcome says what Apply did, or with check would do.
type Outcome int

// The outcomes.
const (
	Applied Outcome = iota
	Nothing         // the result equals what was sent
	Already         // the user's files hold the result
	Refused         // the result does not fit the user's files, which are unchanged
)

// Report is what became of an apply.
type Report struct {
	Outcome Outcome
	Paths   []string // what is different now: part of what the result changes when the user has some of it already
	Merged  []string // those of Paths that hold changes of the user's, too
	Clashes []Clash  // why it was refused
	Notes   []string // what else the user must know
}

// Apply merges the result into the user's files: all of it, or nothing. HEAD, index and refs stay as they are.
// With check nothing is ever written. Whenever the process ends, every byte that the user had is on disk: at its
// place, or, after an interruption, where the next Apply or Snapshot puts it back from. Any number of processes
// may apply to the same files at once.
func (r *Result) Apply(ctx context.Context, check bool) (Report, error) {
	if !r.Changed() {
		return Report{Outcome: Nothing}, nil
	}
	changes, err := r.changes(ctx)
	if err != nil {
		return Report{}, err
	}
	unlock, err := lock(ctx, r.tree.Root)
	if err != nil {
		return Report{}, fmt.Errorf("locking %s: %w", r.tree.Root, err)
	}
	defer unlock()
	notes, err := r.interrupted(check)
	if err != nil {
		return Report{Notes: notes}, err
	}
	for try := 1; ; try++ {
		rep, err := r.once(ctx, changes, check)
		notes = append(notes, rep.Notes...)
		rep.Notes = notes
		if !errors.Is(err, errMoved) {
			return rep, err
		}
		if try == maxTries || len(rep.Notes) > 0 {
			return rep, outboard.Errorf(outboard.Conflict, "nothing was applied: %w", err).
				WithHint("try again when nothing else writes there")
		}
	}
}

// once makes a plan and carries it out.
func (r *Result) once(ctx context.Context, changes []change, check bool) (Report, error) {
	root, err := os.OpenRoot(r.tree.Root)
	if err != nil {
		return Report{}, fmt.Errorf("opening %s: %w", r.tree.Root, err)
	}
	defer root.Close()
	env, err := r.converter(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("reading how git stores your files: %w", err)
	}
	l := newLooker(root, r.format)
	l.fold = foldsCase(root)
	if err := r.survey(ctx, l, env, changes); err != nil {
		return Report{}, err
	}
	p, err := makePlan(changes, l.now, l.fold, r.merger(ctx))
	if err != nil {
		return Report{}, err
	}
	rep := Report{Merged: p.merged, Clashes: p.clashes}
	for _, s := range p.steps {
		rep.Paths = append(rep.Paths, s.path)
	}
	switch {
	case len(p.clashes) > 0:
		rep.Outcome = Refused
		return rep, r.nameFilters(ctx, rep.Clashes)
	case len(p.steps) == 0:
		rep.Outcome = Already
		return rep, nil
	case check:
		return rep, nil
	}
	s, err := r.prepare(ctx, l, env, p, r.at)
	if err != nil {
		return rep, fmt.Errorf("nothing was applied: %w", err)
	}
	rep.Notes, err = s.swap()
	return rep, err
}

// interrupted deals with what an earlier apply has left.
func (r *Result) interrupted(check bool) ([]string, error) {
	if !check {
		return r.tree.recover()
	}
	if exists(filepath.Join(r.tree.Root, filepath.FromSlash(stagePlan))) {
		return nil, outboard.Errorf(outboard.Conflict, "an earlier apply to %s was interrupted", r.tree.Root).
			WithHint("without --check, apply takes back what it had done and starts again")
	}
	return nil, nil
}

// recover takes back an apply that was interrupted. The caller holds the lock.
func (t *Tree) recover() ([]string, error) {
	root, err := os.OpenRoot(t.Root)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", t.Root, err)
	}
	defer root.Close()
	notes, err := recoverStage(root, func(string) {})
	if err != nil {
		return notes, fmt.Errorf("taking back an apply that was interrupted (what is missing is in %s): %w",
			filepath.Join(t.Root, stageName), err)
	}
	return notes, nil
}

// merger merges with git's own three-way merge of text, which no attribute of the result can replace by a program.
func (r *Result) merger(ctx context.Context) merger {
	return func(path string, base, ours, theirs entry) (entry, bool, error) {
		dir := filepath.Join(r.dir, "merge")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return entry{}, false, fmt.Errorf("merging %q: %w", path, err)
		}
		for name, e := range map[string]entry{"base": base, "ours": ours, "theirs": theirs} {
			b, err := r.git(ctx, "cat-file", "blob", e.oid)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
			}
			if err != nil {
				return entry{}, false, fmt.Errorf("merging %q: %w", path, err)
			}
		}
		_, err := run(ctx, dir, r.env, nil, "merge-file", "-q", "ours", "base", "theirs")
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
			return entry{}, false, nil // as many conflicts; or 255 for files that are not text
		}
		if err != nil {
			return entry{}, false, fmt.Errorf("merging %q: %w", path, err)
		}
		out, err := run(ctx, dir, r.env, nil, "hash-object", "-w", "--no-filters", "--", "ours")
		if err != nil {
			return entry{}, false, fmt.Errorf("merging %q: %w", path, err)
		}
		return entry{ours.mode, strings.TrimSpace(string(out))}, true, nil
	}
}

// nameFilters says of clashes whether a filter of the user's has a part in them: no program runs on what a
// sandbox made, so that such a file is never what was sent.
func (r *Result) nameFilters(ctx context.Context, clashes []Clash) error {
	var paths []string
	for _, c := range clashes {
		paths = append(paths, c.Path)
	}
	out, err := run(ctx, r.tree.Root, append(slices.Clone(r.env), "GIT_WORK_TREE="+r.tree.Root), zeros(paths),
		"check-attr", "-z", "--stdin", "filter")
	if err != nil {
		return fmt.Errorf("reading attributes: %w", err)
	}
	f := strings.Split(string(out), "\x00") // path, attribute, value
	for i := 0; i+2 < len(f); i += 3 {
		if f[i+2] == "unspecified" || f[i+2] == "unset" {
			continue
		}
		for n := range clashes {
			if clashes[n].Path == f[i] {
				clashes[n].Why += " (your git filter " + f[i+2] + " is not run on what comes from a sandbox)"
			}
		}
	}
	return nil
}

// foldsCase reports whether the file system takes names that differ in case for one. It asks about something
// that is there.
func foldsCase(root *os.Root) bool {
	list, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return false
	}
	for _, d := range list {
		other := strings.ToUpper(d.Name())
		if other == d.Name() {
			other = strings.ToLower(d.Name())
		}
		if other == d.Name() || slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() == other }) {
			continue
		}
		_, err := root.Lstat(other)
		return err == nil
	}
	return false
}
