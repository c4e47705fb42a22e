package bench

import (
	"context"
	"fmt"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/store"
)

// stack is a whole server without the HTTP surface: what a turn passes through.
type stack struct {
	*server.Server
	data, guest string
}

// newStack starts one on dir.
func newStack(ctx context.Context, dir, guest string, slots int) (*stack, error) {
	s, err := server.Start(ctx, server.Config{Data: dir, Config: &config.Config{}, Guest: guest, Work: true,
		Slots: slots})
	if err != nil {
		return nil, err
	}
	if s.Problem != nil {
		s.Stop()
		return nil, s.Problem
	}
	return &stack{s, dir, guest}, nil
}

// close stops everything and removes the sandboxes.
func (s *stack) close(ctx context.Context) error {
	s.Stop()
	return server.RemoveSandboxes(ctx, s.data, s.guest)
}

// session makes one whose model is script/steps.
func (s *stack) session(ctx context.Context) (outboard.Header, error) {
	agent := outboard.Agent{ID: outboard.NewID[outboard.AgentID](outboard.PrefixAgent), Version: 1, Name: "bench",
		Model: outboard.ModelConfig{ID: "script/steps"},
		Tools: []outboard.Toolset{{Kind: "builtin", Default: outboard.ToolConfig{Enabled: true,
			Policy: outboard.AlwaysAllow}}}}
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
		Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread), Phase: outboard.PhaseIdle, AgentID: agent.ID, AgentVersion: 1}
	cfg := outboard.SessionConfig{Agent: agent, Env: outboard.EnvConfig{Kind: "cloud",
		Networking: outboard.Networking{Mode: "none"}}}
	return s.Store.CreateSession(ctx, h, cfg, outboard.NewEvent(h.Thread, &outboard.SessionCreated{Config: cfg}))
}

// turn sends one message and returns when the session is idle again. A turn that ends otherwise than with
// end_turn, or a call that did not succeed, is an error.
func (s *stack) turn(ctx context.Context, h outboard.Header, steps string) error {
	in := outboard.NewEvent(h.Thread, &outboard.InputMessage{Content: []outboard.Content{outboard.Text(steps)}})
	got, err := s.Store.Append(ctx, h.ID, 0, store.Any, in)
	if err != nil {
		return err
	}
	for e, err := range s.Store.Follow(ctx, h.ID, got[0].Seq) {
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
