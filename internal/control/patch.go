package control

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxEdits bounds the search for the shortest way from one text to the other; texts further apart are shown
	// as replaced.
	maxEdits = 1000
	// patchContext is how many unchanged lines a patch shows around a change.
	patchContext = 3
)

// patch shows a change as a unified diff, or says why it cannot.
func (ch *FileChange) patch() string {
	var a, b string
	for _, e := range []*FileState{ch.Before, ch.After} {
		switch {
		case e == nil:
		case e.Type != "file":
			return "# " + e.Type + "\n"
		case e.skip != "":
			return "# " + e.skip + "\n"
		case e == ch.Before:
			a = string(e.text)
		default:
			b = string(e.text)
		}
	}
	if a == b {
		return ""
	}
	from, to := patchName("a/", ch.Path), patchName("b/", ch.Path)
	if ch.Before == nil {
		from = "/dev/null"
	}
	if ch.After == nil {
		to = "/dev/null"
	}
	return "--- " + from + "\n+++ " + to + "\n" + unified(lines(a), lines(b))
}

// patchName quotes a name that would not survive a line, as git does.
func patchName(prefix, name string) string {
	if strings.ContainsFunc(name,
		func(r rune) bool { return r < ' ' || r == 0x7f || r == '"' || r == '\\' || r == '\uFFFD' }) {
		return strconv.QuoteToASCII(prefix + name)
	}
	return prefix + name
}

// lines splits a text; all but perhaps the last end in a newline.
func lines(s string) []string {
	out := strings.SplitAfter(s, "\n")
	return out[:len(out)-b2i(out[len(out)-1] == "")]
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// edit is a line of a diff: kept (' '), removed ('-') or added ('+').
type edit struct {
	op   byte
	line string
}

// unified writes the hunks from a to b.
func unified(a, b []string) string {
	edits := diff(a, b)
	var out strings.Builder
	atA, atB := 0, 0 // lines of each side before edits[i]
	for i := 0; i < len(edits); {
		if edits[i].op == ' ' {
			i, atA, atB = i+1, atA+1, atB+1
			continue
		}
		lead := min(patchContext, run(edits[:i]))
		end := i
		for j := i; j < len(edits) && j-end <= 2*patchContext; j++ {
			if edits[j].op != ' ' {
				end = j + 1
			}
		}
		hunk := edits[i-lead : min(len(edits), end+patchContext)]
		na, nb := 0, 0
		for _, e := range hunk {
			na, nb = na+b2i(e.op != '+'), nb+b2i(e.op != '-')
		}
		fmt.Fprintf(&out, "@@ -%s +%s @@\n", extent(atA-lead, na), extent(atB-lead, nb))
		for _, e := range hunk {
			out.WriteByte(e.op)
			out.WriteString(e.line)
			if !strings.HasSuffix(e.line, "\n") {
				out.WriteString("\n\\ No newline at end of file\n")
			}
		}
		i, atA, atB = i-lead+len(hunk), atA-lead+na, atB-lead+nb
	}
	return out.String()
}

// run is how many kept lines edits end with.
func run(edits []edit) (n int) {
	for n < len(edits) && edits[len(edits)-1-n].op == ' ' {
		n++
	}
	return n
}

// extent is a range of lines in a hunk's head. An empty one names the line before it.
func extent(before, n int) string {
	if n == 0 {
		return fmt.Sprintf("%d,0", before)
	}
	return fmt.Sprintf("%d,%d", before+1, n)
}

// diff returns the edits from a to b: the fewest, up to maxEdits (Myers' greedy search), else all of one and
// then all of the other.
func diff(a, b []string) []edit {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var out []edit
	for _, l := range a[:head] {
		out = append(out, edit{' ', l})
	}
	out = append(out, middle(a[head:len(a)-tail], b[head:len(b)-tail])...)
	for _, l := range a[len(a)-tail:] {
		out = append(out, edit{' ', l})
	}
	return out
}

// middle is diff of texts without a common head or tail.
func middle(a, b []string) []edit {
	var trace [][]int // by the number of edits: how far each diagonal k came, at k+d
	x := func(d, k int) int { return trace[d][k+d] }
	for d := 0; d <= min(len(a)+len(b), maxEdits); d++ {
		row := make([]int, 2*d+1)
		trace = append(trace, row)
		for k := -d; k <= d; k += 2 {
			at := 0
			switch {
			case d == 0:
			case k == -d || k != d && x(d-1, k-1) < x(d-1, k+1):
				at = x(d-1, k+1)
			default:
				at = x(d-1, k-1) + 1
			}
			for at < len(a) && at-k >= 0 && at-k < len(b) && a[at] == b[at-k] {
				at++
			}
			row[k+d] = at
			if at >= len(a) && at-k >= len(b) {
				return walk(a, b, trace)
			}
		}
	}
	out := make([]edit, 0, len(a)+len(b))
	for _, l := range a {
		out = append(out, edit{'-', l})
	}
	for _, l := range b {
		out = append(out, edit{'+', l})
	}
	return out
}

// walk goes back through the trace of a search that came to its end.
func walk(a, b []string, trace [][]int) []edit {
	var out []edit
	i, j := len(a), len(b)
	for d := len(trace) - 1; d >= 0; d-- {
		prev, k := 0, i-j
		if d > 0 {
			row := trace[d-1]
			down := k == -d || k != d && row[k-1+d-1] < row[k+1+d-1]
			if down {
				prev = row[k+1+d-1]
			} else {
				prev = row[k-1+d-1] + 1
			}
			for i > prev {
				i, j = i-1, j-1
				out = append(out, edit{' ', a[i]})
			}
			if down {
				j--
				out = append(out, edit{'+', b[j]})
			} else {
				i--
				out = append(out, edit{'-', a[i]})
			}
			continue
		}
		for i > 0 {
			i, j = i-1, j-1
			out = append(out, edit{' ', a[i]})
		}
	}
	slices.Reverse(out)
	return out
}
