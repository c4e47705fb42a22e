package worktree

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// entry is a file as git stores it. The zero entry is no file.
type entry struct {
	mode string // modeFile, modeExec, modeLink, modeModule; modeOther for what git cannot store
	oid  string
}

const (
	modeFile   = "100644"
	modeExec   = "100755"
	modeLink   = "120000"
	modeModule = "160000"
	modeOther  = "other"
)

func (e entry) regular() bool { return e.mode == modeFile || e.mode == modeExec }

// change is a path that the result changes, with what was sent and what came back.
type change struct {
	path         string
	base, theirs entry
}

// here is what the user has at a path now.
type here struct {
	entry              // as git would store it; zero where no file is
	raw    string      // object id of the bytes as they are: not oid where git converts the file
	perm   fs.FileMode // of a file
	lossy  bool        // converting it to git's form and back does not give the same bytes
	sparse bool        // absent because of a sparse checkout
	dir    bool        // a directory is there
	below  []string    // files below that directory
	behind string      // the parent that is no directory: nothing may be looked for, or written, beyond it
}

// whySparse is the reason of a clash that SparseAdd helps with. The file is not written: HEAD and index stay as
// they are, and a file that is there although the index says that it is not would count as a change of the
// user's.
const whySparse = "it is outside your sparse checkout"

// Clash is a path of the result that cannot be brought onto the user's files, and why, in words for the user.
type Clash struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// step is one path that will be different.
type step struct {
	path string
	old  here  // moves away; zero: nothing is there
	new  entry // comes; zero: nothing does
}

// plan is what an apply will do: all of the steps, or nothing when there is a clash.
type plan struct {
	steps   []step
	merged  []string // steps that hold changes of both
	clashes []Clash
}

// merger returns what three versions of a file make, or false when both sides changed the same lines.
type merger func(path string, base, ours, theirs entry) (entry, bool, error)

// makePlan decides about every path. It reads nothing but its arguments; merge is asked where both sides changed
// a file. With fold, the file system takes names that differ in case only for the same.
func makePlan(changes []change, now map[string]here, fold bool, merge merger) (*plan, error) {
	p, leaving := &plan{}, map[string]bool{}
	for _, c := range changes {
		s, why, err := p.decide(c, now[c.path], merge)
		switch {
		case err != nil:
			return nil, err
		case why != "":
			p.clashes = append(p.clashes, Clash{c.path, why})
		case s != nil:
			p.steps = append(p.steps, *s)
			leaving[c.path] = s.new == entry{}
		}
	}
	p.checkPlaces(leaving, now)
	if fold {
		p.checkFolded()
	}
	slices.SortFunc(p.clashes, func(a, b Clash) int { return strings.Compare(a.Path, b.Path) })
	return p, nil
}

// decide returns the step that one path needs (nil: none), or why there is no right one.
func (p *plan) decide(c change, h here, merge merger) (*step, string, error) {
	if why := forbidden(c); why != "" {
		return nil, why, nil
	}
	ours := h.entry
	take := &step{c.path, h, c.theirs}
	switch {
	case h.sparse && c.theirs != c.base:
		return nil, whySparse, nil
	case ours == c.theirs:
		return nil, "", nil
	case ours == c.base && h.lossy:
		return nil, "its line ends or encoding are not what git would write, and would change", nil
	case ours == c.base:
		return take, "", nil
	case c.base == entry{}:
		return nil, "a file of yours that was not sent is there", nil
	case ours == entry{}:
		return nil, "you deleted it and the session changed it", nil
	case c.theirs == entry{}:
		return nil, "you changed it and the session deleted it", nil
	case !ours.regular() || !c.base.regular() || !c.theirs.regular():
		return nil, "you and the session made different things of it", nil
	case h.lossy:
		return nil, "both sides changed it, and its line ends or encoding are not what git would write", nil
	}
	merged, ok, err := mergeEntries(c, ours, merge)
	switch {
	case err != nil:
		return nil, "", err
	case !ok:
		return nil, "you and the session changed the same lines", nil
	case merged == ours:
		return nil, "", nil
	}
	take.new = merged
	p.merged = append(p.merged, c.path)
	return take, "", nil
}

// mergeEntries merges content and mode, each of which one side may have left alone.
func mergeEntries(c change, ours entry, merge merger) (entry, bool, error) {
	out, ok := ours, true
	switch {
	case ours.oid == c.base.oid:
		out.oid = c.theirs.oid
	case c.theirs.oid != c.base.oid && c.theirs.oid != ours.oid:
		m, clean, err := merge(c.path, c.base, ours, c.theirs)
		if err != nil || !clean {
			return entry{}, false, err
		}
		out.oid = m.oid
	}
	if ours.mode == c.base.mode {
		out.mode = c.theirs.mode
	}
	return out, ok, nil
}

// forbidden refuses what no result may hold, whatever let it come this far.
func forbidden(c change) string {
	if why := badPath(c.path); why != "" {
		return why
	}
	if c.base.mode == modeModule || c.theirs.mode == modeModule {
		return "it is a submodule or nested repository, which was not sent"
	}
	return ""
}

// badPath refuses a path that is part of a repository, that leaves the tree or that an apply uses.
func badPath(p string) string {
	for part := range strings.SplitSeq(p, "/") {
		if gitName(part) || part == "" || part == "." || part == ".." {
			return "no result may write there"
		}
	}
	if first, _, _ := strings.Cut(p, "/"); strings.EqualFold(first, stageName) {
		return "the name is used while a result is applied"
	}
	return ""
}

// checkPlaces finds steps for which there will be no room: below something that stays and is no directory, or in
// the place of a directory in which something stays.
func (p *plan) checkPlaces(leaving map[string]bool, now map[string]here) {
	p.steps = slices.DeleteFunc(p.steps, func(s step) bool {
		if (s.new == entry{}) {
			return false
		}
		why := ""
		if q := s.old.behind; q != "" && !leaving[q] {
			why = "your " + describeParent(now[q]) + " " + q + " is where the result has a directory"
		}
		for _, f := range s.old.below {
			if !leaving[f] {
				why = "your directory of this name holds " + f
				break
			}
		}
		if why != "" {
			p.clashes = append(p.clashes, Clash{s.path, why})
		}
		return why != ""
	})
}

func describeParent(h here) string {
	if h.mode == modeLink {
		return "symbolic link"
	}
	return "file"
}

// checkFolded finds files to come that would be one file on a file system that ignores case.
func (p *plan) checkFolded() {
	seen := map[string]string{}
	for _, s := range p.steps {
		if (s.new == entry{}) {
			continue
		}
		k := strings.ToLower(s.path)
		if other, ok := seen[k]; ok {
			p.clashes = append(p.clashes, Clash{s.path, "here it would be the same file as " + other})
		}
		seen[k] = s.path
	}
}

// dirsOf returns the directories above paths, deepest first.
func dirsOf(paths []string) []string {
	set := map[string]bool{}
	for _, p := range paths {
		for i := strings.LastIndexByte(p, '/'); i > 0; i = strings.LastIndexByte(p[:i], '/') {
			set[p[:i]] = true
		}
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b string) int { return strings.Compare(b, a) })
}
