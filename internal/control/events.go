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

// configBytes is how much of a session's configs is read at a time.
const configBytes = 2 * outboard.MaxConfigData

// accountTypes are the events that change the usage or the running time of a session.
var accountTypes = []outboard.EventType{outboard.TypeTurnStarted, outboard.TypeTurnResumed, outboard.TypeTurnRetrying,
	outboard.TypeTurnFailed, outboard.TypeTurnEnded, outboard.TypeModelFinished, outboard.TypeModelFailed, outboard.TypeContextCompacted,
	outboard.TypeCallJudged, outboard.TypeSessionArchived, outboard.TypeSessionForked}

// stopTypes are the events that end a running spell of a session that goes on.
var stopTypes = []outboard.EventType{outboard.TypeTurnEnded, outboard.TypeTurnRetrying}

// Events returns one page of the log of a session the caller may see.
func (c *Control) Events(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	q EventQuery) ([]outboard.Event, error) {
	if _, err := c.header(ctx, by, id); err != nil {
		return nil, err
	}
	list, err := c.store.Events(ctx, id, q)
	return list, wrapLookup("session", string(id), err)
}

// Waiting returns the inputs that are queued and not yet processed, in order.
func (c *Control) Waiting(ctx context.Context, by outboard.Caller, id outboard.SessionID) ([]outboard.Event, error) {
	if _, err := c.header(ctx, by, id); err != nil {
		return nil, err
	}
	list, err := c.store.Waiting(ctx, id)
	return list, wrapLookup("session", string(id), err)
}

// Event returns one event of a session.
func (c *Control) Event(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	ev outboard.EventID) (outboard.Event, error) {
	if _, err := c.header(ctx, by, id); err != nil {
		return outboard.Event{}, err
	}
	e, err := c.store.Event(ctx, id, ev)
	return e, wrapLookup("event", string(ev), err)
}

// Follow yields the session's events after a position, past and future, until ctx ends or the session is deleted
// (NotFound).
func (c *Control) Follow(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	after int64) iter.Seq2[outboard.Event, error] {
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
var configTypes = []outboard.EventType{outboard.TypeSessionCreated, outboard.TypeSessionUpdated,
	outboard.TypeSessionForked}

// ConfigFrom is a config that a session had from one of its events on.
type ConfigFrom struct {
	Seq    int64
	Config outboard.SessionConfig
}

// ConfigAt returns the config a session had right after one of its events.
func (c *Control) ConfigAt(ctx context.Context, id outboard.SessionID, seq int64) (outboard.SessionConfig, error) {
	list, err := c.Configs(ctx, id, ConfigFrom{}, seq)
	if err != nil || len(list) == 0 {
		return outboard.SessionConfig{}, err
	}
	return list[len(list)-1].Config, nil
}

// Configs returns the configs a session had after one that it had at some position, up to an event.
func (c *Control) Configs(ctx context.Context, id outboard.SessionID, last ConfigFrom,
	upto int64) ([]ConfigFrom, error) {
	var out []ConfigFrom
	q := EventQuery{After: last.Seq, Before: upto + 1, Types: configTypes, Limit: accountPage, Bytes: configBytes}
	for {
		page, err := c.store.Events(ctx, id, q)
		if err != nil {
			return nil, wrapLookup("session", string(id), err)
		}
		for i := range page {
			changed, err := advance(&last.Config, &page[i])
			if err != nil {
				return nil, err
			}
			if changed {
				out = append(out, ConfigFrom{page[i].Seq, last.Config})
			}
		}
		if q.Ends(page) {
			return out, nil
		}
		q.After = page[len(page)-1].Seq
	}
}

// advance applies one of configTypes to a config, and reports whether that changed it.
func advance(cfg *outboard.SessionConfig, e *outboard.Event) (changed bool, err error) {
	p, err := e.Decode()
	if err != nil {
		return false, err
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
		return p.Tools != nil || p.MCPServers != nil || p.Resources != nil || p.Budget != nil, nil
	}
	return true, nil
}

// UsageAt returns a header in which Usage, Active, Phase and RunningSince are what they were right after one
// event of the session; its other fields mean nothing. It reads what lies between the event and the nearest
// position whose sums are known: the last one that was asked for, the log's head, or its beginning. So a log is
// read from front to back, or back to front, in one pass.
func (c *Control) UsageAt(ctx context.Context, id outboard.SessionID, seq int64) (outboard.Header, error) {
	h, err := c.accountBefore(ctx, id, seq)
	if err == nil {
		_, err = c.account(ctx, id, &h, seq)
	}
	if err != nil {
		return h, wrapLookup("session", string(id), err)
	}
	c.Accounted(id, h)
	return h, nil
}

// Accounted tells of the sums at a position, h.Head, so that UsageAt can begin there. It is for a reader who
// went on from what UsageAt returned.
func (c *Control) Accounted(id outboard.SessionID, h outboard.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.accounts) >= maxAccounts {
		for old := range c.accounts { // any one: the cache only saves work
			delete(c.accounts, old)
			break
		}
	}
	c.accounts[id] = h
}

// account adds what changed the sums of h between its position and another one after it. It reports whether they
// began anew in between.
func (c *Control) account(ctx context.Context, id outboard.SessionID, h *outboard.Header,
	upto int64) (anew bool, err error) {
	q := EventQuery{After: h.Head, Before: upto + 1, Types: accountTypes, Limit: accountPage}
	for q.After < upto {
		page, err := c.store.Events(ctx, id, q)
		if err != nil {
			return anew, err
		}
		for i := range page {
			anew = anew || page[i].Type == outboard.TypeSessionForked
			if err := outboard.Project(h, &page[i]); err != nil {
				return anew, err
			}
		}
		if len(page) < q.Limit {
			break
		}
		q.After = page[len(page)-1].Seq
	}
	h.Head = upto
	return anew, nil
}

// accountBefore returns the sums at a position at or before seq, as near as they can be had.
func (c *Control) accountBefore(ctx context.Context, id outboard.SessionID, seq int64) (outboard.Header, error) {
	c.mu.Lock()
	kept := c.accounts[id]
	c.mu.Unlock()
	var before outboard.Header
	after := kept
	if kept.Head <= seq {
		before = kept
	}
	if far := max(seq-kept.Head, kept.Head-seq); far > accountPage {
		h, err := c.store.Session(ctx, id)
		if err != nil {
			return h, err
		}
		if kept.Head <= seq || h.Head < kept.Head {
			after = h
		}
	}
	if after.Head < seq || after.Head-seq >= seq-before.Head {
		return before, nil
	}
	h, ok, err := c.accountBack(ctx, id, after, seq)
	if !ok {
		h = before
	}
	return h, err
}

// accountBack returns the sums at the last end of a running spell up to seq, from those of a position after it.
// It is not ok when there is none, or when the sums began anew in between.
func (c *Control) accountBack(ctx context.Context, id outboard.SessionID, from outboard.Header,
	seq int64) (h outboard.Header, ok bool, err error) {
	stop, err := c.store.Events(ctx, id, EventQuery{Before: seq + 1, Desc: true, Types: stopTypes, Limit: 1})
	if err != nil || len(stop) == 0 {
		return h, false, err
	}
	since := outboard.Header{Head: stop[0].Seq, Phase: outboard.PhaseIdle}
	if anew, err := c.account(ctx, id, &since, from.Head); err != nil || anew {
		return h, false, err
	}
	return outboard.Header{Head: stop[0].Seq, Phase: outboard.PhaseIdle, Usage: from.Usage.Sub(since.Usage),
		Active: from.Active - since.Active}, true, nil
}
