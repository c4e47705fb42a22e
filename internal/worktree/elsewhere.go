package worktree

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Remade is what was sent to a session, made anew from the tar that was sent, where nothing is remembered of it.
// Close removes it.
type Remade struct {
	Tree *Tree
	Sent Sent
	dir  string
}

// Close removes the private repository.
func (m *Remade) Close() error { return os.RemoveAll(m.dir) }

// Remake reads the tar of a workspace as it was sent. With repo "" the result can be compared with it, and
// nothing else. Otherwise repo must be in a repository that has a commit of the one the work was sent from:
// there the result can be applied.
func Remake(ctx context.Context, repo, prefix string, tarball io.Reader) (_ *Remade, err error) {
	dir, err := os.MkdirTemp("", "outboard-sent-")
	if err != nil {
		return nil, fmt.Errorf("making a temporary directory: %w", err)
	}
	m := &Remade{dir: dir}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	files := filepath.Join(dir, "files")
	if err := os.Mkdir(files, 0o700); err != nil {
		return nil, fmt.Errorf("making a temporary directory: %w", err)
	}
	from := repo
	if repo == "" {
		from = files
	}
	if m.Tree, err = Open(ctx, from, filepath.Join(dir, "store.git"), repo == ""); err != nil {
		return nil, err
	}
	theirs, err := newForeign(filepath.Join(dir, "theirs"))
	if err != nil {
		return nil, err
	}
	defer theirs.root.Close()
	if _, err := unpack(ctx, io.LimitReader(tarball, 2*MaxUnpacked), unpacker{prefix: prefix, want: notStage,
		repo: theirs}, files); err != nil {
		return nil, err
	}
	if repo != "" {
		if err := m.find(ctx, theirs); err != nil {
			return nil, err
		}
	}
	return m, m.commit(ctx, files)
}

// find looks for the commit that the work was sent from, or for the newest one before it that is here.
func (m *Remade) find(ctx context.Context, theirs *foreign) error {
	start, err := theirs.tip()
	if err != nil {
		return err
	}
	git, err := m.Tree.openForeign(ctx, filepath.Join(m.dir, "theirs"))
	if err != nil {
		return err
	}
	var ids string
	if start != "" {
		if ids, err = git(nil, "rev-list", "--topo-order", start); err != nil {
			return fmt.Errorf("reading the history that was sent: %w", err)
		}
	}
	out, err := run(ctx, m.Tree.Root, []string{"GIT_DIR=" + m.Tree.Store}, strings.NewReader(ids+"\n"), "cat-file",
		"--batch-check=%(objectname) %(objecttype)")
	if err != nil {
		return fmt.Errorf("looking for the commit that was sent: %w", err)
	}
	order := strings.Fields(ids)
	for line := range strings.Lines(string(out)) {
		id, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind != "commit" {
			continue
		}
		m.Sent.Head, m.Sent.Start = id, start
		m.Sent.Far = slices.Index(order, id) > 1 // the second may be the first, without the files of submodules
		return nil
	}
	return outboard.Errorf(outboard.NotFound, "the repository of %s has no commit of the one that the work was sent "+
		"from", m.Tree.Root)
}

// commit makes the commit of what was sent. Ignored files that were sent are part of it. A submodule that was
// not sent stays.
func (m *Remade) commit(ctx context.Context, files string) error {
	env := append(isolated(), "GIT_DIR="+m.Tree.Store, "GIT_WORK_TREE="+files,
		"GIT_INDEX_FILE="+filepath.Join(m.dir, "index"))
	git := func(stdin string, args ...string) (string, error) {
		out, err := run(ctx, files, env, strings.NewReader(stdin), args...)
		return strings.TrimSpace(string(out)), err
	}
	if _, err := git("", "add", "-A", "-f", "--", "."); err != nil {
		return fmt.Errorf("collecting what was sent: %w", err)
	}
	when := "@0 +0000"
	if m.Sent.Head != "" {
		listed, err := git("", "ls-tree", "-r", "-z", "--full-tree", m.Sent.Head)
		if err != nil {
			return fmt.Errorf("listing submodules: %w", err)
		}
		var lines strings.Builder
		for line := range records([]byte(listed)) {
			meta, p, _ := strings.Cut(line, "\t")
			f := strings.Fields(meta)
			if list, err := os.ReadDir(filepath.Join(files, p)); len(f) == 3 && f[0] == modeModule && len(list) == 0 &&
				(err == nil || os.IsNotExist(err)) {
				fmt.Fprintf(&lines, "%s %s\t%s\x00", f[0], f[2], p)
			}
		}
		if _, err := git(lines.String(), "update-index", "--replace", "-z", "--index-info"); err != nil {
			return fmt.Errorf("keeping submodules: %w", err)
		}
		if when, err = git("", "log", "-1", "--format=%cI", m.Sent.Head); err != nil {
			return fmt.Errorf("reading the date of a commit: %w", err)
		}
	}
	tree, err := git("", "write-tree")
	if err != nil {
		return fmt.Errorf("writing what was sent: %w", err)
	}
	t := &Tree{Root: files, GitDir: m.Tree.Store}
	m.Sent.Base, err = t.commit(ctx, append(isolated(), "GIT_DIR="+m.Tree.Store, "GIT_AUTHOR_DATE="+when,
		"GIT_COMMITTER_DATE="+when), tree, m.Sent.Head, sentMessage)
	return err
}
