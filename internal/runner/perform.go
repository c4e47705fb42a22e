package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/tool"
)

// busyPause is the wait before a guest that has too many calls under way is asked again.
const busyPause = 250 * time.Millisecond

// perform brings one call, whose intent is durable, to its outcome. It runs beside the turn's goroutine and touches nothing of
// the turn that changes.
func (t *turn) perform(ctx context.Context, box *fleet.Box, j *job, sets []outboard.Toolset) (r result) {
	r.job = j
	defer func() {
		if v := recover(); v != nil {
			r = result{job: j, panic: asPanic(v)}
		}
	}()
	if r.err = t.alive(ctx); r.err != nil { // its intent is durable, and its outcome unknown: it was not sent, but another process cannot know
		return r
	}
	if j.local() {
		r.fin, r.err = t.fetch(ctx, j, sets)
		return r
	}
	res, late, err := t.send(ctx, box, j)
	refusal, refused := errors.AsType[*guest.Error](err)
	switch {
	case err == nil:
		r.fin = new(tool.Finish(j.call.ID, res, j.pids))
		if late && r.fin.Outcome == outboard.OutcomeCanceled {
			r.fin.Outcome = outboard.OutcomeError
			r.fin.Content = append(r.fin.Content, outboard.Text("It had not ended long after its timeout."))
		}
	case t.ctx.Err() != nil:
		r.err = context.Cause(t.ctx)
	case isFenced(err):
		r.err = store.ErrFenced
	case isGone(err):
		r.lost = true
	case refused:
		t.log.Error("the guest refused a call", "call", j.call.ID, "err", err)
		r.fin = new(refusedBy(refusal, j))
	case ctx.Err() != nil && !stopped(ctx):
		r.err = context.Cause(ctx)
	default:
		t.log.Warn("a call's connection failed; asking again", "call", j.call.ID, "err", err)
		r.lost = true
	}
	return r
}

// refusedBy is the outcome of a call that the guest answers with an error. When it is the guest's own, nothing is known.
func refusedBy(e *guest.Error, j *job) outboard.CallFinished {
	outcome, text := outboard.OutcomeError, "The sandbox refused this call ("+e.Code+"): "+e.Message
	if e.Code == guest.Internal && j.def.Class == outboard.ClassEffect {
		outcome, text = outboard.OutcomeUnknown, "OUTCOME UNKNOWN. The sandbox could not keep account of this call, which ran at most once: "+e.Message
	}
	return tool.Failed(j.call.ID, outcome, text)
}

// send starts the call, or finds that it was started before, and waits for its end. An interrupt, or time far beyond the call's
// own timeout (late), kills it; what it had come to by then is its true result.
func (t *turn) send(ctx context.Context, box *fleet.Box, j *job) (res guest.Result, late bool, err error) {
	key := j.sent.Key
	wctx, cancel := context.WithDeadline(ctx, t.latest(j))
	defer cancel()
	begun := sync.OnceFunc(func() { close(j.begun) })
	defer begun()
	if j.after != nil {
		select {
		case <-j.after:
		case <-wctx.Done():
		}
	}
	if err = context.Cause(ctx); err == nil {
		start := j.def.Start(key, t.epoch, j.sent.Generation, j.thread, j.input)
		start.Digest = j.sent.Digest
		for res, err = box.Start(wctx, start); isBusy(err) && wctx.Err() == nil; res, err = box.Start(wctx, start) {
			t.pause(wctx, busyPause) // nothing was recorded inside: asking again is not sending twice
		}
	}
	begun()
	if err == nil && !over(res) {
		res, err = box.Wait(wctx, key, t.epoch)
	}
	late = ctx.Err() == nil && wctx.Err() != nil
	if err == nil || !late && !stopped(ctx) {
		return res, false, err
	}
	kctx, cancel := context.WithTimeout(t.ctx, killTime)
	defer cancel()
	res, err = box.Kill(kctx, key, t.epoch)
	if err == nil && !over(res) {
		res, err = box.Wait(kctx, key, t.epoch)
	}
	return res, late, err
}

func isBusy(err error) bool {
	e, ok := errors.AsType[*guest.Error](err)
	return ok && e.Code == guest.Busy
}

// over reports whether a call's state is final.
func over(res guest.Result) bool {
	return res.State == guest.StateDone || res.State == guest.StateKilled
}

// latest is when a call's machine counts as hung. Calls of one shell wait for each other in the guest, so each may have to wait
// for a whole batch before its own time begins; a call that is picked up late still gets the grace.
func (t *turn) latest(j *job) time.Time {
	own := j.def.Timeout(j.input)
	at := time.Now().Add(own + (outboard.MaxParallelCalls-1)*max(own, outboard.DefaultBashTimeout) + callGrace)
	if !j.cut.IsZero() && j.cut.Before(at) {
		return j.cut
	}
	return at
}

// fetch runs a call in this process.
func (t *turn) fetch(ctx context.Context, j *job, sets []outboard.Toolset) (*outboard.CallFinished, error) {
	if t.cfg.Fetcher == nil {
		return new(tool.Failed(j.call.ID, outboard.OutcomeError, fmt.Sprintf("%s is not available on this server.", j.def.Name))), nil
	}
	ctx, cancel := context.WithTimeout(ctx, j.def.Timeout(j.input)+callGrace)
	defer cancel()
	fin := t.cfg.Fetcher.Fetch(ctx, j.call.ID, j.input, tool.WebOf(sets))
	switch {
	case t.ctx.Err() != nil:
		return nil, context.Cause(t.ctx)
	case stopped(ctx) && fin.IsError:
		fin = tool.Failed(j.call.ID, outboard.OutcomeCanceled, "Canceled by an interrupt of the user.")
	}
	return &fin, nil
}
