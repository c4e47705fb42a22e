package sdk

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Fails if the TypeScript SDK cannot drive a whole session, or an answer departs from the OpenAPI document of
// its generation.
func TestTypeScript(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		missing(t, "node is not installed", "install nodejs and npm")
	}
	if _, err := os.Stat(filepath.Join("ts", "node_modules", "@anthropic-ai", "sdk")); err != nil {
		missing(t, "the TypeScript SDK is not installed", "run npm ci in test/sdk/ts")
	}
	base, key := serve(t)
	rec := record(t, base)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "--test", "flow.test.mjs")
	cmd.Dir = "ts"
	cmd.Env = append(os.Environ(), "OUTBOARD_URL="+rec.url, "OUTBOARD_API_KEY="+key)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rec.check(t, loadSpec(t, "github.com/anthropics/anthropic-sdk-go/v2"))
}

// missing skips a proof that this machine cannot run, and fails where it has to run.
func missing(t *testing.T, what, remedy string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s, and CI must not skip this: %s", what, remedy)
	}
	t.Skipf("%s: %s", what, remedy)
}
