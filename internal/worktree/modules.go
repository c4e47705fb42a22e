package worktree

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/outboard-dev/outboard"
)

// maxModules bounds the submodules and nested repositories that are sent.
const maxModules = 1000

// module is a submodule or nested repository whose files are sent as those of a plain directory.
type module struct {
	path string // in the repository around it
	head string // tree of the commit that the repository around it names, or of its own HEAD
	work string // tree of its files
}

// modules gathers the submodules and nested repositories that a temporary index names, and those that are listed.
func (g *gathering) modules(ctx context.Context, t *Tree, env []string, at string, unborn []string) ([]module, error) {
	out, err := t.work(ctx, env, "ls-files", "-s", "-z")
	if err != nil {
		return nil, fmt.Errorf("listing submodules: %w", err)
	}
	named := map[string]string{}
	paths := unborn
	for line := range records(out) {
		meta, p, _ := strings.Cut(line, "\t")
		if f := strings.Fields(meta); len(f) == 3 && f[0] == modeModule {
			paths, named[p] = append(paths, p), f[1]
		}
	}
	var list []module
	for _, p := range paths {
		whole := path.Join(at, p)
		m, ok, err := g.module(ctx, t, p, whole, named[p])
		if err != nil {
			return nil, fmt.Errorf("collecting %s: %w", whole, err)
		}
		if !ok {
			g.s.Absent = append(g.s.Absent, whole)
			continue
		}
		g.s.Modules = append(g.s.Modules, whole)
		list = append(list, m)
	}
	return list, nil
}

// module gathers one, unless it is not checked out or git cannot keep its files together with the rest.
func (g *gathering) module(ctx context.Context, t *Tree, p, whole, oid string) (m module, ok bool, err error) {
	dir := filepath.Join(t.Root, filepath.FromSlash(p))
	if len(g.s.Modules) >= maxModules || !exists(filepath.Join(dir, ".git")) {
		return m, false, nil
	}
	sub := &Tree{Root: dir, Store: g.store.Store}
	found, err := sub.find(ctx)
	if outboard.KindOf(err) == outboard.Invalid || err == nil && !found {
		return m, false, nil
	}
	if err != nil {
		return m, false, err
	}
	// it is no repository: the one around it was found
	if top, err := filepath.EvalSymlinks(dir); err != nil || top != sub.Root {
		return m, false, err
	}
	theirs, err := sub.user(ctx, "rev-parse", "--show-object-format")
	if err != nil {
		return m, false, nil
	}
	if ours, err := g.store.objectFormat(ctx); err != nil || strings.TrimSpace(string(theirs)) != ours {
		return m, false, err
	}
	if err := g.store.borrow(ctx, dir); err != nil {
		return m, false, err
	}
	before := len(g.s.Modules)
	tr, err := g.repository(ctx, sub, whole)
	if err != nil {
		return m, false, err
	}
	m = module{path: p, head: tr.head, work: tr.work}
	if nested := len(g.s.Modules) > before; !nested && oid != "" {
		if tree, err := sub.oid(ctx, nil, "rev-parse", "-q", "--verify", oid+"^{tree}"); err == nil {
			m.head = tree
		}
	}
	return m, true, nil
}

// flatten writes the tree of an index, in which each module is a plain directory. With from, the index is filled
// with that tree first.
func (g *gathering) flatten(ctx context.Context, t *Tree, from, index string, modules []module,
	tree func(module) string) (string, error) {
	if from != "" && len(modules) == 0 {
		return from, nil
	}
	env := []string{"GIT_INDEX_FILE=" + index}
	if from != "" {
		if _, err := t.work(ctx, env, "read-tree", from); err != nil {
			return "", fmt.Errorf("reading the last commit: %w", err)
		}
	}
	empty, err := t.oid(ctx, nil, "hash-object", "-t", "tree", os.DevNull)
	if err != nil {
		return "", err
	}
	for _, m := range modules {
		if _, err := t.workIn(ctx, env, zeros([]string{m.path}), "update-index", "--force-remove", "-z",
			"--stdin"); err != nil {
			return "", fmt.Errorf("making %s a directory: %w", m.path, err)
		}
		if tree(m) == empty {
			continue
		}
		if _, err := t.work(ctx, env, "read-tree", "--prefix="+m.path+"/", tree(m)); err != nil {
			return "", fmt.Errorf("making %s a directory: %w", m.path, err)
		}
	}
	return t.oid(ctx, env, "write-tree")
}
