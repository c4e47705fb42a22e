// Shape measures the shape of the code: how much there is, and how large its rooms are. It prints each figure beside
// its bar and, with -check, fails if a figure that misses its bar is worse than in baseline.txt.
//
//	go run ./scripts/shape            print the figures
//	go run ./scripts/shape -check     the same; exit 1 if a figure got worse
//	go run ./scripts/shape -write     write baseline.txt
//	go run ./scripts/shape -worst     also name the largest packages, types and functions
//
// main.go reads the flags and prints, figures.go defines the figures, files.go counts lines, and graph.go finds what
// depends on what.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	check := flag.Bool("check", false, "exit 1 if a figure that misses its bar is worse than the baseline")
	write := flag.Bool("write", false, "write the figures of today to the baseline")
	worst := flag.Bool("worst", false, "name the largest packages, types and functions")
	baseline := flag.String("baseline", "scripts/shape/baseline.txt", "`file` of the figures that must not get worse")
	flag.Parse()
	if err := run(os.Stdout, *baseline, *check, *write, *worst); err != nil {
		fmt.Fprintln(os.Stderr, "shape:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, baseline string, check, write, worst bool) error {
	m, err := measure(".")
	if err != nil {
		return err
	}
	figures := m.figures()
	old, err := readBaseline(baseline)
	if err != nil && !(write && os.IsNotExist(err)) {
		return err
	}
	printFigures(out, figures, old)
	if worst {
		printWorst(out, m)
	}
	if write {
		return os.WriteFile(baseline, []byte(formatBaseline(figures)), 0o644)
	}
	if names := worse(figures, old); check && len(names) > 0 {
		return fmt.Errorf("worse than %s: %s; `go run ./scripts/shape -worst` names the largest. Mend it, or say in "+
			"the commit why "+
			"the baseline moves and write it with `go run ./scripts/shape -write`", baseline, strings.Join(names, ", "))
	}
	return nil
}

func printFigures(out io.Writer, figures []figure, old map[string]float64) {
	fmt.Fprintf(out, "%-42s %12s %12s %12s\n", "figure", "today", "bar", "baseline")
	for _, f := range figures {
		base, mark := "-", ""
		if v, ok := old[f.name]; ok {
			base = f.text(v)
		}
		if !f.meets() {
			mark = "  misses its bar"
		}
		fmt.Fprintf(out, "%-42s %12s %12s %12s%s\n", f.name, f.text(f.value), f.barText(), base, mark)
	}
	fmt.Fprint(out, definitions)
}

// printWorst names what a reader would split first.
func printWorst(out io.Writer, m *measures) {
	top := func(title string, sizes map[string]int, over int) {
		fmt.Fprintf(out, "\n%s\n", title)
		names := slices.SortedFunc(mapKeys(sizes), func(a, b string) int {
			return cmp.Or(sizes[b]-sizes[a], strings.Compare(a, b))
		})
		for _, name := range names[:min(len(names), 20)] {
			if sizes[name] > over {
				fmt.Fprintf(out, "  %6d %s\n", sizes[name], name)
			}
		}
	}
	top("packages over 25 files", m.packageFiles, maxPackageFiles)
	top("types over 60 methods", m.typeMethods, maxTypeMethods)
	top("functions over 70 lines", m.functions, maxFunctionLines)
	top("files with lines over 120 columns", m.wide, 0)
	top("tests with lines over 120 columns", m.wideTests, 0)
	top("packages with arrows that run back up", m.back, 0)
	fmt.Fprintf(out, "\nlongest import chain\n  %s\n", strings.Join(m.chain, " -> "))
}

// goFiles lists the Go files of the module, tests apart. Fixtures and other modules are left out.
func goFiles(root string) (files, tests []string, err error) {
	err = filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := e.Name()
		if e.IsDir() {
			if path != root && (name == "testdata" || strings.HasPrefix(name, ".") || name == "node_modules" ||
				isModule(path)) {
				return filepath.SkipDir
			}
			return nil
		}
		switch {
		case strings.HasSuffix(name, "_test.go"):
			tests = append(tests, path)
		case strings.HasSuffix(name, ".go"):
			files = append(files, path)
		}
		return nil
	})
	return files, tests, err
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}
