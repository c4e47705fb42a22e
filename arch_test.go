package outboard_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/outboard-dev/outboard"

// layers is the import table of docs/design/0003-import-table.md: what each package may import of this module. A package that is not
// listed may not exist: add it here and there, with the reason for its place.
var layers = map[string][]string{
	"":                         {},
	"internal/guest":           {"internal/guest/form", "internal/guest/spawn", "internal/guest/uplink"},
	"internal/guest/spawn":     {},
	"internal/guest/form":      {},
	"internal/guest/uplink":    {},
	"internal/guest/sftp":      {},
	"internal/guest/boot":      {"internal/guest/form", "internal/guest/uplink"},
	"internal/guest/spawner":   {"internal/guest/boot"},
	"internal/term":            {},
	"internal/text":            {},
	"internal/schema":          {"internal/text"},
	"internal/audit":           {""},
	"internal/store":           {"", "internal/audit"},
	"internal/blob":            {""},
	"internal/llm":             {"", "internal/text"},
	"internal/live":            {""},
	"internal/policy":          {"", "internal/term", "internal/text"},
	"internal/client":          {""},
	"internal/kill":            {""},
	"internal/worktree":        {""},
	"internal/outbound":        {},
	"internal/netrule":         {"", "internal/outbound", "internal/text"},
	"internal/sandbox":         {"", "internal/guest"},
	"internal/config":          {"", "internal/llm", "internal/policy", "internal/netrule"},
	"internal/harness":         {"", "internal/llm"},
	"internal/tool":            {"", "internal/guest", "internal/outbound", "internal/text"},
	"internal/image":           {"", "internal/outbound", "internal/text"},
	"internal/fleet":           {"", "internal/store", "internal/blob", "internal/sandbox", "internal/guest", "internal/image", "internal/text"},
	"internal/sandbox/native":  {"", "internal/sandbox", "internal/guest", "internal/guest/boot", "internal/guest/form", "internal/guest/spawner", "internal/guest/uplink"},
	"internal/login":           {""},
	"internal/vault":           {"", "internal/store", "internal/outbound"},
	"internal/egress":          {"", "internal/store", "internal/netrule", "internal/outbound", "internal/sandbox", "internal/text"},
	"internal/notify":          {"", "internal/store", "internal/outbound"},
	"internal/runner":          {"", "internal/store", "internal/blob", "internal/llm", "internal/live", "internal/policy", "internal/harness", "internal/tool", "internal/schema", "internal/fleet", "internal/sandbox", "internal/guest", "internal/text"},
	"internal/control":         {"", "internal/audit", "internal/login", "internal/policy", "internal/schema", "internal/vault", "internal/store", "internal/netrule", "internal/blob", "internal/llm", "internal/live", "internal/fleet", "internal/text"},
	"internal/api":             {"", "internal/control", "internal/text"},
	"internal/e2b":             {"", "internal/control", "internal/text"},
	"internal/sshd":            {"", "internal/control"},
	"cmd/outboard-guest":       {"internal/guest", "internal/guest/boot", "internal/guest/spawner", "internal/guest/sftp"},
	"internal/bridge":          {"", "internal/control", "internal/text"},
	"internal/store/storetest": {"internal/store"},
	"internal/login/logintest": {},
	"internal/vault/ecrtest":   {},
	"internal/sandboxtest":     {"", "internal/sandbox", "internal/guest", "internal/guest/sftp"},

	"internal/guest/form/formtest": {"internal/guest/form"},
	"internal/sandbox/container":   {"", "internal/sandbox", "internal/sandbox/native", "internal/guest", "internal/guest/boot", "internal/guest/uplink"},
	"internal/sandbox/oci":         {"", "internal/sandbox", "internal/sandbox/container", "internal/sandbox/native"},
	"internal/sandbox/docker":      {"", "internal/sandbox", "internal/sandbox/container", "internal/sandbox/native", "internal/guest/boot"},
}

// wiring may import everything: these put the parts together, to run them, to measure them or to kill them.
var wiring = []string{"cmd/outboard", "internal/outboardtest", "internal/bench", "internal/chaos"}

// stdOnly must build from the standard library alone: the root because everything imports it, the guest because it runs inside.
var stdOnly = []string{"", "internal/guest", "internal/guest/boot", "internal/guest/form", "internal/guest/spawner", "internal/guest/spawn", "internal/guest/uplink",
	"internal/guest/sftp", "cmd/outboard-guest"}

type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
	Module     *struct{ Path string }
}

// A broken import table means that a layer reaches for something it must not know about.
func TestImportTable(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t, "./...") {
		name := rel(p.ImportPath)
		seen[name] = true
		if slices.Contains(wiring, name) {
			continue
		}
		allowed, ok := layers[name]
		if !ok {
			t.Errorf("package %s is not in the import table: give it a layer in arch_test.go and docs/design/0003-import-table.md", name)
			continue
		}
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, module) {
				continue
			}
			if !slices.Contains(allowed, rel(imp)) {
				t.Errorf("%s imports %s: refused by the import table; data flows one way, see docs/design/0003-import-table.md",
					orRoot(name), orRoot(rel(imp)))
			}
		}
	}
	for name := range layers {
		if !seen[name] {
			t.Errorf("the import table names %s, which is not there", orRoot(name))
		}
	}
}

// A third-party module in the root or in the guest would end up inside every sandbox or in every importer.
func TestStandardLibraryOnly(t *testing.T) {
	for _, name := range stdOnly {
		path := strings.TrimSuffix(module+"/"+name, "/")
		for _, p := range list(t, "-deps", path) {
			if !p.Standard && !strings.HasPrefix(p.ImportPath, module) {
				t.Errorf("%s depends on %s: it must use the standard library only", orRoot(name), p.ImportPath)
			}
		}
	}
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,Standard,Module"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			return pkgs
		} else if err != nil {
			t.Fatalf("reading go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

func rel(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, module), "/") }

func orRoot(name string) string {
	if name == "" {
		return "outboard (root)"
	}
	return name
}

// CI runs every test under the race detector with -short, and once more plainly only those that scripts/left-out
// finds. Broken if one is left out of both: a helper that asks testing.Short, or a test that the script does not
// see.
func TestNothingIsLeftOutOfCI(t *testing.T) {
	out, err := exec.Command("scripts/left-out", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	listed := strings.Fields(string(out))
	found := 0
	err = filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if !asksShort(decl) {
				continue
			}
			found++
			name := ""
			if f, ok := decl.(*ast.FuncDecl); ok {
				name = f.Name.Name
			}
			runs := slices.Contains(listed, "./"+filepath.Dir(path)) && slices.Contains(listed, name)
			if !strings.HasPrefix(name, "Test") || !runs {
				t.Errorf("%s: %q asks testing.Short, and scripts/left-out does not run it", path, name)
			}
		}
		return nil
	})
	if err != nil || found < 10 {
		t.Errorf("%d tests ask testing.Short: %v", found, err)
	}
}

// asksShort reports whether a declaration calls testing.Short.
func asksShort(decl ast.Decl) (asks bool) {
	ast.Inspect(decl, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if ok && s.Sel.Name == "Short" {
			x, ok := s.X.(*ast.Ident)
			asks = asks || ok && x.Name == "testing"
		}
		return true
	})
	return asks
}
