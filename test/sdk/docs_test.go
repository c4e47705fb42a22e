package sdk

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Fails if a program of docs/reference/api.md does not run as it stands there, or does not show what a session does.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string]struct{ program, args, shows string }{
		"sh": {"bash", "-eu FILE.sh", "hello\n"},
		"go": {"go", "run FILE.go", "That is the system.\nidle: end_turn\n"},
		"js": {"node", "FILE.mjs", "That is the system.\nidle: end_turn\n"},
	}
	blocks := regexp.MustCompile("(?ms)^```(\\w+) run\n(.*?)^```$").FindAllStringSubmatch(string(guide), -1)
	if len(blocks) != len(programs) {
		t.Errorf("%d programs in the guide, not %d", len(blocks), len(programs))
	}
	for _, b := range blocks {
		t.Run(b[1], func(t *testing.T) {
			p := programs[b[1]]
			needs(t, b[1], p.program)
			out := runGuide(t, b[1], b[2], p.program, p.args)
			if !strings.HasSuffix(out, p.shows) {
				t.Errorf("it printed %q, which does not end with %q", out, p.shows)
			}
		})
	}
}

// needs skips what this machine has no program for.
func needs(t *testing.T, language, program string) {
	t.Helper()
	for _, p := range map[string][]string{"sh": {"curl", "jq"}}[language] {
		if _, err := exec.LookPath(p); err != nil {
			missing(t, p+" is not installed", "install it")
		}
	}
	if _, err := exec.LookPath(program); err != nil {
		missing(t, program+" is not installed", "install it")
	}
	if _, err := os.Stat(filepath.Join("ts", "node_modules", "@anthropic-ai", "sdk")); language == "js" && err != nil {
		missing(t, "the TypeScript SDK is not installed", "run npm ci in test/sdk/ts")
	}
}

// runGuide runs a program of the guide against a new server, and returns what it prints.
func runGuide(t *testing.T, language, text, program, args string) string {
	base, key := serve(t)
	here := "."
	dir := t.TempDir()
	switch language {
	case "sh": // leaves files where it runs
		here = dir
	case "js": // finds the SDK beside itself
		here = "ts"
		var err error
		if dir, err = os.MkdirTemp(here, "guide-"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	file, err := filepath.Abs(filepath.Join(dir, "guide"))
	if err != nil {
		t.Fatal(err)
	}
	var argv []string
	for a := range strings.FieldsSeq(args) {
		if rest, ok := strings.CutPrefix(a, "FILE"); ok {
			a = file + rest
			if err := os.WriteFile(a, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		argv = append(argv, a)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, argv...)
	cmd.Dir = here
	cmd.Env = append(os.Environ(), "OUTBOARD_URL="+base, "OUTBOARD_API_KEY="+key)
	var wrote [2]*os.File // files, not pipes: curl in the background holds them for a while
	for i := range wrote {
		if wrote[i], err = os.CreateTemp(t.TempDir(), ""); err != nil {
			t.Fatal(err)
		}
		defer wrote[i].Close()
	}
	cmd.Stdout, cmd.Stderr = wrote[0], wrote[1]
	ran := cmd.Run()
	var texts [2][]byte
	for i := range wrote {
		if texts[i], err = os.ReadFile(wrote[i].Name()); err != nil {
			t.Fatal(err)
		}
	}
	if ran != nil {
		t.Fatalf("%v\n%s\n%s", ran, texts[0], texts[1])
	}
	return string(texts[0])
}
