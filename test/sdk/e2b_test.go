package sdk

import (
	"context"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Fails if one of two generations of the official E2B SDK cannot use the server as it would use E2B.
func TestE2B(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		missing(t, "node is not installed", "install nodejs and npm")
	}
	dir := filepath.Join("..", "e2b")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "e2b")); err != nil {
		missing(t, "the E2B SDK is not installed", "run npm ci in test/e2b")
	}
	_, url, key := serveBoth(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "--test", "flow.test.mjs")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url,
		"E2B_API_KEY=e2b_"+hex.EncodeToString([]byte(key)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
