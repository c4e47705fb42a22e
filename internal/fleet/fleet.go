// Package fleet owns live sandboxes: it acquires one for a session, checkpoints it, and reaps what no row owns. It is the only
// writer of the sandboxes table. A row exists before the machine does, and is marked destroyed only after it is gone.
package fleet

import (
	"context"
	"log/slog"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// Config makes a Fleet.
type Config struct {
	Store    *store.Store
	Blob     blob.Store
	Provider sandbox.Provider // nil: every Acquire fails with Unavailable and a hint to run outboard doctor
	Host     string           // name of this machine in sandbox rows
	Logger   *slog.Logger
}

// Fleet is safe for concurrent use.
type Fleet struct{}

// New returns a fleet; Start runs the reaper once before it returns, then on a timer until Stop.
func New(cfg Config) *Fleet { panic("later") }

// Box is a session's sandbox, connected. Release it when the turn ends.
type Box struct {
	sandbox.Sandbox
	Ready outboard.SandboxReady // to append when New
	New   bool                  // made (or restored) by this Acquire
	Lost  *outboard.SandboxLost // set when the session had another one, which is gone
}

// Request says for whom.
type Request struct {
	Session    outboard.SessionID
	Config     outboard.SessionConfig
	Current    *outboard.SandboxReady // from the folded state
	Checkpoint outboard.CheckpointID  // newest, from the folded state
}

// Acquire connects to the session's sandbox, or makes one: restored from the newest checkpoint, with the session's file
// resources mounted. A sandbox of another host, or one that does not answer, counts as lost.
func (f *Fleet) Acquire(ctx context.Context, r Request) (*Box, error) { panic("later") }

// Checkpoint saves what changed since parent, for the call just finished. It returns nil when nothing changed. The row is to be
// committed together with the call's outcome (store.Commit.Checkpoint).
func (f *Fleet) Checkpoint(ctx context.Context, b *Box, session outboard.SessionID, epoch int64, parent outboard.CheckpointID, call outboard.CallID) (*outboard.Checkpoint, error) {
	panic("later")
}

// Harvest returns files under the outputs directory that are new or changed since the last harvest of this box, stored as blobs.
func (f *Fleet) Harvest(ctx context.Context, b *Box, session outboard.SessionID) ([]outboard.File, error) {
	panic("later")
}

// Release ends the use of a box after a turn: the machine freezes where it can.
func (f *Fleet) Release(ctx context.Context, b *Box) error { panic("later") }

// Destroy removes every sandbox of a session on this host.
func (f *Fleet) Destroy(ctx context.Context, session outboard.SessionID) error { panic("later") }

// Start reaps and starts the timer. Stop ends it.
func (f *Fleet) Start(ctx context.Context) error { panic("later") }

// Stop waits for the reaper.
func (f *Fleet) Stop() { panic("later") }
