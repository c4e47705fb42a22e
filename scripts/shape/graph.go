package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// listed is a package as `go list` tells it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles, Imports        []string
	Module                  *struct{ Main bool }
}

// graph finds the longest import chain and the arrows inside packages, for the system that it runs on.
func (m *measures) graph(root string) error {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Imports,Module", "./...")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	exports, own := map[string]string{}, map[string]*listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &listed{}
		if err := d.Decode(p); err == io.EOF {
			break
		} else if err != nil {
			return fmt.Errorf("reading go list: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main {
			own[p.ImportPath] = p
		}
	}
	m.chain = longestChain(own)
	for _, path := range slices.Sorted(func(yield func(string) bool) {
		for path := range own {
			if !yield(path) {
				return
			}
		}
	}) {
		uses, err := fileUses(own[path], exports)
		if err != nil {
			return err
		}
		for _, to := range uses {
			m.arrows += len(to)
		}
		m.back[path] = backArrows(uses)
	}
	return nil
}

func longestChain(own map[string]*listed) []string {
	longest := map[string][]string{}
	var from func(path string) []string
	from = func(path string) []string {
		if chain, ok := longest[path]; ok {
			return chain
		}
		var tail []string
		for _, imp := range own[path].Imports {
			if own[imp] == nil {
				continue
			}
			if c := from(imp); len(c) > len(tail) {
				tail = c
			}
		}
		longest[path] = append([]string{path}, tail...)
		return longest[path]
	}
	var chain []string
	for path := range own {
		if c := from(path); len(c) > len(chain) || len(c) == len(chain) && slices.Compare(c, chain) < 0 {
			chain = c
		}
	}
	return chain
}

// fileUses returns, for each file of a package, the other files of it whose functions and methods it names.
func fileUses(p *listed, exports map[string]string) (map[string]map[string]bool, error) {
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	cfg := types.Config{Importer: importer.ForCompiler(set, "gc", open)}
	pkg, err := cfg.Check(p.ImportPath, set, files, info)
	if err != nil {
		return nil, fmt.Errorf("checking %s: %w", p.ImportPath, err)
	}
	uses := map[string]map[string]bool{}
	for _, name := range p.GoFiles {
		uses[name] = map[string]bool{}
	}
	for ident, obj := range info.Uses {
		fn, ok := obj.(*types.Func)
		if !ok || fn.Pkg() != pkg {
			continue
		}
		from := filepath.Base(set.Position(ident.Pos()).Filename)
		to := filepath.Base(set.Position(fn.Pos()).Filename)
		if from != to && strings.HasSuffix(to, ".go") {
			uses[from][to] = true
		}
	}
	return uses, nil
}

// backArrows counts the arrows that point upwards in the order of Eades, Lin and Smyth: a file that nothing left
// uses is next, one that uses nothing left is last, and else the one that uses the most more than it is used.
func backArrows(uses map[string]map[string]bool) (back int) {
	left := map[string]bool{}
	for name := range uses {
		left[name] = true
	}
	var head, tail []string
	for len(left) > 0 {
		name, sink := next(uses, left)
		delete(left, name)
		if sink {
			tail = append(tail, name)
		} else {
			head = append(head, name)
		}
	}
	slices.Reverse(tail)
	place := map[string]int{}
	for i, name := range append(head, tail...) {
		place[name] = i
	}
	for from, to := range uses {
		for name := range to {
			if place[name] < place[from] {
				back++
			}
		}
	}
	return back
}

// next chooses a file of those left, and says whether it uses none of the others.
func next(uses map[string]map[string]bool, left map[string]bool) (name string, sink bool) {
	out, in := map[string]int{}, map[string]int{}
	var names []string
	for from := range left {
		names = append(names, from)
		for to := range uses[from] {
			if left[to] {
				out[from]++
				in[to]++
			}
		}
	}
	slices.Sort(names)
	best := names[0]
	for _, n := range names {
		switch {
		case out[n] == 0:
			return n, true
		case in[n] == 0:
			return n, false
		case out[n]-in[n] > out[best]-in[best]:
			best = n
		}
	}
	return best, false
}
