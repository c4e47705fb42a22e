//go:build linux

package fleet

import (
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/store"
)

// Broken if whoever sends more files than the disk of a sandbox holds is told of an internal error, or not which
// limit it is and what to change.
func TestNoDiskSpace(t *testing.T) {
	full := &guest.Error{Code: guest.Full, Message: "loading the workspace: no space left on device"}
	for name, p := range map[string]*breaking{"load": {load: full}, "mount": {put: full}} {
		for limit, want := range map[int64]struct {
			kind          outboard.Kind
			public, hints string
		}{
			64 << 20: {outboard.TooLarge, "disk_bytes allows 67108864 bytes", "larger disk_bytes"},
			0:        {outboard.Unavailable, "the server's disk is full", "outboard rm"},
		} {
			r := newRig(t)
			p.Provider = r.provider
			f := r.fleet(func(c *Config) { c.Provider = p })
			sent := r.upload(t, "data.csv", "1,2")
			id := r.sessionIn(t, outboard.EnvConfig{Kind: "cloud", Limits: outboard.SandboxLimits{DiskBytes: limit}},
				sent)
			r.append(t, store.Commit{Session: id},
				&outboard.SessionUpdated{Metadata: map[string]string{WorkspaceKey: string(sent.File) + ":tar"}})
			if name == "mount" {
				r.append(t, store.Commit{Session: id},
					&outboard.SessionUpdated{Metadata: map[string]string{WorkspaceKey: ""}})
			}
			_, err := f.Acquire(t.Context(), r.request(t, id))
			if outboard.KindOf(err) != want.kind || !strings.Contains(outboard.PublicOf(err), want.public) ||
				!strings.Contains(outboard.HintOf(err), want.hints) {
				t.Errorf("%s with a limit of %d: %v; told: %q, hint %q", name, limit, err, outboard.PublicOf(err),
					outboard.HintOf(err))
			}
			if ids, rows := r.present(t), r.rows(t, id); len(ids) != 0 || len(rows) != 0 {
				t.Errorf("left: %v, %+v", ids, rows)
			}
		}
	}
}
