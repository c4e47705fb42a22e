//go:build linux

package guest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
)

// model is what a correct guest must answer, and how often each key may have run.
type model struct {
	t     *rapid.T
	p     *sandboxtest.Bare
	spec  sandbox.Spec
	conns []sandbox.Sandbox

	epoch int64
	calls map[string]*modelCall
}

// modelCall is one key.
type modelCall struct {
	digest    string
	tombstone bool
	long      bool // runs until it is killed
	ended     bool // the model knows its outcome
	lost      bool // the guest died while it may have run: accepted or done, never to run again
	cause     string
}

// If this fails, some order of deliveries, deaths and restarts runs a command twice, or forgets that it ran.
func TestReceipts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := sandboxtest.NewBare(t).(*sandboxtest.Bare)
		m := &model{t: rt, p: p, calls: map[string]*modelCall{}, spec: sandbox.Spec{
			ID: outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox), Generation: "gen",
		}}
		sb, err := p.Create(t.Context(), m.spec)
		if err != nil {
			rt.Fatal(err)
		}
		m.conns = append(m.conns, sb)
		rt.Repeat(map[string]func(*rapid.T){
			"start": m.start, "again": m.start, "kill": m.kill, "wait": m.wait, "ack": m.ack, "crash": m.crash, "reconnect": m.reconnect,
			"": func(*rapid.T) {},
		})
		m.check()
		if err := p.Destroy(t.Context(), m.spec.ID); err != nil {
			rt.Fatal(err)
		}
	})
}

// draw picks a key, an epoch near the current one, and a connection. The model's epoch moves as the guest's must.
func (m *model) draw(t *rapid.T) (key string, epoch int64, sb sandbox.Sandbox, fenced bool) {
	key = fmt.Sprintf("s/k%d", rapid.IntRange(0, 7).Draw(t, "key"))
	epoch = m.epoch + int64(rapid.SampledFrom([]int{0, 0, 0, 0, 1, -1}).Draw(t, "epoch"))
	fenced = epoch < m.epoch
	m.epoch = max(m.epoch, epoch)
	return key, epoch, rapid.SampledFrom(m.conns).Draw(t, "connection"), fenced
}

func (m *model) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	m.t.Cleanup(cancel)
	return ctx
}

func code(err error) string {
	if e, ok := errors.AsType[*guest.Error](err); ok {
		return e.Code
	}
	return fmt.Sprint(err)
}

func (m *model) expect(t *rapid.T, what string, err error, want string) {
	if got := code(err); got != want {
		t.Fatalf("%s: %s, want %s", what, got, want)
	}
}

func (m *model) start(t *rapid.T) {
	key, epoch, sb, fenced := m.draw(t)
	digest := rapid.SampledFrom([]string{"d", "d", "d", "d", "other"}).Draw(t, "digest")
	long := rapid.IntRange(0, 3).Draw(t, "long") == 0
	shell := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "shell")
	command := "echo " + key + " >> effects"
	if long {
		command += "; sleep 1000"
	}
	s := guest.Start{
		Key: key, Epoch: epoch, Generation: "gen", Digest: digest, Op: "bash", Shell: shell, Input: fmt.Appendf(nil,
			`{"command":%q}`, command),
	}
	res, err := sb.Start(m.ctx(), s)
	c := m.calls[key]
	switch {
	case fenced:
		m.expect(t, "stale Start", err, guest.Fenced)
		return
	case c != nil && !c.tombstone && c.digest != digest:
		m.expect(t, "Start with another digest", err, guest.Conflict)
		return
	case err != nil:
		t.Fatalf("Start: %v", err)
	}
	if c == nil {
		c = &modelCall{digest: digest, long: long}
		m.calls[key] = c
	}
	m.agree(t, "Start", c, res)
}

// agree checks an answer against what the model knows of a call.
func (m *model) agree(t *rapid.T, what string, c *modelCall, r guest.Result) {
	ok := false
	switch {
	case c.tombstone:
		ok = r.State == guest.StateKilled
	case c.ended:
		ok = r.State == guest.StateDone && r.Cause == c.cause
	case c.lost:
		ok = r.State == guest.StateAccepted || r.State == guest.StateDone
	default:
		ok = r.State == guest.StateRunning || r.State == guest.StateDone && !c.long
	}
	if !ok {
		t.Fatalf("%s: %s %s, but the call is %+v", what, r.State, r.Cause, *c)
	}
}

func (m *model) kill(t *rapid.T) {
	key, epoch, sb, fenced := m.draw(t)
	res, err := sb.Kill(m.ctx(), key, epoch)
	if fenced {
		m.expect(t, "stale Kill", err, guest.Fenced)
		return
	}
	if err != nil {
		t.Fatalf("Kill: %v", err)
	}
	c := m.calls[key]
	if c == nil {
		c = &modelCall{tombstone: true}
		m.calls[key] = c
	} else if !c.tombstone && !c.ended && !c.lost {
		if res.State != guest.StateDone || res.Cause != "killed" && (c.long || res.Cause != "exited") {
			t.Fatalf("Kill: %s %s", res.State, res.Cause)
		}
		c.ended, c.cause = true, res.Cause
	}
	m.agree(t, "Kill", c, res)
}

func (m *model) wait(t *rapid.T) {
	before := m.epoch
	key, epoch, sb, fenced := m.draw(t)
	c := m.calls[key]
	if c != nil && !fenced && !c.tombstone && !c.ended && !c.lost && m.blocked() {
		m.epoch = before
		return // it, or the call its shell is busy with, may run for ever
	}
	res, err := sb.Wait(m.ctx(), key, epoch)
	switch {
	case fenced:
		m.expect(t, "stale Wait", err, guest.Fenced)
		return
	case c == nil:
		m.expect(t, "Wait for nothing", err, guest.NotFound)
		return
	case err != nil:
		t.Fatalf("Wait: %v", err)
	}
	if !c.tombstone && !c.ended && !c.lost {
		if res.State != guest.StateDone || res.Cause != "exited" {
			t.Fatalf("Wait: %s %s", res.State, res.Cause)
		}
		c.ended, c.cause = true, res.Cause
	}
	m.agree(t, "Wait", c, res)
}

// blocked reports whether some shell may be held by a command that does not end.
func (m *model) blocked() bool {
	for _, c := range m.calls {
		if c.long && !c.ended && !c.lost {
			return true
		}
	}
	return false
}

func (m *model) ack(t *rapid.T) {
	key, epoch, sb, fenced := m.draw(t)
	err := sb.Ack(m.ctx(), key, epoch)
	c := m.calls[key]
	switch {
	case fenced:
		m.expect(t, "stale Ack", err, guest.Fenced)
	case c == nil:
		m.expect(t, "Ack of nothing", err, guest.NotFound)
	case !c.tombstone && !c.ended && !c.lost:
		if err != nil && code(err) != guest.Conflict {
			t.Fatalf("Ack: %v", err)
		}
	case err != nil:
		t.Fatalf("Ack: %v", err)
	}
}

// crash kills the guest with SIGKILL and starts it on the same receipts.
func (m *model) crash(t *rapid.T) {
	if err := m.p.Crash(m.spec.ID); err != nil {
		t.Fatal(err)
	}
	for _, sb := range m.conns {
		sb.Close()
	}
	for _, c := range m.calls {
		if !c.tombstone && !c.ended {
			c.lost = true
		}
	}
	if err := m.p.Restart(m.spec.ID); err != nil {
		t.Fatal(err)
	}
	m.conns = nil
	m.reconnect(t)
	h, err := m.conns[0].(interface {
		Hello(context.Context) (guest.Hello, error)
	}).Hello(m.ctx())
	if err != nil || h.MaxEpoch != m.epoch {
		t.Fatalf("after a restart the highest epoch is %d, want %d (%v)", h.MaxEpoch, m.epoch, err)
	}
}

func (m *model) reconnect(t *rapid.T) {
	if len(m.conns) >= 3 {
		m.conns[0].Close()
		m.conns = m.conns[1:]
	}
	sb, err := m.p.Open(m.ctx(), m.spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	m.conns = append(m.conns, sb)
}

// check counts effects.
func (m *model) check() {
	sb := m.conns[0]
	for key, c := range maps.All(m.calls) {
		if !c.tombstone && !c.ended && !c.lost {
			res, err := sb.Kill(m.ctx(), key, m.epoch)
			if err != nil {
				m.t.Fatalf("Kill: %v", err)
			}
			c.ended, c.cause = true, res.Cause
		}
	}
	var w strings.Builder
	if err := sb.Get(m.ctx(), sandbox.Workspace+"/effects", &w); err != nil && code(err) != guest.NotFound {
		m.t.Fatal(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(w.String()) {
		count[strings.TrimSpace(line)]++
	}
	for key, c := range m.calls {
		n := count[key]
		if n > 1 || c.tombstone && n != 0 || c.ended && c.cause == "exited" && n != 1 {
			m.t.Fatalf("%s ran %d times: %+v", key, n, *c)
		}
	}
}

// If this fails, each quick call costs its caller a second exchange, or a long one holds up the answer to its Start.
func TestStartOfQuickCall(t *testing.T) {
	p := sandboxtest.NewBare(t).(*sandboxtest.Bare)
	id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
	sb, err := p.Create(t.Context(), sandbox.Spec{ID: id, Generation: "gen"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	start := func(key, command string) guest.Result {
		t.Helper()
		res, err := sb.Start(t.Context(), guest.Start{Key: key, Epoch: 1, Generation: "gen", Digest: key, Op: "bash",
			Shell: "s",
			Input: fmt.Appendf(nil, `{"command":%q}`, command), TimeoutMs: 60_000})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	quick := 0
	for i := range 50 { // a busy machine may be slow with some of them
		res := start(fmt.Sprint("quick", i), "echo hi")
		if res.State == guest.StateDone && string(res.Output) == "hi\n" && res.ExitCode != nil && *res.ExitCode == 0 {
			quick++
		}
	}
	if quick == 0 {
		t.Error("no Start was answered with the outcome")
	}
	if res := start("long", "sleep 60"); res.State != guest.StateRunning {
		t.Errorf("Start of a long call was answered %q, want running", res.State)
	}
	if _, err := sb.Kill(t.Context(), "long", 1); err != nil {
		t.Error(err)
	}
}
