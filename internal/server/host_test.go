package server

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Without this a session of a killed server would stand still until its lease ran out; done to a living one, it
// would be taken from under its feet.
func TestReleaseDead(t *testing.T) {
	ctx := t.Context()
	st, err := store.Open(ctx, store.Config{Path: filepath.Join(t.TempDir(), "x.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	cmd := exec.CommandContext(ctx, "true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	gone := cmd.Process.Pid
	for id, host := range map[outboard.WorkerID]string{
		"wkr_self": workerHost("here/1"),
		"wkr_dead": fmt.Sprintf("here/1 %s %d 12345", KernelID(), gone),
		// our pid, another start: the pid was used again
		"wkr_reuse": fmt.Sprintf("here/1 %s %d 1", KernelID(), os.Getpid()),
		"wkr_boot":  fmt.Sprintf("here/1 another-boot:pid %d 12345", gone),
		"wkr_far":   "there/2",
	} {
		if err := st.Register(ctx, id, host); err != nil {
			t.Fatal(err)
		}
	}
	if err := releaseDead(ctx, st, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	left, err := st.Workers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, w := range left {
		ids = append(ids, string(w.ID))
	}
	if got := strings.Join(ids, " "); got != "wkr_boot wkr_far wkr_self" {
		t.Errorf("workers left: %s", got)
	}
}
