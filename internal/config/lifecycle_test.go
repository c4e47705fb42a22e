package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Broken if a threshold that is switched off holds, one that was not named has no default, or a contradiction is
// taken for an order.
func TestSandboxLifecycle(t *testing.T) {
	for text, want := range map[string]*outboard.Lifecycle{
		"":                          {StopAfterSec: 1800, DropAfterSec: 86400},
		"sandbox: {stop_after: 0s}": {DropAfterSec: 86400},
		"sandbox: {stop_after: 5m, drop_after: 0s, max_age: 24h, max_sandboxes_per_environment: 7}": {StopAfterSec: 300,
			MaxAgeSec: 86400, MaxSandboxes: 7},
		"sandbox: {drop_after: 10m}":             nil,
		"sandbox: {stop_after: soon}":            nil,
		"sandbox: {max_sandboxes_per_owner: -1}": nil,
		"sandbox: {disk_reserve_bytes: -1}":      nil,
		"sandbox: {disk_reserve_bytes: 0}":       {StopAfterSec: 1800, DropAfterSec: 86400},
		"sandbox: {rest_every: 1ms}":             nil,
		"sandbox: {rest_every: 0s}":              nil,
		"sandbox: {rest_every: 200ms}":           {StopAfterSec: 1800, DropAfterSec: 86400},
	} {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path, func(string) string { return "" })
		if (err == nil) != (want != nil) || err == nil && c.Sandbox.Lifecycle() != *want {
			t.Errorf("%q: %v", text, err)
			if err == nil {
				t.Errorf("%+v", c.Sandbox.Lifecycle())
			}
		}
	}
}
