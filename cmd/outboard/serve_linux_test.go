package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// onWait calls a function when a server says that it waits.
type onWait struct {
	slog.Handler
	waits atomic.Int32
	then  func()
}

// Handle implements slog.Handler.
func (h *onWait) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "waiting for the database" {
		h.waits.Add(1)
		h.then()
	}
	return h.Handler.Handle(ctx, r)
}

// If this fails, a server that is started beside its database, or while that is started anew, gives up; or one
// waits for what will not come.
func TestServeWaitsForItsDatabase(t *testing.T) {
	db := storetest.Postgres(t)
	for _, c := range []struct {
		what, mode string // of the gate at first
		then       string // and after the first look
		other      string // database than the one there is
		wait       time.Duration
		waits      int32
		starts     bool
		says       string
	}{
		{"there", "", "", "", time.Minute, 0, true, ""},
		{"cuts connections for a while", "refuse", "", "", time.Minute, 1, true, ""},
		{"cuts them for ever", "refuse", "refuse", "", time.Second, 1, false, "check that PostgreSQL runs there"},
		{"is another", "", "", "no-such-database", time.Minute, 0, false, "no-such-database"},
	} {
		t.Run(c.what, func(t *testing.T) {
			g, address := newPGGate(t, db)
			if c.other != "" {
				u, err := url.Parse(address)
				if err != nil {
					t.Fatal(err)
				}
				q := u.Query()
				q.Set("dbname", c.other)
				u.RawQuery = q.Encode()
				address = u.String()
			}
			g.set(c.mode)
			var text bytes.Buffer
			h := &onWait{Handler: slog.NewTextHandler(&text, nil), then: func() { g.set(c.then) }}
			s, err := startPatiently(t.Context(), server.Config{Data: t.TempDir(), Config: &config.Config{DB: address},
				Env:    func(string) string { return "" },
				Logger: slog.New(h), Serve: true, Listen: "127.0.0.1:0"}, c.wait)
			if err == nil {
				s.Stop()
			}
			if (err == nil) != c.starts || h.waits.Load() != c.waits {
				t.Fatalf("%v, after %d times that it said it waits\n%s", err, h.waits.Load(), text.String())
			}
			if err != nil && !strings.Contains(err.Error()+outboard.HintOf(err), c.says) {
				t.Errorf("%v, with the hint %s; want %q", err, outboard.HintOf(err), c.says)
			}
			if store.Away(err) != (c.mode == "refuse" && !c.starts) {
				t.Errorf("away: %t of %v", store.Away(err), err)
			}
		})
	}
}
