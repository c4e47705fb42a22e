package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/term"
)

// What a kill promises, and how a drill looks at it.
const (
	promiseEffects   = time.Second
	promiseProcesses = 5 * time.Second

	drillProcesses = 100 // enough that ending them one by one would show
	// of the model and a tool, one after the other, before the session only waits for the model
	drillCalls    = 600
	drillBeats    = 3                // requests of the session that must have been seen before the kill
	drillSetup    = 90 * time.Second // for the session to be as busy as it must be
	drillWatch    = 3 * time.Second  // how long effects are looked for after the kill: well beyond the promise
	drillPatience = 10 * time.Second // for what has not ended by then
	drillLook     = 20 * time.Millisecond
)

// drillRow is one promise and what became of it.
type drillRow struct {
	Type    string  `json:"type"`
	Name    string  `json:"name"`
	Took    float64 `json:"took_seconds"`
	Promise float64 `json:"promise_seconds"`
	OK      bool    `json:"ok"`
	Note    string  `json:"note,omitempty"`
}

// drill is one measured kill: of something of its own, or of a session that the caller named.
type drill struct {
	a     *app
	c     *client.Client
	scope outboard.KillScope
	level outboard.KillLevel
	mark  string // an argument that the processes carry
	watch time.Duration
	extra string // more for the shell to start
	calls int    // of a model and a tool that the session makes

	target   string
	session  string                            // "" of a credential
	given    bool                              // the session is the caller's
	use      func(ctx context.Context) error   // one use of what must be dead
	visible  bool                              // the processes can be counted here
	undo     []func(ctx context.Context) error // of what it made, last first
	thrown   time.Time                         // by this machine's clock
	kills    []string
	report   client.KillReport
	gone     time.Time // when no process was left
	deadAt   time.Time // when a use was refused
	deadWith error
}

// runDrill measures a kill. Without a target it makes a session for the purpose and removes it at the
// end; its audit records stay.
func runDrill(ctx context.Context, a *app, scope outboard.KillScope, ref string, o killOptions) (err error) {
	d := &drill{a: a, scope: scope, level: outboard.KillLevel(o.level), target: ref, given: ref != "",
		watch: drillWatch, calls: drillCalls, mark: fmt.Sprintf("86400.%d", os.Getpid())}
	switch {
	case d.level.Rank() == 0:
		return usagef("--level %q is not pause, stop or revoke", o.level)
	case scope == outboard.KillAll || scope == outboard.KillHost:
		return usagef("a drill of %s would end the work of others", scope).
			WithHint("outboard kill --drill session, agent, environment, owner or credential")
	case d.given && scope != outboard.KillSession:
		return usagef("a drill takes a session, or makes what it kills").
			WithHint("outboard kill --drill session SESSION")
	case prefixOf[scope] == "":
		return usagef("%q cannot be killed: name session, agent, environment, owner or credential", scope)
	}
	c, err := a.connect(ctx, needWork)
	if err != nil {
		return err
	}
	defer c.Close()
	d.c = c.Client
	defer func() {
		wctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drillSetup)
		defer cancel()
		err = errors.Join(err, d.clean(wctx))
	}()
	if err := d.prepare(ctx); err != nil {
		return err
	}
	if err := d.throw(ctx); err != nil {
		return err
	}
	rows, err := d.judge(ctx)
	if err != nil {
		return err
	}
	return d.show(rows)
}

// prefixOf are the scopes that a drill can make something for, and what their ids begin with.
var prefixOf = map[outboard.KillScope]string{outboard.KillSession: outboard.PrefixSession,
	outboard.KillAgent:       outboard.PrefixAgent,
	outboard.KillEnvironment: outboard.PrefixEnvironment, outboard.KillOwner: outboard.PrefixKey, outboard.KillCredential: outboard.PrefixCredential}

// prepare makes what is killed, and waits until it is busy.
func (d *drill) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drillSetup)
	defer cancel()
	switch {
	case d.given:
		s, err := findSession(ctx, d.c, d.target)
		d.session, d.target, d.use = s.ID, s.ID, d.speak
		return err
	case d.scope == outboard.KillCredential:
		return d.makeCredential(ctx)
	}
	if err := d.makeSession(ctx); err != nil {
		return err
	}
	d.a.say("waiting until session %s works, with %d processes and an open stream", d.session, drillProcesses)
	return d.busy(ctx)
}

// drillCredentialURL is where the credential of a drill may go: nowhere.
const drillCredentialURL = "https://" + egress.SelftestHost + "/"

func (d *drill) makeCredential(ctx context.Context) error {
	v, err := d.c.CreateVault(ctx, "outboard kill --drill")
	if err != nil {
		return err
	}
	d.undo = append(d.undo, func(ctx context.Context) error { return d.c.DeleteVault(ctx, v.ID) })
	k, err := d.c.CreateCredential(ctx, v.ID, map[string]any{"display_name": "drill",
		"auth": map[string]any{"type": outboard.AuthHeader, "name": "drill",
			"hosts": []string{egress.SelftestHost}, "value": "a secret of a drill, good for nothing"}})
	if err != nil {
		return err
	}
	d.target = k.ID
	d.use = func(ctx context.Context) error {
		_, err := d.c.TestCredential(ctx, v.ID, k.ID, "GET", drillCredentialURL)
		return err
	}
	return d.use(ctx) // what is not used before the kill proves nothing
}

// script has the session start its processes, and then call the model and a tool until it is killed.
func (d *drill) script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "- bash: |\n"+
		"    for i in $(seq %d); do sleep %s & done\n"+
		"    ask() { exec 3<>/dev/tcp/%s/80 && printf 'GET %%s HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n' \"$1\" >&3 && cat <&3 >/dev/null; }\n"+
		"    (ask %s) >/dev/null 2>&1 &\n"+
		"    (while :; do (ask /beat); sleep 0.05; done) >/dev/null 2>&1 &\n"+
		"    %s\n", drillProcesses, d.mark, egress.SelftestHost, egress.SelftestHost, egress.SelftestStream, d.extra)
	for range d.calls {
		b.WriteString("- sleep: 100ms\n- bash: ':'\n")
	}
	// a session at rest does nothing that a kill could end, and its sandbox rests as well
	b.WriteString("- sleep: 1h\n")
	return b.String()
}

func (d *drill) makeSession(ctx context.Context) error {
	name := "outboard kill --drill"
	agent, err := d.c.CreateAgent(ctx, map[string]any{"name": name, "model": "script/steps",
		"tools": []any{map[string]any{"type": "agent_toolset_20260401"}}})
	if err != nil {
		return err
	}
	d.undo = append(d.undo, func(ctx context.Context) error { return d.c.ArchiveAgent(ctx, agent.ID) })
	env, err := d.c.CreateEnvironment(ctx, map[string]any{"name": fmt.Sprintf("%s %d", name, time.Now().UnixMicro()),
		"config": map[string]any{"type": "cloud",
			"networking": map[string]any{"type": "limited", "allowed_hosts": []string{egress.SelftestHost}}}})
	if err != nil {
		return err
	}
	d.undo = append(d.undo, func(ctx context.Context) error { return d.c.DeleteEnvironment(ctx, env.ID) })
	owner, key := d.c, client.Key{}
	if d.scope == outboard.KillOwner {
		if key, err = d.c.CreateKey(ctx, client.NewKey{Name: name, Role: "developer",
			Expires: int64(time.Hour.Seconds())}); err != nil {
			return err
		}
		d.undo = append(d.undo, func(ctx context.Context) error { _, err := d.c.RevokeKey(ctx, key.ID); return err })
		if owner, err = client.New(client.Config{URL: d.c.URL(), Key: key.Secret,
			Insecure: d.a.env("OUTBOARD_INSECURE") == "1"}); err != nil {
			return err
		}
		d.undo = append(d.undo, func(context.Context) error { owner.Close(); return nil })
	}
	s, err := owner.CreateSession(ctx, client.NewSession{Agent: agent.ID, EnvironmentID: env.ID, Title: name,
		InitialEvents: []any{client.UserMessage(d.script())}})
	if err != nil {
		return err
	}
	d.session = s.ID
	d.undo = append(d.undo, func(ctx context.Context) error { return d.remove(ctx, s.ID) })
	d.target = map[outboard.KillScope]string{outboard.KillSession: s.ID, outboard.KillAgent: agent.ID,
		outboard.KillEnvironment: env.ID, outboard.KillOwner: key.ID}[d.scope]
	d.use = d.speak
	if d.scope == outboard.KillOwner { // what must be dead is the key
		d.use = func(ctx context.Context) error {
			_, err := owner.Send(ctx, s.ID, client.UserMessage("- say: no"))
			return err
		}
	}
	return nil
}

// speak gives the session something to do.
func (d *drill) speak(ctx context.Context) error {
	_, err := d.c.Send(ctx, d.session, client.UserMessage("- say: no"))
	return err
}

// remove deletes the session, once whoever runs it has let it go.
func (d *drill) remove(ctx context.Context, id string) error {
	for {
		err := d.c.DeleteSession(ctx, id)
		if err == nil || outboard.KindOf(err) == outboard.NotFound {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("removing the drill's session %s: %w", id, err)
		case <-time.After(drillLook):
		}
	}
}

// seen is what the audit says of the session's requests.
type seen struct {
	beats  int
	last   time.Time // of the last request that was let through
	any    time.Time // of the last that was made
	stream bool
	end    time.Time // of the stream
}

func (d *drill) requests(ctx context.Context) (s seen, err error) {
	for r, err := range d.c.Audit(ctx, url.Values{"actor": {d.session}, "order": {"asc"}, "limit": {"1000"}}) {
		if err != nil {
			return s, err
		}
		switch {
		case r.Action == egress.ActionSelftestEnd:
			s.end = r.At
		case r.Action != egress.ActionRequest:
		case r.Decision == outboard.Allowed:
			s.stream = s.stream || strings.HasSuffix(r.Resource, egress.SelftestStream)
			s.beats++
			s.last, s.any = r.At, r.At
		default:
			s.any = r.At
		}
	}
	return s, nil
}

// busy waits until the session has shown everything that is going to end.
func (d *drill) busy(ctx context.Context) error {
	var s seen
	for {
		var err error
		if s, err = d.requests(ctx); err == nil && s.stream && s.beats > drillBeats {
			break
		}
		select {
		case <-ctx.Done():
			return outboard.Errorf(outboard.Unavailable, "the session of the drill %s made %d requests, and its "+
				"stream is open: %v (%w)", d.session, s.beats, s.stream, errors.Join(err, ctx.Err())).
				WithHint("outboard logs %s", d.session)
		case <-time.After(drillLook):
		}
	}
	// The last ones may still be on their way to their program. Where none is seen, they are on another machine.
	for end := time.Now().Add(drillPatience); ctx.Err() == nil && time.Now().Before(end); time.Sleep(drillLook) {
		n := processesMarked(d.mark)
		if d.visible = n >= drillProcesses; d.visible || n == 0 {
			break
		}
	}
	return nil
}

// throw throws the switch, and watches what can be seen from here.
func (d *drill) throw(ctx context.Context) error {
	watch, stop := context.WithTimeout(ctx, d.watch+drillPatience)
	defer stop()
	var all sync.WaitGroup
	d.thrown = time.Now()
	if !d.given { // a session of somebody is told nothing before it is dead
		all.Go(func() { d.untilDead(watch) })
	}
	if d.visible {
		all.Go(func() { d.untilGone(watch) })
	}
	r, err := d.c.Kill(ctx, client.NewKill{Scope: string(d.scope), Target: d.target, Level: string(d.level),
		Reason: "a drill"})
	if err != nil {
		stop()
		all.Wait()
		return err
	}
	d.report, d.kills = r, append(d.kills, r.Kill.ID)
	if d.given {
		d.untilDead(watch)
	}
	all.Wait()
	select { // effects after the promised time are looked for
	case <-time.After(time.Until(d.thrown.Add(d.watch))):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// untilDead uses what is killed until it is refused.
func (d *drill) untilDead(ctx context.Context) {
	for ctx.Err() == nil {
		err := d.use(ctx)
		if _, ok := errors.AsType[*outboard.Error](err); ok && outboard.KindOf(err) != outboard.Unavailable &&
			outboard.KindOf(err) != outboard.Canceled {
			d.deadAt, d.deadWith = time.Now(), err
			return
		}
		select {
		case <-time.After(drillLook):
		case <-ctx.Done():
		}
	}
}

// untilGone waits until no process is left, or until all are as they must be at a pause: it cannot be seen from
// here, so they are left.
func (d *drill) untilGone(ctx context.Context) {
	if d.level == outboard.KillPause {
		return
	}
	for ctx.Err() == nil {
		if processesMarked(d.mark) == 0 {
			d.gone = time.Now()
			return
		}
		select {
		case <-time.After(drillLook):
		case <-ctx.Done():
		}
	}
}

// judge sets what was seen beside the promises.
func (d *drill) judge(ctx context.Context) ([]drillRow, error) {
	rows := []drillRow{}
	if d.session != "" {
		s, err := d.requests(ctx)
		if err != nil {
			return nil, err
		}
		call, err := d.lastCall(ctx)
		if err != nil {
			return nil, err
		}
		rows = append(rows, d.effects(s, call), d.processes(s))
	}
	dead := drillRow{Name: "tokens are dead", Took: d.deadAt.Sub(d.thrown).Seconds(),
		Promise: promiseProcesses.Seconds(), OK: !d.deadAt.IsZero()}
	if d.deadAt.IsZero() {
		dead.Took, dead.Note = time.Since(d.thrown).Seconds(), "a use was never refused"
	} else {
		dead.Note = "refused: " + d.deadWith.Error()
	}
	rows = append(rows, dead)
	for i := range rows {
		rows[i].Type, rows[i].OK = "drill_row", rows[i].OK && rows[i].Took <= rows[i].Promise
	}
	return rows, nil
}

// lastCall is when the last tool call was dispatched.
func (d *drill) lastCall(ctx context.Context) (at time.Time, err error) {
	for e, err := range d.c.Events(ctx, d.session, client.EventQuery{Desc: true, Limit: 20,
		Types: []string{"agent.tool_use"}}) {
		return e.ProcessedAt, err
	}
	return at, nil
}

// effects is the last thing the session did to the world, by the server's clock.
func (d *drill) effects(s seen, call time.Time) drillRow {
	row := drillRow{Name: "no new side effect", Promise: promiseEffects.Seconds(), OK: true}
	last, what := s.last, "request"
	if call.After(last) {
		last, what = call, "tool call"
	}
	if s.end.After(last) {
		last, what = s.end, "piece of the stream"
	}
	row.Took = max(0, last.Sub(d.report.Kill.At).Seconds())
	row.Note = fmt.Sprintf("the last was a %s; %s in flight", what, count(len(d.report.InFlight), "call"))
	if last.IsZero() {
		row.Note = "it did nothing"
	}
	if s.stream && s.end.IsZero() {
		row.OK, row.Note = false, "the open stream was not cut"
	}
	if d.given {
		row.Note += "; it is a session of yours, so only what it did by itself is seen"
	}
	return row
}

// processes is when the last one was gone: seen in the process table, or as the server reports.
func (d *drill) processes(s seen) drillRow {
	row := drillRow{Name: "no process", Promise: promiseProcesses.Seconds(), OK: d.report.Machines+d.report.Flows == 0}
	switch {
	case d.level == outboard.KillPause: // frozen: they ask for nothing any more
		row.Name = "no process runs"
		row.Took, row.Note = max(0, s.any.Sub(d.report.Kill.At).Seconds()), "by their last request"
		if d.visible && processesMarked(d.mark) == 0 {
			row.Note = "this host cannot freeze, so they were killed"
		}
	case d.visible:
		row.Took, row.Note = d.gone.Sub(d.thrown).Seconds(), fmt.Sprintf("%d were seen here", drillProcesses)
		if d.gone.IsZero() {
			row.OK, row.Took, row.Note = false, time.Since(d.thrown).Seconds(), fmt.Sprintf("%d are left",
				processesMarked(d.mark))
		}
	default:
		row.Took, row.Note = d.report.Took, "as the server says: they are not on this machine"
	}
	return row
}

// show prints the rows and says whether the promises were kept.
func (d *drill) show(rows []drillRow) error {
	kept := true
	var table [][]string
	for _, r := range rows {
		kept = kept && r.OK
		if d.a.json {
			if err := d.a.object(r); err != nil {
				return err
			}
			continue
		}
		table = append(table, []string{r.Name, formatSeconds(r.Took), "<= " + formatSeconds(r.Promise),
			map[bool]string{true: "ok", false: "BROKEN"}[r.OK], term.Line(r.Note, 100)})
	}
	if !d.a.json {
		if err := term.Table(d.a.out, []string{"AFTER A KILL", "TOOK", "PROMISE", "OK", "NOTE"}, table); err != nil {
			return err
		}
	}
	if d.given {
		d.a.say("%s is in force; outboard kill session %s --lift ends it", d.report.Kill.ID, d.target)
	}
	if !kept {
		return &exitError{code: exitFailed, err: errors.New("a promise of the kill switch is broken")}
	}
	return nil
}

func formatSeconds(s float64) string { return fmt.Sprintf("%.2fs", s) }

// clean ends everything that the drill made. What was only paused is stopped first, so that nothing of it goes on.
func (d *drill) clean(ctx context.Context) (err error) {
	if d.given {
		return nil
	}
	if d.session != "" {
		r, kerr := d.c.Kill(ctx, client.NewKill{Scope: string(outboard.KillSession), Target: d.session,
			Level: string(outboard.KillStop), Reason: "the end of a drill"})
		if kerr == nil {
			d.kills = append(d.kills, r.Kill.ID)
		} else if outboard.KindOf(kerr) != outboard.NotFound {
			err = kerr
		}
	}
	for _, id := range d.kills {
		if lerr := d.c.LiftKill(ctx, id); lerr != nil && outboard.KindOf(lerr) != outboard.NotFound {
			err = errors.Join(err, lerr)
		}
	}
	for i := len(d.undo) - 1; i >= 0; i-- {
		if uerr := d.undo[i](ctx); uerr != nil && outboard.KindOf(uerr) != outboard.NotFound {
			err = errors.Join(err, uerr)
		}
	}
	if err != nil {
		return fmt.Errorf("removing what the drill made: %w", err)
	}
	return nil
}
