package main

import (
	"context"
	"log/slog"
	"sync"
)

// maxTroubles bounds what one command says of its private server; a log is the place for more.
const maxTroubles = 20

// trouble is the log of a private server where nobody asked for one: silent, but for errors. Such a server tries
// again for as long as it takes, when the disk is full for example, and the person who waits has to learn why.
// Each is said once.
type trouble struct {
	app *app

	mu   sync.Mutex
	said map[string]bool
}

// Enabled implements slog.Handler.
func (t *trouble) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

// Handle implements slog.Handler.
func (t *trouble) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			text += ": " + a.Value.String()
		}
		return true
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.said[text] || len(t.said) == maxTroubles {
		return nil
	}
	if t.said == nil {
		t.said = map[string]bool{}
	}
	t.said[text] = true
	t.app.complain("trouble", text, "", exitOK)
	return nil
}

// WithAttrs implements slog.Handler: where an error comes from is for logs.
func (t *trouble) WithAttrs([]slog.Attr) slog.Handler { return t }

// WithGroup implements slog.Handler.
func (t *trouble) WithGroup(string) slog.Handler { return t }

// privateLogger returns the log of a private server: what OUTBOARD_LOG asks for, else trouble only.
func (a *app) privateLogger() *slog.Logger {
	if a.env("OUTBOARD_LOG") != "" {
		return a.logger(slog.LevelError)
	}
	return slog.New(&trouble{app: a})
}
