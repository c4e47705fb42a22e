package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/kill"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// post is a server for tests of the kill switch, in this process.
type post struct {
	t    *testing.T
	s    *process
	c    *client.Client
	data string
}

// startPost starts a server on a data directory. db is a PostgreSQL URL, or "".
func startPost(t *testing.T, data, db string, work bool) *post {
	t.Helper()
	s, err := startServer(context.Background(), server.Config{Data: data, Config: &config.Config{DB: db},
		Env: func(name string) string {
			return map[string]string{"OUTBOARD_GUEST": guestPath}[name]
		}, Serve: true, Work: work, Listen: "127.0.0.1:0", Grace: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		removeSandboxes(t, filepath.Join(data, "sandboxes"))
	})
	if s.Problem != nil {
		noSandbox(t, s.Problem)
	}
	return &post{t: t, s: s, data: data}
}

// as connects with the key of a data directory.
func (p *post) as(data string) *post {
	p.t.Helper()
	key, err := readKey(data)
	if err != nil {
		p.t.Fatal(err)
	}
	if p.c, err = client.New(client.Config{URL: p.s.URL, Key: key}); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(p.c.Close)
	return p
}

// drill returns one whose session is made by c.
func (p *post) drill(scope outboard.KillScope, level outboard.KillLevel) *drill {
	marks.Lock()
	defer marks.Unlock()
	marks.n++
	return &drill{a: &app{out: io.Discard, errs: io.Discard, env: func(string) string { return "" }}, c: p.c,
		scope: scope, level: level,
		mark: fmt.Sprintf("86%03d.%d", marks.n, os.Getpid()), watch: promiseEffects +
			500*time.Millisecond, calls: drillCalls}
}

var marks struct {
	sync.Mutex
	n int
}

// run prepares a drill, has it thrown, and fails for each promise that is broken.
func (d *drill) run(t *testing.T, throw func(context.Context) error) {
	t.Helper()
	if err := throw(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows, err := d.judge(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		t.Logf("%+v", r)
		if !r.OK {
			t.Errorf("%s %s: %s took %.2fs: %s", d.scope, d.level, r.Name, r.Took, r.Note)
		}
	}
}

func ready(t *testing.T, d *drill) *drill {
	t.Helper()
	if err := d.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), drillSetup)
		defer cancel()
		if err := d.clean(ctx); err != nil {
			t.Error(err)
		}
	})
	if d.session != "" && !d.visible {
		t.Fatalf("%d processes of the drill are seen here", processesMarked(d.mark))
	}
	return d
}

// beats counts the requests of a drill's session.
func (d *drill) beats(t *testing.T) int {
	t.Helper()
	s, err := d.requests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.beats
}

// newest are the times of the last three requests of a drill's session, newest first. Of a session that has gone
// on for minutes there are thousands, and to read them all takes longer than to make the next.
func (d *drill) newest(t *testing.T) (at []time.Time) {
	t.Helper()
	for r, err := range d.c.Audit(t.Context(), url.Values{"actor": {d.session}, "order": {"desc"}, "limit": {"10"}}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Action == egress.ActionRequest && r.Decision == outboard.Allowed {
			if at = append(at, r.At); len(at) == 3 {
				break
			}
		}
	}
	return at
}

// goesOn waits until a drill's session makes requests that it has not made yet.
func (d *drill) goesOn(t *testing.T, why string) {
	t.Helper()
	before := d.newest(t)
	for end := time.Now().Add(time.Minute); ; time.Sleep(drillLook) {
		if now := d.newest(t); len(before) > 0 && len(now) == 3 && now[2].After(before[0]) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: it does nothing any more", why)
		}
	}
}

// If this fails, a kill of some scope and level lets effects begin after a second, leaves processes after five,
// lets what it covers be used, or hits what it does not cover.
func TestKillScopesAndLevels(t *testing.T) {
	if testing.Short() {
		t.Skip("crowds of processes, for each scope and level")
	}
	p := startPost(t, t.TempDir(), "", true)
	p.as(p.data)
	levels := []outboard.KillLevel{outboard.KillPause, outboard.KillStop, outboard.KillRevoke}
	other := p.drill(outboard.KillSession, outboard.KillStop) // the control of everything that is not for all
	// soon over: it must go on all the same, however long this takes
	other.calls = 5
	ready(t, other)
	for _, scope := range []outboard.KillScope{outboard.KillSession, outboard.KillAgent, outboard.KillEnvironment,
		outboard.KillOwner} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s/%s", scope, level), func(t *testing.T) {
				d := ready(t, p.drill(scope, level))
				d.run(t, d.throw)
				other.goesOn(t, "a kill of somebody else")
				if level == outboard.KillPause && p.s.Capabilities.Freeze {
					if n := processesMarked(d.mark); n != drillProcesses {
						t.Fatalf("%d processes are left of a pause", n)
					}
					for _, id := range d.kills {
						if err := p.c.LiftKill(t.Context(), id); err != nil {
							t.Fatal(err)
						}
					}
					d.kills = nil
					d.goesOn(t, "a pause that was lifted")
				}
			})
		}
	}
	for _, level := range levels {
		t.Run("credential/"+string(level), func(t *testing.T) {
			d := ready(t, p.drill(outboard.KillCredential, level))
			d.run(t, d.throw)
		})
	}
	for _, scope := range []outboard.KillScope{outboard.KillHost, outboard.KillAll} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s/%s", scope, level), func(t *testing.T) {
				d := ready(t, p.drill(scope, level))
				if scope == outboard.KillHost {
					d.target = server.HostName(p.data)
				}
				d.run(t, d.throw)
			})
		}
	}
}

// If this fails, processes that multiply faster than they are killed survive a kill.
func TestKillForkStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("crowds of processes")
	}
	p := startPost(t, t.TempDir(), "", true)
	p.as(p.data)
	d := p.drill(outboard.KillSession, outboard.KillStop)
	d.extra = fmt.Sprintf("for i in $(seq 200); do sleep %s & done; for i in 1 2 3; do (while :; do setsid sleep %s "+
		"& sleep 0.005; done) >/dev/null 2>&1 & done", d.mark, d.mark)
	ready(t, d)
	for end := time.Now().Add(time.Minute); processesMarked(d.mark) < 350; time.Sleep(drillLook) {
		if time.Now().After(end) {
			t.Fatalf("the storm has only %d processes", processesMarked(d.mark))
		}
	}
	d.run(t, d.throw)
	if n := processesMarked(d.mark); n != 0 {
		t.Errorf("%d processes came back", n)
	}
}

// actions are what the audit holds about a resource, oldest first.
func (p *post) actions(resource string) (list []string) {
	p.t.Helper()
	for r, err := range p.c.Audit(p.t.Context(), url.Values{"order": {"asc"}, "text": {resource}}) {
		if err != nil {
			p.t.Fatal(err)
		}
		list = append(list, r.Action)
	}
	return list
}

// boxWith makes a box that runs processes with a mark.
func (p *post) boxWith(c *client.Client, mark string, n int) client.Box {
	p.t.Helper()
	b, err := c.CreateBox(p.t.Context(), map[string]any{"template": "base", "timeout_seconds": 600})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(p.t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		argv := []string{"sh", "-c", fmt.Sprintf("for i in $(seq %d); do sleep %s & done; wait", n, mark)}
		for _, err := range c.StartProcess(ctx, b.ID, map[string]any{"argv": argv}) {
			if err != nil {
				return // cut
			}
		}
	})
	p.t.Cleanup(func() { stop(); run.Wait() })
	p.until(func() bool { return processesMarked(mark) >= n }, "the processes of a box run")
	return b
}

func (p *post) until(cond func() bool, what string) {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(drillLook) {
		if time.Now().After(end) {
			p.t.Fatalf("%s: did not happen", what)
		}
	}
}

// If this fails, a kill spares the sandboxes that somebody made without a session, hits those of others, or new
// ones can be made.
func TestKillBoxes(t *testing.T) {
	if testing.Short() {
		t.Skip("crowds of processes")
	}
	p := startPost(t, t.TempDir(), "", true)
	p.as(p.data)
	key, err := p.c.CreateKey(t.Context(), client.NewKey{Name: "k", Role: "developer"})
	if err != nil {
		t.Fatal(err)
	}
	owner, err := client.New(client.Config{URL: p.s.URL, Key: key.Secret})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	mine, theirs := p.drill("", "").mark, p.drill("", "").mark
	p.boxWith(p.c, mine, 30)
	box := p.boxWith(owner, theirs, 30)
	begun := time.Now()
	r, err := p.c.Kill(t.Context(), client.NewKill{Scope: "owner", Target: key.ID})
	if err != nil || r.Machines != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	p.until(func() bool { return processesMarked(theirs) == 0 }, "the killed box has no process")
	if took := time.Since(begun); took > promiseProcesses {
		t.Errorf("it took %s", took)
	}
	if n := processesMarked(mine); n != 30 {
		t.Errorf("of somebody else's box %d processes are left", n)
	}
	if _, err := owner.CreateBox(t.Context(), map[string]any{"template": "base"}); err == nil ||
		!strings.Contains(err.Error(), "kill switch") {
		t.Errorf("a new box: %v", err)
	}
	for _, err := range owner.StartProcess(t.Context(), box.ID, map[string]any{"argv": []string{"true"}}) {
		if err == nil || !strings.Contains(err.Error(), "kill switch") {
			t.Errorf("a process in the killed box: %v", err)
		}
		break
	}
	if r, err = p.c.Kill(t.Context(), client.NewKill{Scope: "all"}); err != nil || r.Machines != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	p.until(func() bool { return processesMarked(mine) == 0 }, "no box has a process")
}

// If this fails, somebody makes or ends a machine and leaves no trace, or one is made that cannot be recorded.
func TestSandboxEndsAreRecorded(t *testing.T) {
	p := startPost(t, t.TempDir(), "", true)
	p.as(p.data)
	b := p.boxWith(p.c, p.drill("", "").mark, 1)
	if err := p.c.DeleteBox(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	if got := p.actions(b.ID); !slices.Contains(got, "box.create") || !slices.Contains(got, "box.kill") {
		t.Errorf("of a box is on record %v", got)
	}
	d := ready(t, p.drill(outboard.KillSession, outboard.KillStop))
	machine := ""
	for m, err := range p.c.Sandboxes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if m.Session == d.session {
			machine = m.ID
		}
	}
	if _, err := p.c.StopSandbox(t.Context(), machine); outboard.KindOf(err) != outboard.Conflict && err != nil {
		t.Fatal(err)
	}
	if err := p.c.KillSandbox(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	if got := p.actions(machine); !slices.Contains(got, "sandbox.stop") || !slices.Contains(got, "sandbox.kill") {
		t.Errorf("of a sandbox is on record %v", got)
	}
	// while it can be recorded
	if _, err := p.c.Kill(t.Context(), client.NewKill{Scope: "session", Target: d.session}); err != nil {
		t.Fatal(err)
	}
	p.s.Store.SealAudit(fmt.Errorf("a test"))
	if b, err := p.c.CreateBox(t.Context(), map[string]any{"template": "base"}); err == nil {
		t.Errorf("box %s was made off the record", b.ID)
	}
	d.session, d.undo, d.kills = "", nil, nil // nothing that has to be recorded is done any more
}

// gate is a TCP proxy to PostgreSQL that can be shut: refusing, or saying nothing.
type pgGate struct {
	ln   net.Listener
	to   string
	mu   sync.Mutex
	mode string // "", refuse, hang
	live map[net.Conn]bool
	run  sync.WaitGroup
}

func newPGGate(t *testing.T, db string) (*pgGate, string) {
	t.Helper()
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	g := &pgGate{live: map[net.Conn]bool{}, to: u.Host}
	q := u.Query()
	network := "tcp"
	if dir := q.Get("host"); strings.HasPrefix(dir, "/") {
		port := q.Get("port")
		if port == "" {
			port = "5432"
		}
		network, g.to = "unix", filepath.Join(dir, ".s.PGSQL."+port)
	} else if u.Port() == "" {
		g.to = net.JoinHostPort(u.Hostname(), "5432")
	}
	if g.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	g.run.Go(func() {
		for {
			c, err := g.ln.Accept()
			if err != nil {
				return
			}
			g.run.Go(func() { g.serve(c, network) })
		}
	})
	t.Cleanup(func() {
		g.set("refuse")
		g.ln.Close()
		g.run.Wait()
	})
	q.Del("host")
	q.Del("port")
	q.Set("sslmode", "disable")
	u.Host, u.RawQuery = g.ln.Addr().String(), q.Encode()
	return g, u.String()
}

func (g *pgGate) serve(c net.Conn, network string) {
	defer c.Close()
	if g.now() == "refuse" {
		return
	}
	out, err := net.Dial(network, g.to)
	if err != nil {
		return
	}
	defer out.Close()
	g.mu.Lock()
	g.live[c], g.live[out] = true, true
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.live, c)
		delete(g.live, out)
	}()
	g.run.Go(func() { g.copy(out, c) })
	g.copy(c, out)
}

// copy forwards, and while the gate hangs keeps what comes.
func (g *pgGate) copy(to, from net.Conn) {
	defer to.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		for g.now() == "hang" {
			time.Sleep(5 * time.Millisecond)
		}
		if err != nil {
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func (g *pgGate) now() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mode
}

func (g *pgGate) set(mode string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mode = mode
	if mode == "refuse" {
		for c := range g.live {
			c.Close()
		}
	}
}

// thrownAsFile throws the switch as the command does when nobody answers, and fails if a process is left after
// five seconds.
func (p *post) thrownAsFile(d *drill) outboard.Kill {
	p.t.Helper()
	k := outboard.Kill{ID: outboard.NewID[outboard.KillID](outboard.PrefixKill), Scope: outboard.KillSession,
		Target: d.session, Level: outboard.KillStop,
		Reason: "a test", At: time.Now().UTC().Add(-server.AdoptAfter)}
	begun := time.Now()
	if err := kill.WriteFile(server.KillDir(p.data), k); err != nil {
		p.t.Fatal(err)
	}
	p.until(func() bool { return processesMarked(d.mark) == 0 }, "no process is left")
	if took := time.Since(begun); took > promiseProcesses {
		p.t.Errorf("it took %s", took)
	}
	return k
}

// ended fails unless a killed session did nothing after the second, by what the database says when it answers again.
func (p *post) ended(d *drill, k outboard.Kill, since time.Time) {
	p.t.Helper()
	p.until(func() bool {
		row, err := p.s.Store.Kill(p.t.Context(), k.ID)
		return err == nil && row.LiftedAt.IsZero()
	}, "the file became a row")
	p.until(func() bool {
		files, err := kill.ReadFiles(server.KillDir(p.data))
		return err == nil && len(files) == 0
	}, "the file is gone")
	p.until(func() bool { _, err := d.requests(p.t.Context()); return err == nil }, "the audit can be read")
	s, err := d.requests(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	if late := s.last.Sub(since); late > promiseEffects {
		p.t.Errorf("a request was let through %s after the kill", late)
	}
	if got := p.actions(string(k.ID)); !slices.Contains(got, "kill") {
		p.t.Errorf("of the kill is on record %v", got)
	}
	d.kills = append(d.kills, string(k.ID))
}

// If this fails, nobody can kill while PostgreSQL is gone, or while it hangs, and the kill is lost when it comes back.
func TestKillWithoutPostgres(t *testing.T) {
	for _, mode := range []string{"refuse", "hang"} {
		t.Run(mode, func(t *testing.T) {
			g, through := newPGGate(t, storetest.Postgres(t))
			p := startPost(t, t.TempDir(), through, true)
			p.as(p.data)
			d := ready(t, p.drill(outboard.KillSession, outboard.KillStop))
			g.set(mode)
			defer g.set("")
			since := time.Now()
			k := p.thrownAsFile(d)
			g.set("")
			p.ended(d, k, since)
		})
	}
}

// If this fails, a server whose SQLite takes no writes obeys no kill that reaches it over the API.
func TestKillOverAPIWithoutWrites(t *testing.T) {
	p := startPost(t, t.TempDir(), "", true)
	p.as(p.data)
	d := ready(t, p.drill(outboard.KillSession, outboard.KillStop))
	unlock := lockSQLite(t, p.data)
	answered := make(chan error, 1)
	begun := time.Now()
	go func() {
		_, err := p.c.Kill(t.Context(), client.NewKill{Scope: "session", Target: d.session})
		answered <- err
	}()
	p.until(func() bool { return processesMarked(d.mark) == 0 }, "no process is left")
	if took := time.Since(begun); took > promiseProcesses {
		t.Errorf("it took %s", took)
	}
	unlock()
	<-answered
	p.until(func() bool {
		_, err := p.c.Send(t.Context(), d.session, client.UserMessage("- say: no"))
		return err != nil && strings.Contains(err.Error(), "kill switch")
	}, "the session takes nothing")
	for k, err := range p.c.Kills(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		d.kills = append(d.kills, k.ID)
	}
}

// lockSQLite keeps everybody from writing to a data directory's database.
func lockSQLite(t *testing.T, data string) (unlock func()) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(data, "outboard.db"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for { // the server is writing as well
		_, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "locked") {
			t.Fatal(err)
		}
	}
	var once sync.Once
	unlock = func() {
		once.Do(func() {
			_, err := conn.ExecContext(context.Background(), "ROLLBACK")
			if err := errors.Join(err, conn.Close(), db.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(unlock)
	return unlock
}

// If this fails, a kill that is given to one server does not reach what another one runs.
func TestKillReachesOtherServers(t *testing.T) {
	db := storetest.Postgres(t)
	works, asked := startPost(t, t.TempDir(), db, true), startPost(t, t.TempDir(), db, false)
	works.as(works.data)
	asked.as(works.data)
	for _, level := range []outboard.KillLevel{outboard.KillPause, outboard.KillStop} {
		d := ready(t, works.drill(outboard.KillSession, level))
		d.c = asked.c
		d.run(t, d.throw)
	}
}

// If this fails, what was killed comes back when its server is killed and started again.
func TestKillSurvivesTheServer(t *testing.T) {
	data := t.TempDir()
	p := spawn(t, data)
	d := ready(t, p.drill(outboard.KillSession, outboard.KillStop))
	defer func() { d.session, d.undo, d.kills = "", nil, nil }() // the servers are gone by then
	p.kill9()
	if n := processesMarked(d.mark); n < drillProcesses {
		t.Logf("the death of the server left %d processes", n) // they are the next server's to end
	}
	k := outboard.Kill{ID: outboard.NewID[outboard.KillID](outboard.PrefixKill), Scope: outboard.KillSession,
		Target: d.session, Level: outboard.KillStop, At: time.Now().UTC()}
	if err := kill.WriteFile(server.KillDir(data), k); err != nil {
		t.Fatal(err)
	}
	for round := range 2 { // once by the file, once by what it has become
		p = spawn(t, data)
		begun := time.Now()
		p.until(func() bool { return processesMarked(d.mark) == 0 }, "no process is left")
		if took := time.Since(begun); took > promiseProcesses {
			t.Errorf("round %d: it took %s", round, took)
		}
		d.c = p.c
		before := d.beats(t)
		for range 30 {
			time.Sleep(drillLook) // what must not happen has no event
			if n := processesMarked(d.mark); n != 0 {
				t.Fatalf("round %d: %d processes came back", round, n)
			}
		}
		if n := d.beats(t) - before; n != 0 {
			t.Errorf("round %d: %d requests were made", round, n)
		}
		if err := d.speak(t.Context()); err == nil || !strings.Contains(err.Error(), "kill switch") {
			t.Errorf("round %d: a message: %v", round, err)
		}
		if round == 0 {
			p.kill9()
		}
	}
	if err := p.c.LiftKill(t.Context(), string(k.ID)); err != nil {
		t.Fatal(err)
	}
	p.until(func() bool { return d.speak(t.Context()) == nil }, "it takes messages after the kill was lifted")
}

// spawned is a server in a process of its own.
type spawned struct {
	*post
	cmd *exec.Cmd
}

func spawn(t *testing.T, data string) *spawned {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(addressPath(data)); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	c := &spawned{post: &post{t: t, data: data}, cmd: exec.Command(exe, "serve", "--listen", "127.0.0.1:0", "--data",
		data)}
	c.cmd.Env = append(os.Environ(), mainEnv+"=1", "OUTBOARD_GUEST="+guestPath, "OUTBOARD_URL=", "OUTBOARD_DATA=")
	var said bytes.Buffer
	c.cmd.Stderr = &said
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.kill9()
		if t.Failed() {
			t.Log(said.String())
		}
		removeSandboxes(t, filepath.Join(data, "sandboxes"))
	})
	c.until(func() bool {
		addr, ok := readAddress(data)
		if !ok {
			return false
		}
		key, err := readKey(data)
		if err != nil || key == "" {
			return false
		}
		if c.c, err = client.New(client.Config{URL: addr.URL, Key: key}); err != nil {
			t.Fatal(err)
		}
		if talk(t.Context(), c.c) == nil {
			return true
		}
		c.c.Close()
		return false
	}, "the server answers")
	return c
}

// kill9 ends the server as a crash does.
func (c *spawned) kill9() {
	if c.cmd.ProcessState != nil {
		return
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}
