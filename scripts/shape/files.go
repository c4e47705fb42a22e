package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"unicode/utf8"
)

// measures is what was found. Maps go from a name to a size.
type measures struct {
	code, comment int
	packageFiles  map[string]int // directory -> files that are no tests
	typeMethods   map[string]int // directory.type -> methods
	functions     map[string]int // file:line name -> lines
	wide          map[string]int // file -> lines over 120 columns
	wideTests     map[string]int
	chain         []string       // packages of the longest import chain
	arrows        int            // arrows between files of one package
	back          map[string]int // package -> those that run back up
}

func measure(root string) (*measures, error) {
	m := &measures{packageFiles: map[string]int{}, typeMethods: map[string]int{}, functions: map[string]int{},
		wide: map[string]int{}, wideTests: map[string]int{}, back: map[string]int{}}
	files, tests, err := goFiles(root)
	if err != nil {
		return nil, err
	}
	methods := map[string]bool{} // a method that several systems have counts once
	for _, path := range files {
		if err := m.file(path, methods); err != nil {
			return nil, err
		}
	}
	for _, path := range tests {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m.wideTests[path] = wideLines(text)
	}
	if len(m.functions) == 0 {
		return nil, fmt.Errorf("no Go code below %s", root)
	}
	return m, m.graph(root)
}

func (m *measures) file(path string, methods map[string]bool) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	m.packageFiles[dir]++
	m.wide[path] = wideLines(text)
	code, comment := countLines(text)
	m.code += code
	m.comment += comment
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		from, to := set.Position(fn.Pos()), set.Position(fn.End())
		m.functions[fmt.Sprintf("%s:%d %s", path, from.Line, fn.Name.Name)] = to.Line - from.Line + 1
		if fn.Recv == nil {
			continue
		}
		owner := dir + "." + receiver(fn.Recv.List[0].Type)
		if name := owner + "." + fn.Name.Name; !methods[name] {
			methods[name] = true
			m.typeMethods[owner]++
		}
	}
	return nil
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// countLines counts the lines that hold code, and those that hold only a comment. A blank line is neither, also in a
// string of several lines.
func countLines(text []byte) (code, comment int) {
	const isCode, isComment = 1, 2
	lines := bytes.Split(text, []byte("\n"))
	kinds := make([]int, len(lines)+1)
	set := token.NewFileSet()
	file := set.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && lit == "\n" { // not in the text
			continue
		}
		first := file.Line(pos)
		for i := range bytes.Count([]byte(lit), []byte("\n")) + 1 {
			if tok == token.COMMENT {
				kinds[first+i] |= isComment
			} else {
				kinds[first+i] |= isCode
			}
		}
	}
	for i, line := range lines {
		switch kind := kinds[i+1]; {
		case len(bytes.TrimSpace(line)) == 0:
		case kind&isCode != 0:
			code++
		case kind == isComment:
			comment++
		}
	}
	return code, comment
}

func wideLines(text []byte) (n int) {
	for line := range bytes.Lines(text) {
		line = bytes.TrimRight(line, "\r\n")
		if utf8.RuneCount(line)+3*bytes.Count(line, []byte("\t")) > maxColumns {
			n++
		}
	}
	return n
}
