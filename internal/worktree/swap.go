package worktree

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
)

// errMoved means that the user's files changed after the plan was made. Everything has been taken back.
var errMoved = errors.New("your files changed while the result was applied")

// swap puts the stage in place: what leaves is moved into the stage and looked at again there, where no program
// finds it by name; what comes is linked to a name that must be free. Nothing of the user's is ever overwritten
// or removed by name. When anything is not as planned, or fails, all of it is taken back.
func (s *stage) swap() (notes []string, err error) {
	err = s.place()
	if err == nil {
		err = s.settled()
	}
	if err == nil {
		s.at("done")
		if err = s.root.Remove(stagePlan); err == nil { // the point of no return
			err = syncDirs(s.root, stageName)
		}
	}
	if err != nil {
		notes, back := s.takeBack()
		if back != nil {
			return notes, errors.Join(err, fmt.Errorf("taking the changes back, of which %s has what is missing: %w",
				stageName, back))
		}
		return notes, err
	}
	s.sweep()
	s.at("clean")
	if err := s.root.RemoveAll(stageName); err != nil {
		return nil, fmt.Errorf("removing %s: %w", stageName, err)
	}
	return nil, nil
}

// place removes first, since what is to be written may need the room.
func (s *stage) place() error {
	for i, st := range s.j.Steps {
		if (st.New != jentry{}) {
			continue
		}
		if err := s.moveAway(i, st); err != nil {
			return err
		}
	}
	for i, st := range s.j.Steps {
		if (st.New == jentry{}) {
			continue
		}
		if err := s.put(i, st); err != nil {
			return err
		}
	}
	return syncDirs(s.root, append(parentsOf(s.j.Steps), stageOld)...)
}

func (s *stage) put(i int, st jstep) error {
	p := string(st.Path)
	if (st.Old != jentry{}) {
		if err := s.moveAway(i, st); err != nil {
			return err
		}
	} else if err := s.makeRoom(p); err != nil {
		return err
	}
	s.at("place " + p)
	err := s.link(numbered(stageNew, i), p)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %q appeared", errMoved, p)
	}
	if err != nil {
		return fmt.Errorf("putting %q in place: %w", p, err)
	}
	return nil
}

func (s *stage) moveAway(i int, st jstep) error {
	p, old := string(st.Path), numbered(stageOld, i)
	s.at("move " + p)
	err := s.root.Rename(p, old)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %q is gone", errMoved, p)
	}
	if err != nil {
		return fmt.Errorf("moving %q away: %w", p, err)
	}
	if e, _, err := s.l.fingerprint(old); err != nil || !st.Old.is(e) {
		return errors.Join(fmt.Errorf("%w: %q", errMoved, p), err)
	}
	return nil
}

// settled looks once more at what was moved away: a program that had a file open may have written to it since.
func (s *stage) settled() error {
	for i, st := range s.j.Steps {
		if (st.Old == jentry{}) {
			continue
		}
		if e, _, err := s.l.fingerprint(numbered(stageOld, i)); err != nil || !st.Old.is(e) {
			return errors.Join(fmt.Errorf("%w: %q", errMoved, st.Path), err)
		}
	}
	return nil
}

// makeRoom makes the parents of p, and removes directories in its place, which hold no file any more.
func (s *stage) makeRoom(p string) error {
	if dir := path.Dir(p); dir != "." {
		s.at("mkdir " + dir)
		if err := s.root.MkdirAll(dir, 0o777); err != nil {
			return fmt.Errorf("making the directory %q: %w", dir, err)
		}
	}
	info, err := s.root.Lstat(p)
	if err != nil || !info.IsDir() {
		return nil
	}
	var dirs []string
	err = fs.WalkDir(s.root.FS(), p, func(q string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, q)
		}
		return err
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
		err = s.rmdir(dirs[i])
	}
	if err != nil {
		return fmt.Errorf("%w: the directory %q is in use: %w", errMoved, p, err)
	}
	return nil
}

// link moves a file to a name, and fails with fs.ErrExist when the name is taken. Where the file system has no
// hard links, or denies this one, a file that appears in the very same moment would be replaced.
func (s *stage) link(from, to string) error {
	err := s.root.Link(from, to)
	if err == nil {
		return s.root.Remove(from)
	}
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, serr := s.root.Lstat(to); serr == nil {
		return fs.ErrExist
	}
	return s.root.Rename(from, to)
}

// rmdir removes an empty directory, and nothing else that may have its name: with the slash, not even a file of
// this moment.
func (s *stage) rmdir(dir string) error {
	info, err := s.root.Lstat(dir)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "rmdir", Path: dir, Err: fs.ErrInvalid}
	}
	if err != nil {
		return err
	}
	return s.root.Remove(dir + "/")
}

// sweep removes the directories that the apply has emptied.
func (s *stage) sweep() {
	var gone []string
	for _, st := range s.j.Steps {
		if (st.New == jentry{}) {
			gone = append(gone, string(st.Path))
		}
	}
	for _, dir := range dirsOf(gone) {
		s.rmdir(dir) // fails where something is left, which stays
	}
}

// takeBack restores what the journal says was there. What the user has made of a path since stays; notes say
// where the version before is kept then.
func (s *stage) takeBack() (notes []string, err error) {
	for i, st := range s.j.Steps { // all of them first: what was there may need the room
		if err := s.withdraw(i, st); err != nil {
			return notes, fmt.Errorf("taking back %q: %w", st.Path, err)
		}
	}
	for _, dir := range s.j.Dirs {
		s.rmdir(string(dir)) // fails where something is left, which stays
	}
	for i, st := range s.j.Steps {
		note, err := s.restore(i, st)
		if note != "" {
			notes = append(notes, note)
		}
		if err != nil {
			return notes, fmt.Errorf("restoring %q: %w", st.Path, err)
		}
	}
	if err := syncDirs(s.root, parentsOf(s.j.Steps)...); err != nil {
		return notes, err
	}
	s.at("taken back")
	if err := s.root.Remove(stagePlan); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return notes, err
	}
	return notes, s.root.RemoveAll(stageName)
}

// restore brings back what was moved away from a path.
func (s *stage) restore(i int, st jstep) (note string, err error) {
	p, old := string(st.Path), numbered(stageOld, i)
	if _, err := s.root.Lstat(old); err != nil {
		return "", nil // it was not moved
	}
	s.at("restore " + p)
	if dir := path.Dir(p); dir != "." {
		if err := s.root.MkdirAll(dir, 0o777); err != nil {
			return s.keepBeside(old, p)
		}
	}
	err = s.link(old, p)
	if errors.Is(err, fs.ErrExist) {
		return s.keepBeside(old, p)
	}
	return "", err
}

// withdraw removes what the apply put in place, unless it is no longer that.
func (s *stage) withdraw(i int, st jstep) error {
	p, gone := string(st.Path), numbered(stageNew, i)
	if _, err := s.root.Lstat(numbered(stageOld, i)); st.New == (jentry{}) || err != nil && st.Old != (jentry{}) {
		return nil // nothing came, or not yet
	}
	if e, _, err := s.l.fingerprint(p); err != nil || !st.New.is(e) {
		return nil // not placed yet, or the user's by now
	}
	s.at("take back " + p)
	if err := s.root.Remove(gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.root.Rename(p, gone); err != nil {
		return err
	}
	if e, _, err := s.l.fingerprint(gone); err == nil && st.New.is(e) {
		return nil
	}
	return s.link(gone, p) // changed in that moment
}

// keepBeside gives the version from before the apply a free name next to what the user has made since.
func (s *stage) keepBeside(old, p string) (string, error) {
	if e, _, err := s.l.fingerprint(p); err == nil {
		if o, _, err := s.l.fingerprint(old); err == nil && o == e {
			return "", nil
		}
	}
	dir := path.Dir(p)
	if info, err := s.root.Lstat(dir); err != nil || !info.IsDir() {
		dir = "."
	}
	for n := 1; n < 1000; n++ {
		name := path.Join(dir, path.Base(p)+".before-apply")
		if n > 1 {
			name += "." + strconv.Itoa(n)
		}
		err := s.link(old, name)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		return fmt.Sprintf("you have changed %s since; the version from before the apply is %s", p, name), err
	}
	return "", fmt.Errorf("a thousand files named %s.before-apply exist", p)
}

func numbered(dir string, i int) string { return dir + "/" + strconv.Itoa(i) }

// recoverStage takes back an apply that was interrupted, if there is one. The caller holds the lock.
func recoverStage(root *os.Root, at func(string)) (notes []string, err error) {
	info, err := root.Lstat(stageName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil || !info.IsDir() {
		return nil, outboard.Errorf(outboard.Conflict, "%s is there and is not what an apply leaves", stageName).
			WithHint("move it out of the way")
	}
	b, err := root.ReadFile(stagePlan)
	if errors.Is(err, fs.ErrNotExist) { // nothing was moved yet, or everything is in place
		return nil, root.RemoveAll(stageName)
	}
	s := &stage{root: root, at: at}
	if err == nil {
		err = json.Unmarshal(b, &s.j)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", stagePlan, err)
	}
	s.l = newLooker(root, s.j.Format)
	for _, st := range s.j.Steps {
		if why := forbidden(change{path: string(st.Path)}); why != "" || strings.HasPrefix(string(st.Path), "/") {
			return nil, fmt.Errorf("reading %s: it names %q", stagePlan, st.Path)
		}
	}
	notes, err = s.takeBack()
	return append([]string{"an earlier apply was interrupted; what it had done was taken back"}, notes...), err
}
