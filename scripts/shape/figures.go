package main

import (
	"bufio"
	"fmt"
	"iter"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The bars. A figure that meets its bar may move freely; one that misses it may not get worse.
const (
	maxCode          = 100_000
	minComment       = 15 // percent
	maxPackageFiles  = 25
	maxTypeMethods   = 60
	maxColumns       = 120
	maxMedian        = 12
	maxP95           = 40
	maxFunctionLines = 70
	maxChain         = 8
	maxBack          = 10 // percent
)

const definitions = `
Code is what is no test, no comment and no blank line. A comment line holds nothing but a comment; its share is that of
code and comments. A tab is 4 columns. A function's lines are those of its declaration, braces included. A chain counts
packages. An arrow goes from one file of a package to another that declares a function or method that the first names.
Files are put in the order that turns the fewest arrows around (greedily: Eades, Lin and Smyth); those that still point
upwards run back up.
`

// figure is one number with its bar. Lower is better unless more is set.
type figure struct {
	name  string
	value float64
	bar   float64
	more  bool    // a larger value is better
	unit  string  // printed behind the value
	slack float64 // the baseline is rounded by this much, so that every small change need not touch it
}

func (m *measures) figures() []figure {
	over := func(sizes map[string]int, limit int) (n float64) {
		for _, size := range sizes {
			if size > limit {
				n++
			}
		}
		return n
	}
	lengths := slices.Sorted(maps.Values(m.functions))
	quantile := func(q float64) float64 { return float64(lengths[int(q*float64(len(lengths)-1))]) }
	return []figure{
		{name: "lines of code", value: float64(m.code), bar: maxCode, slack: 500},
		{name: "comment lines", value: percent(m.comment, m.code+m.comment), bar: minComment, more: true, unit: "%",
			slack: 0.1},
		{name: "packages over 25 files", value: over(m.packageFiles, maxPackageFiles)},
		{name: "types over 60 methods", value: over(m.typeMethods, maxTypeMethods)},
		{name: "lines over 120 columns", value: sum(m.wide)},
		{name: "lines over 120 columns in tests", value: sum(m.wideTests)},
		{name: "function length, median", value: quantile(0.5), bar: maxMedian},
		{name: "function length, 95th percentile", value: quantile(0.95), bar: maxP95},
		{name: "functions over 70 lines", value: over(m.functions, maxFunctionLines)},
		{name: "longest import chain", value: float64(len(m.chain)), bar: maxChain},
		{name: "arrows that run back up", value: percent(int(sum(m.back)), m.arrows), bar: maxBack, unit: "%",
			slack: 0.5},
	}
}

func percent(part, whole int) float64 { return 100 * float64(part) / float64(max(whole, 1)) }

func sum(sizes map[string]int) (n float64) {
	for _, size := range sizes {
		n += float64(size)
	}
	return n
}

func mapKeys(m map[string]int) iter.Seq[string] { return maps.Keys(m) }

func (f figure) meets() bool { return !f.worseThan(f.bar) }

func (f figure) worseThan(limit float64) bool {
	if f.more {
		return f.value < limit
	}
	return f.value > limit
}

func (f figure) text(v float64) string {
	if f.unit == "%" {
		return strconv.FormatFloat(v, 'f', 1, 64) + f.unit
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func (f figure) barText() string {
	if f.more {
		return ">= " + f.text(f.bar)
	}
	return "<= " + f.text(f.bar)
}

// rounded is the value that the baseline gets: the next step of slack towards the worse.
func (f figure) rounded() float64 {
	switch {
	case f.slack == 0:
		return f.value
	case f.more:
		return math.Floor(f.value/f.slack) * f.slack
	}
	return math.Ceil(f.value/f.slack) * f.slack
}

// worse names the figures that miss their bar and are worse than in the baseline. One that the baseline lacks is new,
// and counts as worse until it is written there.
func worse(figures []figure, old map[string]float64) (names []string) {
	for _, f := range figures {
		if f.meets() {
			continue
		}
		if base, ok := old[f.name]; !ok {
			names = append(names, f.name+" (not in the baseline)")
		} else if f.worseThan(base) {
			names = append(names, fmt.Sprintf("%s (%s, was %s)", f.name, f.text(f.value), f.text(base)))
		}
	}
	return names
}

func formatBaseline(figures []figure) string {
	var b strings.Builder
	b.WriteString("# What `make shape` may not find worse than this. `go run ./scripts/shape -write` writes it.\n")
	for _, f := range figures {
		fmt.Fprintf(&b, "%s: %s\n", f.name, strings.TrimSuffix(f.text(f.rounded()), f.unit))
	}
	return b.String()
}

func readBaseline(path string) (map[string]float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	old := map[string]float64{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, text, _ := strings.Cut(line, ": ")
		if old[name], err = strconv.ParseFloat(text, 64); err != nil {
			return nil, fmt.Errorf("%s: %q is not a figure: %w", path, line, err)
		}
	}
	return old, lines.Err()
}
