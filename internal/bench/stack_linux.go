package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/runner"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/store"
)

// stack is a whole brain with hands, without the HTTP surface: what a turn passes through.
type stack struct {
	store    *store.Store
	provider *native.Provider
	fleet    *fleet.Fleet
	runner   *runner.Runner
}

// newStack starts one on dir. db is a postgres:// URL or "" for SQLite.
func newStack(ctx context.Context, dir, db, guest string, slots int) (*stack, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making a data directory: %w", err)
	}
	st, err := store.Open(ctx, store.Config{Path: filepath.Join(dir, "outboard.db"), URL: db})
	if err != nil {
		return nil, err
	}
	blobs, err := blob.NewDir(filepath.Join(dir, "blobs"))
	if err != nil {
		return nil, err
	}
	provider, err := native.New(native.Config{Dir: filepath.Join(dir, "sandboxes"), Guest: guest})
	if err != nil {
		return nil, err
	}
	models, err := llm.NewRegistry(llm.Config{})
	if err != nil {
		return nil, err
	}
	s := &stack{store: st, provider: provider, fleet: fleet.New(fleet.Config{Store: st, Blob: blobs, Provider: provider, Host: "bench"})}
	if err := s.fleet.Start(ctx); err != nil {
		return nil, err
	}
	s.runner = runner.New(runner.Config{Store: st, Blob: blobs, Fleet: s.fleet, Models: models, Live: new(live.Hub), Host: "bench", Slots: slots})
	return s, s.runner.Start(ctx)
}

// close stops everything and removes the sandboxes of the sessions.
func (s *stack) close(ctx context.Context, sessions []outboard.SessionID) {
	s.runner.Stop()
	for _, id := range sessions {
		s.fleet.Destroy(ctx, id)
	}
	s.fleet.Stop()
	s.provider.Close()
	s.store.Close()
}

// session makes one whose model is script/steps.
func (s *stack) session(ctx context.Context) (outboard.Header, error) {
	agent := outboard.Agent{ID: outboard.NewID[outboard.AgentID](outboard.PrefixAgent), Version: 1, Name: "bench",
		Model: outboard.ModelConfig{ID: "script/steps"},
		Tools: []outboard.Toolset{{Kind: "builtin", Default: outboard.ToolConfig{Enabled: true, Policy: outboard.AlwaysAllow}}}}
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
		Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread), Phase: outboard.PhaseIdle, AgentID: agent.ID, AgentVersion: 1}
	cfg := outboard.SessionConfig{Agent: agent, Env: outboard.EnvConfig{Kind: "cloud", Networking: outboard.Networking{Mode: "none"}}}
	return s.store.CreateSession(ctx, h, cfg, outboard.NewEvent(h.Thread, &outboard.SessionCreated{Config: cfg}))
}

// turn sends one message and returns when the session is idle again. A turn that ends otherwise than with end_turn, or a call that
// did not succeed, is an error.
func (s *stack) turn(ctx context.Context, h outboard.Header, steps string) error {
	in := outboard.NewEvent(h.Thread, &outboard.InputMessage{Content: []outboard.Content{outboard.Text(steps)}})
	got, err := s.store.Append(ctx, h.ID, 0, store.Any, in)
	if err != nil {
		return err
	}
	for e, err := range s.store.Follow(ctx, h.ID, got[0].Seq) {
		if err != nil {
			return err
		}
		p, err := e.Decode()
		if err != nil {
			return err
		}
		switch p := p.(type) {
		case *outboard.CallFinished:
			if p.Outcome != outboard.OutcomeOK || p.IsError {
				return fmt.Errorf("call ended %s: %s", p.Outcome, outboard.PlainText(p.Content))
			}
		case *outboard.TurnFailed:
			return fmt.Errorf("turn failed: %s", p.Error.Message)
		case *outboard.TurnEnded:
			if p.Stop.Type != "end_turn" {
				return fmt.Errorf("turn ended with %s", p.Stop.Type)
			}
			return nil
		}
	}
	return context.Cause(ctx)
}
