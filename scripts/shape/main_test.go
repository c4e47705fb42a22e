package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Wrong here, the figures count something else than they say.
func TestLinesAreCountedByWhatTheyHold(t *testing.T) {
	text := strings.Join([]string{
		"// Package p.", "package p", "", "/* a", "", "b */",
		"var x = 1 // behind code", "var s = `one", "", "three`", "",
	}, "\n")
	if code, comment := countLines([]byte(text)); code != 4 || comment != 3 {
		t.Errorf("%d lines of code and %d of comment, want 4 and 3", code, comment)
	}
	x := strings.Repeat("x", 116)
	wide := strings.Join([]string{"xxxxx" + x, "äääx" + x, "\t" + x, "\tx" + x, ""}, "\n")
	if n := wideLines([]byte(wide)); n != 2 {
		t.Errorf("%d wide lines, want 2", n)
	}
}

// Wrong here, a package in layers is told to have arrows that run back up, or a tangled one to have none.
func TestArrowsThatRunBackUp(t *testing.T) {
	uses := func(pairs ...string) map[string]map[string]bool {
		u := map[string]map[string]bool{}
		for _, p := range pairs {
			from, to, _ := strings.Cut(p, ">")
			for _, name := range []string{from, to} {
				if u[name] == nil {
					u[name] = map[string]bool{}
				}
			}
			u[from][to] = true
		}
		return u
	}
	for _, c := range []struct {
		pairs []string
		back  int
	}{
		{[]string{"a>b", "a>c", "b>c", "c>d"}, 0},
		{[]string{"z>y", "y>x", "z>x"}, 0},
		{[]string{"a>b", "b>a"}, 1},
		{[]string{"a>b", "b>c", "c>a", "a>d", "d>e"}, 1},
		{[]string{"a>b", "b>a", "c>d", "d>c"}, 2},
	} {
		if n := backArrows(uses(c.pairs...)); n != c.back {
			t.Errorf("%v: %d arrows run back up, want %d", c.pairs, n, c.back)
		}
	}
}

func TestLongestChain(t *testing.T) {
	own := map[string]*listed{
		"a": {Imports: []string{"fmt", "c", "b"}},
		"b": {Imports: []string{"c"}},
		"c": {Imports: []string{"d"}},
		"d": {},
	}
	if chain := longestChain(own); !slices.Equal(chain, []string{"a", "b", "c", "d"}) {
		t.Errorf("the longest chain is %v", chain)
	}
}

// Wrong here, CI passes what got worse, or refuses what is within its bar.
func TestOnlyWhatMissesItsBarMayNotGetWorse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "baseline.txt")
	before := []figure{
		{name: "large", value: 30, bar: 25},
		{name: "small", value: 3, bar: 25},
		{name: "comments", value: 8.34, bar: 15, more: true, unit: "%", slack: 0.1},
	}
	if err := os.WriteFile(path, []byte(formatBaseline(before)), 0o644); err != nil {
		t.Fatal(err)
	}
	old, err := readBaseline(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		figure figure
		worse  bool
	}{
		{before[0], false},
		{before[2], false},
		{figure{name: "large", value: 31, bar: 25}, true},
		{figure{name: "large", value: 26, bar: 25}, false},
		{figure{name: "small", value: 25, bar: 25}, false},
		{figure{name: "comments", value: 8.2, bar: 15, more: true}, true},
		{figure{name: "comments", value: 8.31, bar: 15, more: true}, false},
		{figure{name: "new", value: 1, bar: 0}, true},
		{figure{name: "new", value: 0, bar: 0}, false},
	} {
		if got := worse([]figure{c.figure}, old); (len(got) > 0) != c.worse {
			t.Errorf("%s %v: worse is %v, want %v", c.figure.name, c.figure.value, got, c.worse)
		}
	}
}

// The baseline is compared by name: a figure that it lacks would only be noticed where its bar is missed.
func TestBaselineHasEveryFigure(t *testing.T) {
	old, err := readBaseline("baseline.txt")
	if err != nil {
		t.Fatal(err)
	}
	m := &measures{functions: map[string]int{"f": 1}}
	figures := m.figures()
	for _, f := range figures {
		if _, ok := old[f.name]; !ok {
			t.Errorf("baseline.txt has no %q", f.name)
		}
	}
	if len(old) != len(figures) {
		t.Errorf("baseline.txt has %d figures, want %d", len(old), len(figures))
	}
}
