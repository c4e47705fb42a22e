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
func (s *server) search(ctx context.Context, dir string, w io.Writer, visit func(*node) (bool, error)) error {
	root, err := s.openTree(dir)
	if err != nil {
		return fmt.Errorf("%s: %s", dir, plain(err))
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
func (s *server) glob(ctx context.Context, input json.RawMessage, w io.Writer) error {
	var in struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
	}
	if err := unpack(input, &in, nil); err != nil {
		return err
	}
	dir, pattern := cmp.Or(in.Path, s.base()), in.Pattern
	if strings.HasPrefix(pattern, "/") {
		dir, pattern = splitPattern(pattern)
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
	err := s.search(ctx, dir, &notes, func(n *node) (bool, error) {
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
	if len(hits) == 0 {
		fmt.Fprint(w, "no matches")
	}
	base := s.absolute(dir)
	for _, h := range hits[:min(len(hits), maxGlob)] {
		fmt.Fprintln(w, path.Join(base, h.path))
	}
	if len(hits) > maxGlob {
		fmt.Fprintf(w, "[the newest %d of %d]\n", maxGlob, len(hits))
	}
	_, err = notes.WriteTo(w)
	return err
}

// absolute is how results name a directory that was given by the caller.
func (s *server) absolute(dir string) string {
	if !strings.HasPrefix(dir, "/") {
		dir = path.Join(s.base(), dir)
	}
	return path.Clean(s.cfg.shown(dir))
}

// splitPattern cuts an absolute pattern before its first component with a special character.
func splitPattern(p string) (dir, pattern string) {
	parts := strings.Split(p, "/")
	i := slices.IndexFunc(parts, func(c string) bool { return strings.ContainsAny(c, `*?[{\`) })
	if i < 0 {
		i = len(parts) - 1
	}
	return cmp.Or(strings.Join(parts[:i], "/"), "/"), strings.Join(parts[i:], "/")
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

// matches reports whether path components match pattern components, of which "**" stands for any number. It is linear in the
// product of the lengths: rows of a table instead of backtracking.
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
func (s *server) grep(ctx context.Context, input json.RawMessage, w io.Writer) error {
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
	dir := cmp.Or(in.Path, s.base())
	g := &grepper{re: re, base: s.absolute(dir)}
	if f, _, err := s.open(dir); err == nil {
		g.file(f, g.base)
		f.Close()
	} else if err := s.search(ctx, dir, &g.notes, g.visit); err != nil {
		return err
	}
	if g.out.Len() == 0 {
		fmt.Fprint(w, "no matches")
	}
	if g.out.WriteTo(w); g.cut {
		fmt.Fprintf(w, "[output ended after %d bytes]\n", maxGrep)
	}
	_, err = g.notes.WriteTo(w)
	return err
}

// grepper collects matches.
type grepper struct {
	re    *regexp.Regexp
	base  string
	out   bytes.Buffer
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
		if g.out.Len()+len(name)+min(len(line), maxGrepLine) > maxGrep {
			g.cut = true
			return
		}
		fmt.Fprintf(&g.out, "%s:%d:%s", name, n, line[:min(len(line), maxGrepLine)])
		if len(line) > maxGrepLine {
			fmt.Fprintf(&g.out, " [%d bytes more]", len(line)-maxGrepLine)
		}
		g.out.WriteByte('\n')
	}
}
