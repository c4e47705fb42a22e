package guest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// Limits of glob and grep. The first three are the executor's of the reference wire.
const (
	maxGlob     = 200
	maxGrep     = 100 << 10
	maxGrepFile = 8 << 20
	// maxVisited bounds names looked at by one search.
	maxVisited = 500_000
	// maxGrepLine bounds one line of the answer, against minified files.
	maxGrepLine = 2000
	// maxBraces bounds the patterns that braces expand to.
	maxBraces = 64
)

// errStop ends a tree walk early.
var errStop = errors.New("enough")

// search visits what is below dir for a search: within limits, past what cannot be read.
func (f files) search(ctx context.Context, dir string, w io.Writer, visit func(*node) (bool, error)) error {
	root, err := f.openTreeWith(dir, f.opts())
	if err != nil {
		return fmt.Errorf("%s: %s", dir, f.plain(err))
	}
	defer root.Close()
	seen := 0
	err = tree(root, "", 0, func(n *node) (bool, error) {
		if seen++; seen > maxVisited {
			fmt.Fprintf(w, "[search ended after %d names]\n", maxVisited)
			return false, errStop
		}
		if seen%256 == 0 && ctx.Err() != nil {
			return false, ctx.Err()
		}
		return visit(n)
	}, func(string, error) error { return nil })
	if err != nil && err != errStop {
		return err
	}
	return nil
}

// glob writes the paths that match a pattern, the newest first.
func (f files) glob(ctx context.Context, input json.RawMessage, w io.Writer) error {
	var in struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
	}
	if err := unpack(input, &in, nil); err != nil {
		return err
	}
	dir, pattern := cmp.Or(in.Path, f.base()), in.Pattern
	if strings.HasPrefix(pattern, "/") {
		dir, pattern = SplitPattern(pattern)
	}
	if pattern == "" {
		return errors.New("pattern is required")
	}
	var patterns [][]string
	for _, p := range braces(pattern) {
		parts := strings.Split(p, "/")
		if slices.Contains(parts, "..") {
			return errors.New(`pattern must not contain ".."`)
		}
		for _, part := range parts {
			if _, err := path.Match(part, ""); err != nil {
				return fmt.Errorf("pattern %q: %w", in.Pattern, err)
			}
		}
		patterns = append(patterns, parts)
	}
	type hit struct {
		path  string
		mtime syscall.Timespec
	}
	var hits []hit
	var notes bytes.Buffer
	err := f.search(ctx, dir, &notes, func(n *node) (bool, error) {
		names := strings.Split(n.path, "/")
		if slices.ContainsFunc(patterns, func(p []string) bool { return matches(p, names) }) {
			hits = append(hits, hit{n.path, n.st.Mtim})
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(b.mtime.Sec, a.mtime.Sec), cmp.Compare(b.mtime.Nsec, a.mtime.Nsec))
	})
	base := f.absolute(dir)
	var found []Hit
	for _, h := range hits[:min(len(hits), maxGlob)] {
		found = append(found, Hit{Path: path.Join(base, h.path)})
	}
	if len(hits) > maxGlob {
		fmt.Fprintf(&notes, "[the newest %d of %d]\n", maxGlob, len(hits))
	}
	return f.tell(w, found, notes.String())
}

// tell writes what a search found, and what there is to say about it.
func (f files) tell(w io.Writer, found []Hit, notes string) error {
	b := RenderHits(found, notes)
	if f.judged {
		b = encodeHits(found, notes)
	}
	_, err := w.Write(b)
	return err
}

// absolute is how results name a directory that was given by the caller.
func (f files) absolute(dir string) string {
	if !strings.HasPrefix(dir, "/") {
		dir = path.Join(f.base(), dir)
	}
	return path.Clean(f.cfg.shown(dir))
}

// braces expands {a,b} alternatives, nested ones included. What would expand to too many stays as it is.
func braces(p string) []string {
	out := []string{p}
	for i := 0; i < len(out); {
		open, end, commas := brace(out[i])
		if open < 0 || len(out) >= maxBraces {
			i++
			continue
		}
		p, start := out[i], open+1
		var alternatives []string
		for _, comma := range append(commas, end) {
			alternatives = append(alternatives, p[:open]+p[start:comma]+p[end+1:])
			start = comma + 1
		}
		out = slices.Replace(out, i, i+1, alternatives...)
	}
	return out
}

// brace finds the first complete pair of braces with commas of its own.
func brace(p string) (open, end int, commas []int) {
	for open = range len(p) {
		if p[open] != '{' {
			continue
		}
		depth := 0
		commas = nil
		for end = open; end < len(p); end++ {
			switch p[end] {
			case '{':
				depth++
			case ',':
				if depth == 1 {
					commas = append(commas, end)
				}
			case '}':
				depth--
			}
			if depth == 0 {
				break
			}
		}
		if end < len(p) && len(commas) > 0 {
			return open, end, commas
		}
	}
	return -1, 0, nil
}

// matches reports whether path components match pattern components, of which "**" stands for any number. It is
// linear in the product of the lengths: rows of a table instead of backtracking.
func matches(pattern, names []string) bool {
	row := make([]bool, len(names)+1) // row[j]: the pattern so far matches the first j names
	row[0] = true
	for _, p := range pattern {
		next := make([]bool, len(names)+1)
		if p == "**" {
			any := false
			for j := range row {
				any = any || row[j]
				next[j] = any
			}
		} else {
			for j, name := range names {
				if row[j] {
					ok, err := path.Match(p, name)
					next[j+1] = ok && err == nil
				}
			}
		}
		row = next
	}
	return row[len(names)]
}

// grep writes the lines that match a regular expression, as path:line:text.
func (f files) grep(ctx context.Context, input json.RawMessage, w io.Writer) error {
	var in struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
	}
	if err := unpack(input, &in, nil); err != nil {
		return err
	}
	if in.Pattern == "" {
		return errors.New("pattern is required")
	}
	re, err := regexp.Compile(in.Pattern)
	if err != nil {
		return fmt.Errorf("pattern: %w", err)
	}
	dir := cmp.Or(in.Path, f.base())
	g := &grepper{re: re, base: f.absolute(dir)}
	if file, _, err := f.openWith(dir, f.opts()); err == nil {
		g.file(file, g.base)
		file.Close()
	} else if err := f.search(ctx, dir, &g.notes, g.visit); err != nil {
		return err
	}
	if g.cut {
		fmt.Fprintf(&g.notes, "[output ended after %d bytes]\n", maxGrep)
	}
	return f.tell(w, g.found, g.notes.String())
}

// grepper collects matches.
type grepper struct {
	re    *regexp.Regexp
	base  string
	found []Hit
	size  int // of what was found, as it is told
	notes bytes.Buffer
	cut   bool
}

func (g *grepper) visit(n *node) (bool, error) {
	if n.is(syscall.S_IFDIR) {
		return n.name != ".git" && n.name != "node_modules", nil
	}
	if !n.is(syscall.S_IFREG) || n.st.Size > maxGrepFile {
		return false, nil
	}
	f, _, err := openRegular(n.dir, n.name)
	if err != nil {
		return false, nil
	}
	defer f.Close()
	g.file(f, path.Join(g.base, n.path))
	if g.cut {
		return false, errStop
	}
	return false, nil
}

// file searches one file, unless it is binary or too large.
func (g *grepper) file(f *os.File, name string) {
	b, whole, err := readAll(f, maxGrepFile)
	if err != nil || !whole || bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0 {
		return
	}
	n := 0
	for line := range bytes.Lines(b) {
		n++
		line = bytes.TrimSuffix(line, []byte("\n"))
		if !g.re.Match(line) {
			continue
		}
		text := fmt.Appendf(nil, ":%d:%s", n, line[:min(len(line), maxGrepLine)])
		if len(line) > maxGrepLine {
			text = fmt.Appendf(text, " [%d bytes more]", len(line)-maxGrepLine)
		}
		if g.size += len(name) + len(text) + 1; g.size > maxGrep {
			g.cut = true
			return
		}
		g.found = append(g.found, Hit{Path: name, Text: string(text)})
	}
}
