package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/tool"
)

// busyPause is the wait before a guest that has too many calls under way is asked again.
const busyPause = 250 * time.Millisecond

// freshNote tells the model why the state of its shell is not there.
const freshNote = "[a person allowed this command, so it ran in a fresh shell: nothing of your shell was there " +
	"(directory, variables, functions), " +
	"and nothing of it stays in yours]"

// perform brings one call, whose intent is durable, to its outcome. It runs beside the turn's goroutine and
// touches nothing of the turn that changes.
func (t *turn) perform(ctx context.Context, lease *fleet.Lease, j *job, sets []outboard.Toolset) (r result) {
	r.job = j
	defer func() {
		if v := recover(); v != nil {
			r = result{job: j, panic: asPanic(v)}
		}
	}()
	defer close(j.ended)
	for _, before := range j.waits {
		select {
		case <-before:
		case <-ctx.Done():
		}
	}
	// its intent is durable, and its outcome unknown: it was not sent, but another process cannot know
	if r.err = t.alive(ctx); r.err != nil {
		return r
	}
	if j.local() {
		r.fin, r.err = t.fetch(ctx, j, sets)
		return r
	}
	res, late, err := t.send(ctx, lease, j)
	if err == nil {
		if r.fin, err = t.picture(t.ctx, lease, j, res); r.fin != nil {
			return r
		}
	}
	refusal, refused := errors.AsType[*guest.Error](err)
	switch {
	case err == nil:
		res = t.sift(ctx, j, res)
		r.fin = new(tool.Finish(j.call.ID, res, j.limits))
		if j.fresh() {
			r.fin.Content = append(r.fin.Content, outboard.Text(freshNote))
		}
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

// refusedBy is the outcome of a call that the guest answers with an error. When it is the guest's own, nothing
// is known.
func refusedBy(e *guest.Error, j *job) outboard.CallFinished {
	outcome, text := outboard.OutcomeError, "The sandbox refused this call ("+e.Code+"): "+e.Message
	if e.Code == guest.Internal && j.def.Class == outboard.ClassEffect {
		outcome, text = outboard.OutcomeUnknown, "OUTCOME UNKNOWN. The sandbox could not keep account of this call, "+
			"which ran at most once: "+e.Message
	}
	return tool.Failed(j.call.ID, outcome, text)
}

// send starts the call, or finds that it was started before, and waits for its end. An interrupt, or time far
// beyond the call's own timeout (late), kills it; what it had come to by then is its true result.
func (t *turn) send(ctx context.Context, lease *fleet.Lease, j *job) (res guest.Result, late bool, err error) {
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
		start := j.def.Start(key, t.epoch, j.sent.Generation, j.thread, j.def.At(j.input, j.sent.Opens))
		start.Digest = j.sent.Digest
		if j.fresh() {
			start.Shell = guest.OncePrefix + key
		}
		for res, err = lease.Start(wctx, start); isBusy(err) && wctx.Err() == nil; res, err = lease.Start(wctx, start) {
			t.pause(wctx, busyPause) // nothing was recorded inside: asking again is not sending twice
		}
	}
	begun()
	if err == nil && !over(res) {
		res, err = t.follow(wctx, lease, j)
	}
	late = ctx.Err() == nil && wctx.Err() != nil
	if err == nil || !late && !stopped(ctx) {
		return res, false, err
	}
	kctx, cancel := context.WithTimeout(t.ctx, killTime)
	defer cancel()
	res, err = lease.Kill(kctx, key, t.epoch)
	if err == nil && !over(res) {
		res, err = lease.Wait(kctx, key, t.epoch)
	}
	return res, late, err
}

// follow waits for the end of a call. Who watches the session is shown the newest line of a command meanwhile; the
// log is not.
func (t *turn) follow(ctx context.Context, lease *fleet.Lease, j *job) (guest.Result, error) {
	if !j.def.Shell {
		return lease.Wait(ctx, j.sent.Key, t.epoch)
	}
	show := func(line string) {
		t.cfg.Live.Publish(live.Delta{Session: t.id, Thread: j.thread, Event: j.call.ID, Kind: live.CallOutput,
			After: j.head, Text: tool.Clean(line)})
	}
	defer show("")
	return lease.Follow(ctx, j.sent.Key, t.epoch, show)
}

// sift takes out of what a search found what the policies do not let it tell of.
func (t *turn) sift(ctx context.Context, j *job, res guest.Result) guest.Result {
	if !j.def.Searches() || j.sent.Opens == "" || res.State != guest.StateDone || res.Cause != "exited" {
		return res
	}
	found, notes, ok := guest.ParseHits(res.Output)
	if !ok || res.Truncated {
		res.Cause, res.Output, res.Truncated = "error", []byte(j.def.Name+": the sandbox's answer cannot be read"), false
		return res
	}
	paths := make([]string, len(found))
	for i, h := range found {
		paths[i] = h.Path
	}
	may := t.cfg.Policy.Sift(ctx, &j.request, paths)
	left := slices.DeleteFunc(found, func(h guest.Hit) bool { return !may[h.Path] })
	if n := len(paths) - len(left); n > 0 {
		notes += fmt.Sprintf("[%d results left out: the policies do not allow this call to tell of them]\n", n)
	}
	res.Output = guest.RenderHits(left, notes)
	return res
}

// redirects judges the addresses that pages redirect to, as the call's own was.
func (t *turn) redirects(j *job) tool.Judge {
	return func(ctx context.Context, address string) (string, error) {
		input, err := json.Marshal(map[string]string{"url": address})
		if err != nil {
			return "", err
		}
		call := j.call.Requested
		if call.Opens, err = policy.Opens(j.def.Name, input, ""); err != nil {
			return "", err
		}
		r := j.request
		if plainly(call.Opens) != plainly(j.sent.Opens) { // another address than the one that was allowed
			r.Context.Approved, r.Context.Granted = false, false
		}
		r.ForCall(&call, input)
		v, _ := t.cfg.Policy.Decide(ctx, &r)
		switch {
		case v.Decision == outboard.Deny:
			return "", outboard.Errorf(outboard.Denied, "%s: %s", call.Opens, v.Reason)
		case v.Decision == outboard.Ask:
			return "", outboard.Errorf(outboard.Denied, "%s: a person must allow it: %s; fetch that address to ask",
				call.Opens, v.Reason)
		}
		return call.Opens, nil
	}
}

// plainly is an address without its scheme: the same one over TLS is no other.
func plainly(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	return rest
}

func isBusy(err error) bool {
	e, ok := errors.AsType[*guest.Error](err)
	return ok && e.Code == guest.Busy
}

// over reports whether a call's state is final.
func over(res guest.Result) bool {
	return res.State == guest.StateDone || res.State == guest.StateKilled
}

// latest is when a call's machine counts as hung. Calls of one shell wait for each other in the guest, so each
// may have to wait for a whole batch before its own time begins; a call that is picked up late still gets the
// grace.
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
	if j.def.Run != nil {
		return new(j.def.Answer(j.call.ID, j.input, j.last)), nil
	}
	if t.cfg.Fetcher == nil {
		return new(tool.Failed(j.call.ID, outboard.OutcomeError, fmt.Sprintf("%s is not available on this server.",
			j.def.Name))), nil
	}
	ctx, cancel := context.WithTimeout(ctx, j.def.Timeout(j.input)+callGrace)
	defer cancel()
	input := j.input
	if j.sent != nil && j.sent.Opens != "" {
		b, err := json.Marshal(map[string]string{"url": j.sent.Opens})
		if err != nil {
			return nil, err
		}
		input = b
	}
	fin := t.cfg.Fetcher.Fetch(ctx, j.call.ID, input, tool.WebOf(sets), t.redirects(j))
	switch {
	case t.ctx.Err() != nil:
		return nil, context.Cause(t.ctx)
	case stopped(ctx) && fin.IsError:
		fin = tool.Failed(j.call.ID, outboard.OutcomeCanceled, "Canceled by an interrupt of the user.")
	}
	return &fin, nil
}
