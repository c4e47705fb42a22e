package worktree

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"
)

// instructionNames are the files in which repositories instruct agents.
var instructionNames = []string{"AGENTS.md", "CLAUDE.md"}

const (
	// maxInstruction is how much of one such file is taken, and maxInstructions of all: they are in every
	// request to the model.
	maxInstruction  = 32 << 10
	maxInstructions = 96 << 10
)

// Instruction is a file of the work that instructs agents.
type Instruction struct {
	Path string
	Text string
	Cut  bool // it was longer
}

// Instructions returns the instructions for agents in what was sent: those at the top, and in each directory
// down to the one where the user was, in this order. Files that hold the same as an earlier one, links, and
// files that are no text are left out.
func (t *Tree) Instructions(ctx context.Context, s *Snapshot) ([]Instruction, error) {
	dirs := []string{""}
	for part := range strings.SplitSeq(t.Dir, "/") {
		if part != "" {
			dirs = append(dirs, path.Join(dirs[len(dirs)-1], part))
		}
	}
	var out []Instruction
	seen, left := map[string]bool{}, maxInstructions
	for _, dir := range dirs {
		for _, name := range instructionNames {
			file := path.Join(dir, name)
			oid, size, err := t.sentFile(ctx, s.Base, file)
			if err != nil {
				return nil, err
			}
			if oid == "" || size == 0 || size > maxGitOutput || seen[oid] {
				continue
			}
			seen[oid] = true
			text, err := t.work(ctx, nil, "cat-file", "blob", oid)
			if err != nil {
				return nil, fmt.Errorf("reading %s: %w", file, err)
			}
			if in, ok := instruction(file, text, min(maxInstruction, left)); ok {
				out, left = append(out, in), left-len(in.Text)
			}
		}
	}
	return out, nil
}

// instruction takes at most most bytes of a text, up to the end of a line.
func instruction(file string, text []byte, most int) (Instruction, bool) {
	in := Instruction{Path: file, Text: string(text), Cut: len(text) > most}
	if !utf8.Valid(text) || strings.ContainsRune(in.Text, 0) || most <= 0 {
		return in, false
	}
	if in.Cut {
		in.Text = in.Text[:strings.LastIndexByte(in.Text[:most], '\n')+1]
	}
	return in, strings.TrimSpace(in.Text) != ""
}

// sentFile returns the id and size of a regular file in a commit of what was sent, "" when there is none.
func (t *Tree) sentFile(ctx context.Context, commit, file string) (oid string, size int64, err error) {
	line, err := t.work(ctx, nil, "ls-tree", "-l", "--full-tree", commit, "--", file)
	if err != nil {
		return "", 0, fmt.Errorf("looking for %s: %w", file, err)
	}
	f := strings.Fields(string(line)) // mode, type, id, size, path
	if len(f) < 5 || f[0] != "100644" && f[0] != "100755" || f[1] != "blob" {
		return "", 0, nil
	}
	size, err = strconv.ParseInt(f[3], 10, 64)
	return f[2], size, err
}
