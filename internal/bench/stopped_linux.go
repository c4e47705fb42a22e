package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// restCrowd is how many sandboxes rest at a time: enough that what else the host does is little for each.
const restCrowd = 200

// restRows lets sandboxes rest: frozen, and stopped, of which only the files stay. Then it resumes stopped ones,
// one after the other, when nothing else is going on: first where a started sandbox waits, as by default, then
// where none does.
func restRows(ctx context.Context, h *hands) ([]Row, error) {
	if !h.native.Capabilities().Layers {
		return []Row{{Name: "sandbox/resume-stopped-first", Note: "this host has no layers"}}, nil
	}
	n := min(h.Crowd, restCrowd)
	before, err := h.remains()
	if err != nil {
		return nil, err
	}
	memory, err := hostMemory()
	if err != nil {
		return nil, err
	}
	var boxes []sandbox.Sandbox
	defer func() {
		for _, b := range boxes {
			h.native.Destroy(context.WithoutCancel(ctx), b.ID())
		}
	}()
	for range n {
		b, _, err := h.make(ctx)
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, b)
		if _, err := bashOnce(ctx, b, "cd /workspace; echo >> changed", "1"); err != nil {
			return nil, err
		}
		if err := b.Freeze(ctx); err != nil {
			return nil, err
		}
	}
	frozen, err := groupMemory(ctx, "frozen-memory", boxes, "whose shell has run a command: the shell waits in it")
	if err != nil {
		return nil, err
	}
	var kept []outboard.CheckpointID
	for _, b := range boxes {
		id := outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint)
		err := b.Thaw(ctx)
		if err == nil {
			_, err = b.(sandbox.Layered).Push(ctx, id, "")
		}
		if err = errors.Join(err, b.Close(), h.native.Destroy(ctx, b.ID())); err != nil {
			return nil, fmt.Errorf("stopping a sandbox: %w", err)
		}
		kept = append(kept, id)
	}
	boxes = nil
	stopped, err := perBox(memory, n)
	if err != nil {
		return nil, err
	}
	warm, cold, err := h.resumed(ctx, kept[:min(n, 30)])
	if err != nil {
		return nil, err
	}
	left, err := h.remains()
	if err != nil {
		return nil, err
	}
	gone := Row{Name: "sandbox/stopped-memory", Unit: "KiB", N: n, Floor: 1536, Bar: "0", OK: left == before,
		Note: fmt.Sprintf("left of them beside their files: %s; all that the host uses, its cached names of files "+
			"included, moved by %.1f KiB each", left.since(before), stopped)}
	if !gone.OK {
		gone.P50, gone.P99 = round(stopped), round(stopped)
	}
	resume := latency("resume-stopped-first", warm, 14)
	resume.Note = "floor is F, the spawn of " + h.kind + "; a started sandbox waits, as by default"
	return []Row{resume, latency("resume-stopped-cold", cold, 0), frozen, gone}, nil
}

// resumed resumes sandboxes by two more providers of the same directory: one that starts sandboxes ahead, and
// one that does not.
func (h *hands) resumed(ctx context.Context, kept []outboard.CheckpointID) (warm, cold []time.Duration, err error) {
	if err := h.native.Close(); err != nil {
		return nil, nil, err
	}
	for _, r := range []struct {
		took *[]time.Duration
		warm int
	}{{&warm, 1}, {&cold, 0}} {
		p, err := native.New(native.Config{Dir: h.Dir, Guest: h.Guest, Ahead: 4, Warm: r.warm})
		if err != nil {
			return nil, nil, err
		}
		other := *h
		other.native = p
		*r.took, err = other.resumes(ctx, kept)
		if err = errors.Join(err, p.Close()); err != nil {
			return nil, nil, err
		}
	}
	return warm, cold, nil
}

// perBox is what each of n has taken since, in KiB.
func perBox(since int64, n int) (float64, error) {
	now, err := hostMemory()
	return max(0, float64(now-since)/float64(n)/1024), err
}

// resumes times sandboxes that begin with what a stopped one left on this host, with their first command.
func (h *hands) resumes(ctx context.Context, kept []outboard.CheckpointID) (took []time.Duration, err error) {
	for i, from := range append(kept[:1:1], kept...) {
		h.native.TrashEmpty()
		h.native.PoolFilled()
		id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
		begin := time.Now()
		box, err := h.native.Create(ctx, sandbox.Spec{ID: id, Generation: string(id), From: from})
		if err != nil {
			return nil, err
		}
		_, err = execOnce(ctx, box, "exec", processTrue, string(id)+"/1")
		if i > 0 { // the first makes the kind known, of which some are then made ahead
			took = append(took, time.Since(begin))
		}
		if err := errors.Join(err, box.Close(), h.native.Destroy(ctx, id)); err != nil {
			return nil, err
		}
	}
	return took, nil
}
