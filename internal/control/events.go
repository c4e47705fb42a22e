package control

import (
	"context"
	"iter"

	"github.com/outboard-dev/outboard"
)

// maxAccounts bounds the cache of UsageAt.
const maxAccounts = 256

// accountPage is how many events UsageAt reads at a time.
const accountPage = 1000

// accountTypes are the events that change the usage or the running time of a session.
var accountTypes = []outboard.EventType{outboard.TypeTurnStarted, outboard.TypeTurnResumed, outboard.TypeTurnRetrying,
	outboard.TypeTurnEnded, outboard.TypeModelFinished, outboard.TypeModelFailed, outboard.TypeContextCompacted,
	outboard.TypeSessionArchived, outboard.TypeSessionForked}

// Events returns one page of the log of a session the caller may see.
func (c *Control) Events(ctx context.Context, by outboard.Caller, id outboard.SessionID, q EventQuery) ([]outboard.Event, error) {
	if _, err := c.header(ctx, by, id); err != nil {
		return nil, err
	}
	list, err := c.store.Events(ctx, id, q)
	return list, look("session", string(id), err)
}

// Waiting returns the inputs that are queued and not yet processed, in order.
func (c *Control) Waiting(ctx context.Context, by outboard.Caller, id outboard.SessionID) ([]outboard.Event, error) {
	if _, err := c.header(ctx, by, id); err != nil {
		return nil, err
	}
	list, err := c.store.Waiting(ctx, id)
	return list, look("session", string(id), err)
}

// Event returns one event of a session.
func (c *Control) Event(ctx context.Context, by outboard.Caller, id outboard.SessionID, ev outboard.EventID) (outboard.Event, error) {
	if _, err := c.header(ctx, by, id); err != nil {
		return outboard.Event{}, err
	}
	e, err := c.store.Event(ctx, id, ev)
	return e, look("event", string(ev), err)
}

// Follow yields the session's events after a position, past and future, until ctx ends or the session is deleted (NotFound).
func (c *Control) Follow(ctx context.Context, by outboard.Caller, id outboard.SessionID, after int64) iter.Seq2[outboard.Event, error] {
	if _, err := c.header(ctx, by, id); err != nil {
		return func(yield func(outboard.Event, error) bool) { yield(outboard.Event{}, err) }
	}
	return c.store.Follow(ctx, id, after)
}

// Deltas returns the live output of a session from now on; closed when ctx ends, nil where this process has none.
func (c *Control) Deltas(ctx context.Context, by outboard.Caller, id outboard.SessionID) <-chan Delta {
	if c.live == nil {
		return nil
	}
	if _, err := c.header(ctx, by, id); err != nil {
		return nil
	}
	return c.live.Follow(ctx, id)
}

// configTypes are the events that say what a session's config is.
var configTypes = []outboard.EventType{outboard.TypeSessionCreated, outboard.TypeSessionUpdated, outboard.TypeSessionForked}

// ConfigAt returns the config a session had right after one of its events.
func (c *Control) ConfigAt(ctx context.Context, id outboard.SessionID, seq int64) (outboard.SessionConfig, error) {
	var st outboard.SessionConfig
	q := EventQuery{Before: seq + 1, Types: configTypes, Limit: accountPage}
	for {
		page, err := c.store.Events(ctx, id, q)
		if err != nil {
			return st, look("session", string(id), err)
		}
		for i := range page {
			if err := advance(&st, &page[i]); err != nil {
				return st, err
			}
		}
		if len(page) < q.Limit {
			return st, nil
		}
		q.After = page[len(page)-1].Seq
	}
}

// advance applies one of configTypes to a config.
func advance(cfg *outboard.SessionConfig, e *outboard.Event) error {
	p, err := e.Decode()
	if err != nil {
		return err
	}
	switch p := p.(type) {
	case *outboard.SessionCreated:
		*cfg = p.Config
	case *outboard.SessionForked:
		*cfg = p.Config
	case *outboard.SessionUpdated:
		set(&cfg.Agent.Tools, p.Tools)
		set(&cfg.Agent.MCPServers, p.MCPServers)
		set(&cfg.Resources, p.Resources)
		set(&cfg.Budget, p.Budget)
	}
	return nil
}

// UsageAt returns a header in which Usage, Active, Phase and RunningSince are what they were right after one event of the
// session; its other fields mean nothing. Reading a log from front to back costs one pass over its accounting events in all,
// because the last position of each session is cached.
func (c *Control) UsageAt(ctx context.Context, id outboard.SessionID, seq int64) (outboard.Header, error) {
	c.mu.Lock()
	h := c.accounts[id]
	c.mu.Unlock()
	if h.Head > seq {
		h = outboard.Header{}
	}
	q := EventQuery{After: h.Head, Before: seq + 1, Types: accountTypes, Limit: accountPage}
	for {
		page, err := c.store.Events(ctx, id, q)
		if err != nil {
			return h, look("session", string(id), err)
		}
		for i := range page {
			if err := outboard.Project(&h, &page[i]); err != nil {
				return h, err
			}
		}
		if len(page) < q.Limit {
			break
		}
		q.After = page[len(page)-1].Seq
	}
	h.Head = seq
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.accounts) >= maxAccounts {
		for old := range c.accounts { // any one: the cache only saves work
			delete(c.accounts, old)
			break
		}
	}
	c.accounts[id] = h
	return h, nil
}
