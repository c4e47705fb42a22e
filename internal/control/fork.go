package control

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/store"
)

// ForkRequest makes sessions that begin as another one stood.
type ForkRequest struct {
	Seq      int64             // the position to fork at; 0 = now. The last settled one up to it is taken
	Count    int               // how many; 0 = 1
	Title    *string           // nil = the parent's
	Metadata map[string]string // nil = the parent's
	VaultIDs []string          // a fork has no vaults but these
	Prompt   string            // a message to start each fork with; "" = none, they wait
}

// position is a settled position of a log: nothing is half done there.
type position struct {
	seq        int64
	inTurn     bool                  // within a turn, between two model calls
	checkpoint outboard.CheckpointID // the newest state of the workspace; "" = none was saved
}

// restTypes are the events right after which a log is settled and in no turn, but for a turn that ended to wait
// for answers.
var restTypes = []outboard.EventType{outboard.TypeSessionCreated, outboard.TypeSessionForked,
	outboard.TypeSessionRewound, outboard.TypeTurnEnded}

// savedTypes are the events that say what state the workspace is in.
var savedTypes = []outboard.EventType{outboard.TypeCallFinished, outboard.TypeCheckpointCreated,
	outboard.TypeSandboxLost,
	outboard.TypeSessionRewound, outboard.TypeSessionForked}

// backPage is how many events a search from the end of a log reads at a time.
const backPage = 50

// newest returns the newest event of some types up to seq that want accepts, or nil.
func (c *Control) newest(ctx context.Context, id outboard.SessionID, seq int64, types []outboard.EventType,
	want func(outboard.Payload) bool) (*outboard.Event, outboard.Payload, error) {
	q := EventQuery{Before: seq + 1, Desc: true, Limit: backPage, Types: types}
	for {
		page, err := c.store.Events(ctx, id, q)
		if err != nil {
			return nil, nil, wrapLookup("session", string(id), err)
		}
		for i := range page {
			p, err := page[i].Decode()
			if err != nil {
				return nil, nil, err
			}
			if want(p) {
				return &page[i], p, nil
			}
		}
		if len(page) < q.Limit {
			return nil, nil, nil
		}
		q.Before = page[len(page)-1].Seq
	}
}

// settled returns the last settled position of a session up to seq. It reads the log from the last end of a turn
// on, not from its beginning.
func (c *Control) settled(ctx context.Context, id outboard.SessionID, seq int64) (position, error) {
	base, _, err := c.newest(ctx, id, seq, restTypes, func(p outboard.Payload) bool {
		end, ok := p.(*outboard.TurnEnded)
		return !ok || end.Stop.Type != "requires_action"
	})
	if err == nil && base == nil {
		err = outboard.Errorf(outboard.Internal, "session %s does not begin", id)
	}
	if err != nil {
		return position{}, err
	}
	pos := position{seq: base.Seq}
	st := &outboard.State{Header: outboard.Header{ID: id, Head: base.Seq}}
	for e, err := range c.store.Read(ctx, id, base.Seq) {
		if err == nil && e.Seq > seq {
			break
		}
		if err == nil {
			err = st.Apply(&e)
		}
		if err != nil {
			return pos, wrapLookup("session", string(id), err)
		}
		if st.Settled() && e.Type != outboard.TypeSessionArchived {
			pos.seq, pos.inTurn = e.Seq, st.InTurn
			st.History = nil // not needed, and this keeps a long turn small
		}
	}
	pos.checkpoint, err = c.checkpointAt(ctx, id, pos.seq)
	return pos, err
}

// checkpointAt returns the state of the workspace right after an event.
func (c *Control) checkpointAt(ctx context.Context, id outboard.SessionID, seq int64) (outboard.CheckpointID, error) {
	var at outboard.CheckpointID
	_, _, err := c.newest(ctx, id, seq, savedTypes, func(p outboard.Payload) bool {
		switch p := p.(type) {
		case *outboard.CallFinished:
			at = p.Checkpoint
			return at != ""
		case *outboard.CheckpointCreated:
			at = p.Checkpoint
		case *outboard.SandboxLost:
			at = p.Restore
		case *outboard.SessionForked:
			at = p.Checkpoint
		case *outboard.SessionRewound:
			at = p.Checkpoint
			return p.Machine
		}
		return true
	})
	return at, err
}

// Fork makes sessions that share another one's log up to a position, and start from the state its machine had
// there: all of them, or none. It returns the position, which may be before the one asked for.
func (c *Control) Fork(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	r ForkRequest) ([]Session, int64, error) {
	if err := requireDeveloper(by, scopeSessions); err != nil {
		return nil, 0, err
	}
	h, err := c.header(ctx, by, id)
	if err != nil {
		return nil, 0, err
	}
	if err := r.check(&h); err != nil {
		return nil, 0, err
	}
	if err := c.checkVaults(ctx, by, r.VaultIDs); err != nil {
		return nil, 0, err
	}
	pos, err := c.settled(ctx, id, r.Seq)
	if err != nil {
		return nil, 0, err
	}
	if pos.checkpoint, err = c.restorable(ctx, id, pos.checkpoint); err != nil {
		return nil, 0, err
	}
	cfg, err := c.ConfigAt(ctx, id, pos.seq)
	if err != nil {
		return nil, 0, err
	}
	cfg.VaultIDs, cfg.Owner = r.VaultIDs, by.Owner()
	forks := make([]store.Fork, r.Count)
	for i := range forks {
		if forks[i], err = c.fork(ctx, &h, r, pos, cfg); err != nil {
			return nil, 0, err
		}
	}
	ids := make([]outboard.SessionID, len(forks))
	for i := range forks {
		ids[i] = forks[i].Header.ID
	}
	if err := c.record(ctx, by, "session.fork", string(id), map[string]any{"seq": pos.seq, "forks": ids,
		"vaults": r.VaultIDs}); err != nil {
		return nil, 0, err
	}
	headers, err := c.store.Fork(ctx, id, pos.seq, forks)
	if err != nil {
		if outboard.KindOf(err) == outboard.NotFound {
			return nil, 0, notFound("session", string(id))
		}
		return nil, 0, outboard.Errorf(outboard.KindOf(err), "forking session %s: %w", id, err)
	}
	out := make([]Session, len(headers))
	for i := range headers {
		out[i] = Session{headers[i], forks[i].Config}
	}
	return out, pos.seq, nil
}

// check refuses what cannot be forked, and fills in what was left out.
func (r *ForkRequest) check(h *outboard.Header) error {
	if r.Seq == 0 {
		r.Seq = h.Head
	}
	if r.Seq < 1 || r.Seq > h.Head {
		return invalid("seq must be 1 to %d, the session's last event, not %d", h.Head, r.Seq)
	}
	if r.Count == 0 {
		r.Count = 1
	}
	if r.Count < 0 || r.Count > outboard.MaxForks {
		return invalid("count must be 1 to %d, not %d", outboard.MaxForks, r.Count)
	}
	if r.Title == nil {
		r.Title = &h.Title
	} else if err := length("title", *r.Title, 0, maxTitle); err != nil {
		return err
	}
	if r.Metadata == nil {
		r.Metadata = h.Metadata
		return nil
	}
	// without it there would be no way to make the first machine again
	if sent := h.Metadata[fleet.WorkspaceKey]; sent != "" {
		r.Metadata = maps.Clone(r.Metadata)
		r.Metadata[fleet.WorkspaceKey] = sent
	}
	return checkMetadata(r.Metadata)
}

// restorable returns the checkpoint, among those in the tables, that a session's log names: a session may start
// from no other. In a log that came out of a file it has the id of another server; if it came along, it follows
// the same call.
func (c *Control) restorable(ctx context.Context, id outboard.SessionID,
	named outboard.CheckpointID) (outboard.CheckpointID, error) {
	if named == "" {
		return "", nil
	}
	list, err := c.store.Checkpoints(ctx, id)
	if err != nil {
		return "", wrapLookup("session", string(id), err)
	}
	if i := slices.IndexFunc(list, func(k outboard.Checkpoint) bool { return k.ID == named }); i >= 0 {
		return named, thinned(list, i)
	}
	_, p, err := c.newest(ctx, id, math.MaxInt64-1, []outboard.EventType{outboard.TypeCheckpointCreated},
		func(p outboard.Payload) bool {
			return p.(*outboard.CheckpointCreated).Checkpoint == named
		})
	if err != nil {
		return "", err
	}
	if made, ok := p.(*outboard.CheckpointCreated); ok && made.Call != "" {
		if i := slices.IndexFunc(list, func(k outboard.Checkpoint) bool { return k.Call == made.Call }); i >= 0 {
			return list[i].ID, thinned(list, i)
		}
	}
	return "", outboard.Errorf(outboard.Conflict, "the files at that position were saved as %s, which is not kept",
		named).
		WithHint("choose a position with a checkpoint: outboard checkpoint ls")
}

// thinned refuses a checkpoint that was given up, and says which positions near it have one. Nothing is taken in
// its place: who goes back means what was there.
func thinned(list []outboard.Checkpoint, i int) error {
	k := &list[i]
	if !k.Thinned() {
		return nil
	}
	there := func(k outboard.Checkpoint) bool { return !k.Thinned() && k.Lost() == nil }
	before, after := "none before it", "none after it"
	hint := "outboard checkpoint ls shows what is kept"
	for _, b := range slices.Backward(list[:i]) {
		if there(b) {
			before = fmt.Sprintf("the nearest before it is %s at position %d", b.ID, b.Seq)
			hint = fmt.Sprintf("name a position that has one, such as %d; ", b.Seq) + hint
			break
		}
	}
	for _, a := range list[i+1:] {
		if there(a) {
			after = fmt.Sprintf("the nearest after it is %s at position %d", a.ID, a.Seq)
			break
		}
	}
	const public = "the files at that position (%s, at %d) are not kept: it was one of many old states; %s, %s"
	return outboard.Errorf(outboard.Conflict, public, k.ID, k.Seq, before, after).WithHint("%s", hint)
}

// fork makes one.
func (c *Control) fork(ctx context.Context, h *outboard.Header, r ForkRequest, pos position,
	cfg outboard.SessionConfig) (store.Fork, error) {
	now := c.clock()
	cfg.Budget = 0 // it spends of its parent's
	f := store.Fork{Config: cfg, Header: outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
		Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread), Title: *r.Title, Metadata: r.Metadata, AgentID: h.AgentID,
		AgentVersion: h.AgentVersion, EnvironmentID: h.EnvironmentID, CreatedAt: now, UpdatedAt: now, Org: h.Org, User: cfg.Owner.User}}
	var err error
	if f.Config.Resources, f.Files, err = c.copyResources(ctx, cfg.Resources, &f.Header); err != nil {
		return f, err
	}
	if err := c.copySent(ctx, &f); err != nil {
		return f, err
	}
	add := func(p outboard.Payload) { f.Events = append(f.Events, outboard.NewEvent(f.Header.Thread, p)) }
	add(&outboard.SessionForked{Parent: h.ID, Seq: pos.seq, Checkpoint: pos.checkpoint, Config: f.Config})
	if pos.inTurn {
		turn, err := c.turnAt(ctx, h.ID, pos.seq)
		if err != nil {
			return f, err
		}
		add(&outboard.TurnEnded{Turn: turn, Stop: outboard.StopReason{Type: "end_turn"}})
	}
	if r.Prompt == "" {
		return f, nil
	}
	prompt, err := c.spillEvent(ctx, f.Header.Org, f.Header.Thread,
		&outboard.InputMessage{Content: []outboard.Content{outboard.Text(r.Prompt)}}, new(pictures))
	f.Events = append(f.Events, prompt)
	return f, err
}

// turnAt returns the number of the turn that a position lies in.
func (c *Control) turnAt(ctx context.Context, id outboard.SessionID, seq int64) (n int, err error) {
	_, _, err = c.newest(ctx, id, seq, []outboard.EventType{outboard.TypeTurnStarted}, func(p outboard.Payload) bool {
		n = p.(*outboard.TurnStarted).Turn
		return true
	})
	return n, err
}

// copyResources gives a fork its own copies of the files that are mounted into its parent. One that was deleted
// is left out.
func (c *Control) copyResources(ctx context.Context, rs []outboard.Resource,
	h *outboard.Header) (out []outboard.Resource, files []outboard.File, err error) {
	now := c.clock()
	for _, r := range rs {
		f, err := c.fileOf(ctx, h.Org, r.File)
		if outboard.KindOf(err) == outboard.NotFound {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		f.ID, f.Session, f.CreatedAt, f.ExpiresAt = outboard.NewID[outboard.FileID](outboard.PrefixFile), h.ID, now, time.Time{}
		r.ID, r.File = outboard.NewID[outboard.ResourceID](outboard.PrefixResource), f.ID
		r.CreatedAt, r.UpdatedAt = now, now
		out, files = append(out, r), append(files, f)
	}
	return out, files, nil
}

// copySent gives a fork its own copy of the work that was sent along with its parent, which a machine from
// before the first checkpoint is made from.
func (c *Control) copySent(ctx context.Context, f *store.Fork) error {
	id, kind, ok := strings.Cut(f.Header.Metadata[fleet.WorkspaceKey], ":")
	if !ok {
		return nil
	}
	file, err := c.fileOf(ctx, f.Header.Org, outboard.FileID(id))
	if outboard.KindOf(err) == outboard.NotFound && err != nil {
		return nil // the parent could not have been made again either
	}
	if err != nil {
		return err
	}
	file.ID, file.Session, file.Downloadable = outboard.NewID[outboard.FileID](outboard.PrefixFile), f.Header.ID, false
	file.CreatedAt, file.ExpiresAt = f.Header.CreatedAt, time.Time{}
	f.Files = append(f.Files, file)
	f.Header.Metadata = maps.Clone(f.Header.Metadata)
	f.Header.Metadata[fleet.WorkspaceKey] = string(file.ID) + ":" + kind
	return nil
}

// Parent returns the session that one was forked from and the last event they share; "" and 0 for one that was not.
func (c *Control) Parent(ctx context.Context, by outboard.Caller,
	id outboard.SessionID) (outboard.SessionID, int64, error) {
	if _, err := c.header(ctx, by, id); err != nil {
		return "", 0, err
	}
	parent, seq, err := c.store.Parent(ctx, id)
	return parent, seq, wrapLookup("session", string(id), err)
}

// RewindRequest takes a session back to a position.
type RewindRequest struct {
	Seq          int64                 // the last settled position up to it is taken
	Checkpoint   outboard.CheckpointID // instead of Seq, for the machine alone
	Conversation bool                  // what the model remembers
	Machine      bool                  // what the next machine starts from
}

// Rewind takes a session back, which must rest: a turn that runs or waits for an answer is interrupted first.
// Nothing is deleted. It returns the position, which may be before the one asked for.
func (c *Control) Rewind(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	r RewindRequest) (Session, int64, error) {
	if err := requireDeveloper(by, scopeSessions); err != nil {
		return Session{}, 0, err
	}
	if !r.Conversation && !r.Machine {
		return Session{}, 0, invalid("a rewind takes back the conversation, the machine, or both; neither was asked for")
	}
	var to int64
	s, err := c.edit(ctx, by, id, func(s *Session) (store.Commit, error) {
		ev, err := c.rewind(ctx, by, s, r)
		if err != nil {
			return store.Commit{}, err
		}
		to = ev.To
		if err := c.record(ctx, by, "session.rewind", string(id), ev); err != nil {
			return store.Commit{}, err
		}
		return store.Commit{Events: []outboard.Event{outboard.NewEvent(s.Thread, ev)}}, nil
	})
	if err != nil {
		return s, 0, err
	}
	if r.Machine && c.fleet != nil {
		if err := c.fleet.Tidy(context.WithoutCancel(ctx), id); err != nil {
			c.log.Warn("destroying the sandbox of a rewound session", "session", id, "err", err) // the reaper will
		}
	}
	return s, to, nil
}

// rewind decides one.
func (c *Control) rewind(ctx context.Context, by outboard.Caller, s *Session,
	r RewindRequest) (*outboard.SessionRewound, error) {
	if r.Checkpoint != "" {
		k, err := c.restoring(ctx, s.ID, r)
		if err != nil {
			return nil, err
		}
		r.Seq = k.Seq
	}
	if r.Seq < 1 || r.Seq > s.Head {
		return nil, invalid("seq must be 1 to %d, the session's last event, not %d", s.Head, r.Seq)
	}
	if err := c.atRest(s, "rewound"); err != nil {
		return nil, err
	}
	if s.Parked() {
		return nil, invalid("session %s waits for an answer and cannot be rewound", s.ID).
			WithHint("answer it, or send user.interrupt and wait until it is idle")
	}
	pos, err := c.settled(ctx, s.ID, r.Seq)
	if err != nil {
		return nil, err
	}
	ev := &outboard.SessionRewound{To: pos.seq, Conversation: r.Conversation, Machine: r.Machine, By: by.Name}
	if r.Checkpoint != "" {
		ev.To = r.Seq // where its owner finds it in a list; the conversation, which can stand at fewer places, stays
	}
	if !r.Machine {
		return ev, nil
	}
	if ev.Checkpoint = r.Checkpoint; ev.Checkpoint == "" {
		if ev.Checkpoint, err = c.restorable(ctx, s.ID, pos.checkpoint); err != nil {
			return nil, err
		}
	}
	ev.Sandbox, err = c.machineOf(ctx, s.ID, s.Head)
	return ev, err
}

// restoring returns the checkpoint that a request names.
func (c *Control) restoring(ctx context.Context, id outboard.SessionID, r RewindRequest) (outboard.Checkpoint, error) {
	if r.Conversation || r.Seq != 0 {
		return outboard.Checkpoint{}, invalid("a checkpoint says where the machine goes back to, and nothing else: " +
			"give seq for the conversation")
	}
	list, err := c.store.Checkpoints(ctx, id)
	if err != nil {
		return outboard.Checkpoint{}, wrapLookup("session", string(id), err)
	}
	for i, k := range list {
		if k.ID == r.Checkpoint {
			return k, thinned(list, i)
		}
	}
	return outboard.Checkpoint{}, notFound("checkpoint", string(r.Checkpoint))
}

// machineOf returns the sandbox that a session uses, or "".
func (c *Control) machineOf(ctx context.Context, id outboard.SessionID, seq int64) (at outboard.SandboxID, err error) {
	types := []outboard.EventType{outboard.TypeSandboxReady, outboard.TypeSandboxLost, outboard.TypeSessionRewound,
		outboard.TypeSessionForked}
	_, _, err = c.newest(ctx, id, seq, types, func(p outboard.Payload) bool {
		switch p := p.(type) {
		case *outboard.SandboxReady:
			at = p.Sandbox
		case *outboard.SessionRewound:
			return p.Machine
		}
		return true
	})
	return at, err
}
