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
	"unicode"
)

const module = "github.com/outboard-dev/outboard"

// layers is the import table of docs/design/0003-import-table.md: what each package may import of this module. A
// package that is not listed may not exist: add it here and there, with the reason for its place.
var layers = map[string][]string{
	"":                       {},
	"internal/guest":         {"internal/guest/form", "internal/guest/spawn", "internal/guest/uplink"},
	"internal/guest/spawn":   {},
	"internal/guest/form":    {},
	"internal/guest/uplink":  {},
	"internal/guest/sftp":    {},
	"internal/guest/boot":    {"internal/guest/form", "internal/guest/uplink"},
	"internal/guest/spawner": {"internal/guest/boot"},
	"internal/term":          {},
	"internal/text":          {},
	"internal/schema":        {"internal/text"},
	"internal/audit":         {""},
	"internal/store":         {"", "internal/audit"},
	"internal/blob":          {""},
	"internal/llm":           {"", "internal/text", "internal/tool/registry"},
	"internal/live":          {""},
	"internal/policy":        {"", "internal/term", "internal/text", "internal/tool/registry"},
	"internal/client":        {""},
	"internal/kill":          {""},
	"internal/worktree":      {""},
	"internal/outbound":      {},
	"internal/netrule":       {"", "internal/outbound", "internal/text"},
	"internal/sandbox":       {"", "internal/guest"},
	"internal/config":        {"", "internal/llm", "internal/policy", "internal/netrule"},
	"internal/harness":       {"", "internal/llm"},
	"internal/tool":          {"", "internal/guest", "internal/outbound", "internal/text", "internal/tool/registry"},
	"internal/tool/registry": {"", "internal/text"},
	"internal/image":         {"", "internal/outbound", "internal/text"},
	"internal/fleet": {"", "internal/store", "internal/blob", "internal/sandbox", "internal/guest",
		"internal/image", "internal/text"},
	"internal/sandbox/native": {"", "internal/sandbox", "internal/guest", "internal/guest/boot", "internal/guest/form",
		"internal/guest/spawner", "internal/guest/uplink"},
	"internal/login": {""},
	"internal/vault": {"", "internal/store", "internal/outbound"},
	"internal/egress": {"", "internal/store", "internal/netrule", "internal/outbound", "internal/sandbox",
		"internal/text"},
	"internal/notify": {"", "internal/store", "internal/outbound"},
	"internal/runner": {"", "internal/store", "internal/blob", "internal/llm", "internal/live",
		"internal/policy", "internal/harness", "internal/tool", "internal/tool/registry", "internal/schema", "internal/fleet", "internal/sandbox", "internal/guest", "internal/text"},
	"internal/control": {"", "internal/audit", "internal/login", "internal/policy", "internal/schema",
		"internal/vault", "internal/store", "internal/netrule", "internal/blob", "internal/llm", "internal/live", "internal/fleet", "internal/text", "internal/tool/registry"},
	"internal/api":  {"", "internal/control", "internal/text"},
	"internal/e2b":  {"", "internal/control", "internal/text"},
	"internal/sshd": {"", "internal/control"},
	"cmd/outboard-guest": {"internal/guest", "internal/guest/boot", "internal/guest/spawner",
		"internal/guest/sftp"},
	"internal/bridge":          {"", "internal/control", "internal/text"},
	"internal/store/storetest": {"internal/store"},
	"internal/login/logintest": {},
	"internal/vault/ecrtest":   {},
	"internal/sandboxtest":     {"", "internal/sandbox", "internal/guest", "internal/guest/sftp"},

	"scripts/shape":    {},
	"scripts/ociimage": {},

	"internal/guest/form/formtest": {"internal/guest/form"},
	"internal/sandbox/container": {"", "internal/sandbox", "internal/sandbox/native", "internal/guest",
		"internal/guest/boot", "internal/guest/uplink"},
	"internal/sandbox/oci": {"", "internal/sandbox", "internal/sandbox/container", "internal/sandbox/native"},
	"internal/sandbox/docker": {"", "internal/sandbox", "internal/sandbox/container", "internal/sandbox/native",
		"internal/guest/boot"},
}

// wiring may import everything: these put the parts together, to run them, to measure them or to kill them.
var wiring = []string{"internal/server", "internal/server/doors", "cmd/outboard", "internal/outboardtest",
	"internal/bench", "internal/chaos"}

// stdOnly must build from the standard library alone: the root because everything imports it, the guest because
// it runs inside.
var stdOnly = []string{"", "internal/guest", "internal/guest/boot", "internal/guest/form", "internal/guest/spawner",
	"internal/guest/spawn", "internal/guest/uplink",
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
			t.Errorf("package %s is not in the import table: give it a layer in arch_test.go and "+
				"docs/design/0003-import-table.md", name)
			continue
		}
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, module) {
				continue
			}
			if !slices.Contains(allowed, rel(imp)) {
				t.Errorf("%s imports %s: refused by the import table; data flows one way, see "+
					"docs/design/0003-import-table.md",
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
	out, err := exec.CommandContext(t.Context(), "go",
		append([]string{"list", "-json=ImportPath,Imports,Standard,Module"}, args...)...).Output()
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

// banned are words that were names for something that has another name now: docs/design/0059-words.md. Where one is
// banned in some packages only, the English word is meant elsewhere.
var banned = []struct {
	word string
	in   []string // nil: everywhere
	use  string
}{
	{"shelf", nil, "pool"}, {"shelves", nil, "pools"}, {"plot", nil, "slot"}, {"plots", nil, "slots"},
	{"stocked", nil, "pool"}, {"stocker", nil, "pool"}, {"nursery", nil, "spawner"}, {"nurse", nil, "spawner"},
	{"burial", nil, "trash"}, {"buried", nil, "trash"}, {"bury", nil, "trash"}, {"grave", nil, "trash"},
	{"graves", nil, "trash"}, {"squash", nil, "flatten"}, {"squashed", nil, "flattened"},
	{"squasher", nil, "flattener"}, {"squashing", nil, "flattening"}, {"relink", nil, "hardlinks"},
	{"relinker", nil, "hardlinks"}, {"exchange", []string{"internal/sandbox/native"}, "swap"},
	{"flip", []string{"internal/sandbox/native"}, "swap"},
	{"quiet", []string{"internal/sandbox/native"}, "unchangedHint"}, {"read small", nil, "rawio"},
	{"write small", nil, "rawio"}, {"box", []string{"internal/sandbox/native"}, "place"},
	{"nook", nil, "tmpfsScratch"}, {"hungup", nil, "peerClosed"}, {"hung up", nil, "peerClosed"},
	{"complaint", nil, "stderrTail, shellNoise"}, {"complaints", nil, "stderrTail, shellNoise"},
	{"soon", []string{"internal/guest"}, "gvisorExec"}, {"spare", []string{"internal/guest"}, "warmShell"},
	{"ballast", nil, "reserve"}, {"bell", nil, "notify"}, {"doorbell", nil, "notify"},
	{"offer", []string{"internal/store"}, "inlineClaim"}, {"offers", []string{"internal/store"}, "inlineClaim"},
	{"no room", nil, "diskSpace"}, {"least room", nil, "diskSpace"}, {"habit", nil, "defaults"},
	{"habits", nil, "defaults"}, {"linger", nil, "keepAlive"}, {"lingering", nil, "keepAlive"},
	{"lingerer", nil, "keepAlive"}, {"folds", []string{"internal/runner"}, "stateCache"}, {"fund", nil, "budget"},
	{"funds", nil, "budget"}, {"detour", nil, "socksUpstream"}, {"tally", nil, "refusalRate"},
	{"drill", []string{"internal/egress"}, "selftest"}, {"crowded", nil, "processLimit"},
	{"works", []string{"internal/control"}, "requireDeveloper"},
	{"admins", []string{"internal/control"}, "requireAdmin"}, {"mine", []string{"internal/control"}, "ownedBy"},
	{"more", nil, "the file's subject"},
}

// meant are the names of others, which have such a word.
var meant = []string{"SetLinger"}

// bannedWord returns the word of a name that is banned in a package, and what to use. A name is an identifier, or a
// file's name without its directory.
func bannedWord(pkg, name string) (word, use string) {
	words := " " + strings.Join(wordsOf(name), " ") + " "
	for _, b := range banned {
		if b.in != nil && !slices.Contains(b.in, pkg) || slices.Contains(meant, name) {
			continue
		}
		if b.word == "more" && !strings.HasSuffix(name, ".go") { // as a word of an identifier it is English
			continue
		}
		if strings.Contains(words, " "+b.word+" ") {
			return b.word, b.use
		}
	}
	return "", ""
}

// wordsOf splits a name at underscores, dots and capitals: takePlot, plot_linux.go and PLOTS_2 have a word each.
func wordsOf(name string) (words []string) {
	var word strings.Builder
	upper := true
	for _, r := range name {
		isUpper := unicode.IsUpper(r)
		if isUpper && !upper || !unicode.IsLetter(r) {
			words = append(words, word.String())
			word.Reset()
		}
		if upper = isUpper; unicode.IsLetter(r) {
			word.WriteRune(unicode.ToLower(r))
		}
	}
	return slices.DeleteFunc(append(words, word.String()), func(w string) bool { return w == "" })
}

// Broken if one idea has two names again: a reader would look for the difference.
func TestWords(t *testing.T) {
	for _, c := range []struct{ pkg, name, word string }{ // the controls
		{"cmd/outboard", "takePlot", "plot"}, {"internal/fleet", "sweepShelves", "shelves"},
		{"internal/guest", "hungUp", "hung up"}, {"internal/store", "audit_more.go", "more"},
		{"internal/guest", "spare_linux.go", "spare"}, {"internal/sandbox/native", "box", "box"},
		{"internal/control", "box", ""}, {"internal/api", "exploit", ""}, {"internal/store", "readMore", ""},
		{"internal/e2b", "SetLinger", ""},
	} {
		if word, _ := bannedWord(c.pkg, c.name); word != c.word {
			t.Errorf("%s in %s: %q is banned, want %q", c.name, c.pkg, word, c.word)
		}
	}
	names := 0
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(path))
		if word, use := bannedWord(pkg, filepath.Base(path)); word != "" {
			t.Errorf("%s: a file is not named %q: use %s", path, word, use)
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		ast.Inspect(file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok || seen[id.Name] {
				return true
			}
			seen[id.Name] = true
			names++
			if word, use := bannedWord(pkg, id.Name); word != "" {
				t.Errorf("%s: %s: the word for %q is %s, see docs/design/0059-words.md", fset.Position(id.Pos()),
					id.Name, word, use)
			}
			return true
		})
		return nil
	})
	if err != nil || names < 10_000 {
		t.Errorf("%d names: %v", names, err)
	}
}
