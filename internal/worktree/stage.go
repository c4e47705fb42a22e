package worktree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// stageName is the directory at the top of the user's files that holds everything an apply is about to put in
// place and, until it is done, everything it has moved away. It is there so that both are renames within one
// file system. It exists only while a result is applied, or after that was interrupted.
const stageName = ".outboard-apply"

const (
	stageNew  = stageName + "/new"          // what comes, by number of its step
	stageOld  = stageName + "/old"          // what has moved away, likewise
	stagePlan = stageName + "/journal.json" // what is there says how to take everything back
	stageTemp = stageName + "/journal.new"
)

// stage is an apply that is ready: its plan and its files are on disk.
type stage struct {
	l    *looker
	root *os.Root
	j    journal
	at   func(point string) // tests: called before each thing that changes the disk
}

// journal is what a later process needs to take back an apply that was interrupted.
type journal struct {
	Format string  `json:"format"` // of object ids
	Steps  []jstep `json:"steps"`
	Dirs   []jpath `json:"dirs"` // directories that the apply makes, deepest first
}

type jstep struct {
	Path jpath  `json:"path"`
	Old  jentry `json:"old,omitzero"` // bytes as they are on disk
	New  jentry `json:"new,omitzero"`
}

// jpath is a path that need not be valid UTF-8; JSON has it in base64.
type jpath []byte

type jentry struct {
	Mode string      `json:"mode"`
	OID  string      `json:"oid"`
	Perm fs.FileMode `json:"perm,omitempty"`
}

// is compares content and kind. The permissions of a file have no part: they hold no work.
func (e jentry) is(o entry) bool {
	same := e.Mode == o.mode || entry{mode: e.Mode}.regular() && o.regular()
	return e.OID == o.oid && same
}

// prepare writes everything that the plan needs beside the user's files, durably. After an error nothing of it is left.
func (r *Result) prepare(ctx context.Context, l *looker, env []string, p *plan, at func(string)) (_ *stage, err error) {
	s := &stage{l: l, root: l.root, at: at}
	s.at("stage")
	if err := s.root.Mkdir(stageName, 0o700); err != nil {
		return nil, fmt.Errorf("making a directory beside your files: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.root.RemoveAll(stageName))
		}
	}()
	for _, dir := range []string{stageNew, stageOld} {
		if err := s.root.Mkdir(dir, 0o700); err != nil {
			return nil, fmt.Errorf("making a directory beside your files: %w", err)
		}
	}
	if err := s.root.WriteFile(stageName+"/.gitignore", []byte("*\n"), 0o600); err != nil {
		return nil, fmt.Errorf("hiding the directory beside your files from git: %w", err)
	}
	if err := r.export(ctx, env, p, s.at); err != nil {
		return nil, err
	}
	if err := s.record(p); err != nil {
		return nil, err
	}
	return s, s.save()
}

// export writes the new files of a plan under their numbers: those that git converts here as git would write
// them, others byte for byte.
func (r *Result) export(ctx context.Context, env []string, p *plan, at func(string)) error {
	var exact, named strings.Builder
	var names []string
	numbers := map[string]int{}
	for i, s := range p.steps {
		switch {
		case s.new == entry{}:
		case s.old.regular() && s.old.raw == s.old.oid && s.new.regular() || s.new.mode == modeLink:
			fmt.Fprintf(&exact, "%s %s\t%d\x00", s.new.mode, s.new.oid, i)
		default:
			fmt.Fprintf(&named, "%s %s\t%s\x00", s.new.mode, s.new.oid, s.path)
			names, numbers[s.path] = append(names, s.path), i
		}
	}
	at("export")
	stage := filepath.Join(r.tree.Root, stageName)
	empty := filepath.Join(r.dir, "empty") // no attributes are there
	if err := os.MkdirAll(empty, 0o700); err != nil {
		return fmt.Errorf("making a temporary directory: %w", err)
	}
	exactEnv := append(slices.Clone(r.env), "GIT_INDEX_FILE="+filepath.Join(r.dir, "exact"), "GIT_WORK_TREE="+empty)
	if err := fillIndex(ctx, empty, exactEnv, exact.String()); err != nil {
		return err
	}
	var numbered []string
	for i, s := range p.steps {
		if _, byName := numbers[s.path]; !byName && s.new != (entry{}) {
			numbered = append(numbered, strconv.Itoa(i))
		}
	}
	if err := checkoutIndex(ctx, empty, exactEnv, filepath.Join(stage, "new"), numbered); err != nil {
		return err
	}
	namedEnv := append(slices.Clone(env), "GIT_INDEX_FILE="+filepath.Join(r.dir, "named"))
	if err := fillIndex(ctx, r.tree.Root, namedEnv, named.String()); err != nil {
		return err
	}
	byName := filepath.Join(stage, "named")
	if err := checkoutIndex(ctx, r.tree.Root, namedEnv, byName, names); err != nil {
		return err
	}
	for name, i := range numbers {
		if err := os.Rename(filepath.Join(byName, name), filepath.Join(stage, "new", strconv.Itoa(i))); err != nil {
			return fmt.Errorf("collecting files: %w", err)
		}
	}
	return os.RemoveAll(byName)
}

// fillIndex makes an index anew that holds entries only.
func fillIndex(ctx context.Context, dir string, env []string, entries string) error {
	if _, err := run(ctx, dir, env, nil, "read-tree", "--empty"); err != nil {
		return fmt.Errorf("making a temporary index: %w", err)
	}
	if _, err := run(ctx, dir, env, strings.NewReader(entries), "update-index", "-z", "--index-info"); err != nil {
		return fmt.Errorf("listing files to write: %w", err)
	}
	return nil
}

// record makes the journal, with permissions and the exact bytes of what was written, and flushes all of it.
func (s *stage) record(p *plan) error {
	s.j.Format = "sha1"
	if s.l.newID().Size() > 20 {
		s.j.Format = "sha256"
	}
	var paths []string
	for i, st := range p.steps {
		js := jstep{Path: jpath(st.path)}
		if (st.old.entry != entry{}) {
			js.Old = jentry{st.old.mode, st.old.raw, st.old.perm}
		}
		if (st.new != entry{}) {
			if err := s.settle(stageNew+"/"+strconv.Itoa(i), st); err != nil {
				return fmt.Errorf("writing %q beside your files: %w", st.path, err)
			}
			e, perm, err := s.l.fingerprint(stageNew + "/" + strconv.Itoa(i))
			if err != nil {
				return fmt.Errorf("reading what was written: %w", err)
			}
			js.New = jentry{e.mode, e.oid, perm}
			paths = append(paths, st.path)
		}
		s.j.Steps = append(s.j.Steps, js)
	}
	for _, dir := range dirsOf(paths) {
		if info, err := s.root.Lstat(dir); err != nil || !info.IsDir() {
			s.j.Dirs = append(s.j.Dirs, jpath(dir))
		}
	}
	return syncDirs(s.root, stageNew, stageOld, stageName, ".")
}

// settle gives a staged file the permissions of the one it replaces, changed only as the result changed them,
// and flushes it.
func (s *stage) settle(name string, st step) error {
	info, err := s.root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	s.at("flush " + st.path)
	if st.old.regular() {
		perm := st.old.perm
		switch {
		case st.new.mode == st.old.mode:
		case st.new.mode == modeExec:
			perm |= perm & 0o444 >> 2
		default:
			perm &^= 0o111
		}
		if err := s.root.Chmod(name, perm); err != nil {
			return err
		}
		if err := keepOwner(s.root, st.path, name); err != nil {
			return err
		}
	}
	f, err := s.root.Open(name)
	if err != nil {
		return err
	}
	err = f.Sync()
	if runtime.GOOS == "windows" {
		err = nil // only a file open for writing can be flushed there
	}
	return errors.Join(err, f.Close())
}

// save writes the journal. From here on the apply is either finished or taken back.
func (s *stage) save() error {
	b, err := json.Marshal(s.j)
	if err != nil {
		return fmt.Errorf("encoding the journal: %w", err)
	}
	f, err := s.root.Create(stageTemp)
	if err == nil {
		_, err = f.Write(b)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		s.at("journal")
		err = s.root.Rename(stageTemp, stagePlan)
	}
	if err == nil {
		err = syncDirs(s.root, stageName)
	}
	if err != nil {
		return fmt.Errorf("writing the journal of the apply: %w", err)
	}
	return nil
}

// syncDirs makes the entries of directories durable, where a system can.
func syncDirs(root *os.Root, dirs ...string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	for _, dir := range dirs {
		d, err := root.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(d.Sync(), d.Close())
		}
		if err != nil {
			return fmt.Errorf("flushing the directory %q: %w", dir, err)
		}
	}
	return nil
}

// parentsOf returns the directories that hold paths.
func parentsOf(steps []jstep) []string {
	var dirs []string
	for _, s := range steps {
		dirs = append(dirs, path.Dir(string(s.Path)))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}
