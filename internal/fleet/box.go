package fleet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// What a box's programs and files are described with, for those above that know of no guest.
type (
	// Sandbox is the running sandbox of a box.
	Sandbox = sandbox.Sandbox
	// ProcessStart asks for a process.
	ProcessStart = guest.ProcessStart
	// ProcessRef names one.
	ProcessRef = guest.ProcessRef
	// ProcessEvent is a piece of one's life.
	ProcessEvent = guest.ProcessEvent
	// ProcessKind says what an event is.
	ProcessKind = guest.ProcessKind
	// ProcessExit is how one ended.
	ProcessExit = guest.ProcessExit
	// ProcessInfo describes one.
	ProcessInfo = guest.ProcessInfo
	// TerminalSize is a terminal's.
	TerminalSize = guest.Size
	// Name is a path: any bytes.
	Name = guest.Name
	// FileRef names a file and who asks.
	FileRef = guest.FileRef
	// Entry describes a file.
	Entry = guest.Entry
	// Change is something that happened in a watched directory.
	Change = guest.Change
	// Refusal is why the machine would not do something.
	Refusal = guest.Error
)

// ReservedPort reports whether a port of a machine belongs to Outboard: it is reached from outside by nobody.
func ReservedPort(port uint16) bool { return guest.Reserved(port) }

// The kinds of a ProcessEvent.
const (
	Started  = guest.Started
	Stdout   = guest.Stdout
	Stderr   = guest.Stderr
	Terminal = guest.Terminal
	Lost     = guest.Lost
)

// ProgramSFTP is a ProcessStart.Program.
const ProgramSFTP = guest.ProgramSFTP

// liveBox is what this process knows of a box beside its row.
type liveBox struct {
	sem chan struct{} // capacity 1: who holds its element may change the box or its connection
	use *use          // the connection, nil when there is none; guarded by sem

	mu      sync.Mutex
	log     []BoxLine
	samples []BoxSample
	last    sandbox.Usage
	lastAt  time.Time
}

// BoxLine is a line of a box's log.
type BoxLine struct {
	At      time.Time
	Message string
	Fields  map[string]string
}

// BoxSample is what a box used at a moment. CPU is a percentage of all it may use.
type BoxSample struct {
	At time.Time
	sandbox.Usage
	CPUPercent float64
}

// enterBox waits for a box's turn.
func (f *Fleet) enterBox(ctx context.Context, id outboard.BoxID) (*liveBox, error) {
	f.mu.Lock()
	l := f.boxes[id]
	if l == nil {
		l = &liveBox{sem: make(chan struct{}, 1)}
		f.boxes[id] = l
	}
	f.mu.Unlock()
	select {
	case l.sem <- struct{}{}:
		return l, nil
	case <-ctx.Done():
		return nil, outboard.Errorf(outboard.Canceled, "waiting for box %s: %w", id, context.Cause(ctx))
	}
}

func (l *liveBox) leave() { <-l.sem }

// note adds a line to the box's log. Clients say what some fields hold, and the log stays in memory: each is cut
// to what tells it from others.
func (l *liveBox) note(now time.Time, message string, fields map[string]string) {
	for k, v := range fields {
		if len(v) > maxBoxField {
			fields[k] = strings.ToValidUTF8(v[:maxBoxField], "") + "…"
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = append(l.log, BoxLine{now, message, fields})
	l.log = l.log[max(0, len(l.log)-MaxBoxLog):]
}

// RoomForBox refuses one more box of an organization where the installation or the organization has as many as
// it may. paused says that the box is there already, and is to run.
func (f *Fleet) RoomForBox(ctx context.Context, org outboard.OrgID, paused bool) error {
	n, err := f.cfg.Store.CountBoxes(ctx, org)
	if err != nil {
		return err
	}
	for _, l := range []struct {
		what      string
		has, most int
	}{
		{"boxes of organization " + string(orDefault(org)) + " run", n.OrgRunning,
			outboard.OrgShare(MaxRunningBoxes, f.cfg.OrgShare)}, {"boxes run", n.Running, MaxRunningBoxes},
		{"boxes of organization " + string(orDefault(org)) + " exist", n.OrgAll,
			outboard.OrgShare(MaxBoxes, f.cfg.OrgShare)}, {"boxes exist", n.All, MaxBoxes},
	} {
		if l.has >= l.most && !(paused && strings.HasSuffix(l.what, "exist")) {
			return outboard.Errorf(outboard.Exhausted, "%d %s, and at most %d may", l.has, l.what, l.most).
				WithHint("outboard box rm, or limits.organization_percent of the server's configuration")
		}
	}
	return nil
}

// CreateBox makes a box as b describes it, with the files of a snapshot when there are any. b's Host, State,
// Machine and times but EndAt are set here.
func (f *Fleet) CreateBox(ctx context.Context, b outboard.Box, files outboard.BlobRef) (outboard.Box, error) {
	if f.cfg.Provider == nil {
		return b, f.noProvider()
	}
	l, err := f.enterBox(ctx, b.ID)
	if err != nil {
		return b, err
	}
	defer l.leave()
	u, row, err := f.makeFor(ctx, b, files)
	if err == nil {
		b.User, b.Workdir = u.machine.defaults.user, u.machine.defaults.dir
		b.Host, b.State, b.Machine, b.StartedAt, b.CreatedAt = f.cfg.Host, outboard.BoxRunning, row.ID, row.CreatedAt, row.CreatedAt
		if err = f.cfg.Store.AddBox(ctx, b); err != nil {
			err = f.unmakeAside(ctx, row, u.machine, u.held, err)
		}
	}
	if err != nil {
		f.forgetBox(b.ID)
		return b, err
	}
	l.use = u
	l.note(b.StartedAt, "sandbox started", map[string]string{"template": b.Template})
	return b, nil
}

// makeFor makes a machine for a box: row, machine, files, row.
func (f *Fleet) makeFor(ctx context.Context, b outboard.Box,
	files outboard.BlobRef) (_ *use, row outboard.Sandbox, err error) {
	ctx, cancel := context.WithTimeout(ctx, MakeTimeout)
	defer cancel()
	st, err := f.prepare(ctx, b.Org, b.Env)
	if err != nil {
		return nil, row, err
	}
	defer st.release()
	row = outboard.Sandbox{ID: outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox), Provider: f.maker(b.Env),
		Owner: b.Owner, Person: b.Person, Host: f.cfg.Host, Generation: rand.Text(), CreatedAt: f.now()}
	h, err := f.hold(ctx, row.ID)
	if err != nil {
		return nil, row, err
	}
	var sb sandbox.Sandbox
	defer func() {
		if err != nil {
			err = f.unmakeAside(ctx, row, sb, h, err)
		}
	}()
	if err := f.add(ctx, &row, b.Org, b.Env); err != nil {
		return nil, row, err
	}
	b.Env.Networking = f.boxNetworking(&b)
	if sb, err = f.create(ctx, row, outboard.SessionConfig{Env: b.Env}, st, b.Environ(), origin{}); sandbox.Gone(err) {
		return nil, row, unstarted(err)
	} else if err != nil {
		return nil, row, err
	}
	if f.networked(b.Env.Networking) {
		f.cfg.Network.AttachBox(row.ID, b)
	}
	f.own(row.ID, b.Subject())
	m := newMachine(sb)
	if err := f.furnishBox(ctx, m, st, files); err != nil && !m.usable() {
		return nil, row, unstarted(err)
	} else if err != nil {
		return nil, row, noDiskSpace(err, b.Env.Limits.DiskBytes)
	}
	if err := f.put(ctx, &row, stateLive); err != nil {
		return nil, row, err
	}
	return &use{machine: m, held: h}, row, nil
}

// unstarted is about a machine that ended while it was made: nothing that its client named is missing.
func unstarted(err error) error {
	return outboard.Errorf(outboard.Unavailable, "the sandbox ended before it was ready, as it does when its limits "+
		"leave it too little: %w", err)
}

// furnishBox puts into a new machine what a box has from its beginning.
func (f *Fleet) furnishBox(ctx context.Context, m *machine, st stack, files outboard.BlobRef) error {
	if files.Digest != "" {
		if err := f.load(ctx, m, files.Digest, files); err != nil {
			return err
		}
	}
	if err := f.settle(ctx, m, st.defaults()); err != nil {
		return err
	}
	return f.begin(ctx, m, st)
}

// CutOff reports whether an error says that the connection to a machine, which was there, is not any more: it
// was paused, or has ended.
func CutOff(err error) bool { return errors.Is(err, guest.ErrDisconnected) }

// By is who wants something of a box, and why it may be, as the audit shows it.
type By struct {
	Actor string // a key, or the box itself for who holds its token
	Rule  string
}

// clock is By when a box's time is over.
var clock = By{Actor: "server", Rule: "the box's time was over"}

// recordBox writes to the audit what is about to happen to a box.
func (f *Fleet) recordBox(ctx context.Context, b *outboard.Box, by By, action string, detail any) error {
	text, err := json.Marshal(detail)
	if err != nil {
		return outboard.Errorf(outboard.Internal, "encoding an audit record: %w", err)
	}
	err = f.cfg.Store.Audit(ctx, outboard.AuditRecord{At: f.now(), Org: string(b.Org), Actor: by.Actor, Action: action,
		Resource: string(b.ID),
		Decision: outboard.Allowed, Rule: by.Rule, Detail: text})
	if err != nil {
		return outboard.Errorf(outboard.KindOf(err), "writing the audit: %w", err)
	}
	return nil
}

// recordEnd records the end of a box, which must work when nothing else does.
func (f *Fleet) recordEnd(ctx context.Context, b *outboard.Box, by By) {
	if err := f.recordBox(ctx, b, by, "box.kill", nil); err != nil {
		f.log.Error("the end of a box was not recorded", "box", b.ID, "err", err)
	}
}

// KillBox removes a box and everything of it. NotFound if there is none. The caller has recorded it.
func (f *Fleet) KillBox(ctx context.Context, id outboard.BoxID) error {
	return f.endBox(ctx, id, func(outboard.Box) error { return nil }, f.cfg.Store.DeleteBox)
}

// endBox kills a box if its newest row allows it. remove takes the row away, or says why it has to stay.
func (f *Fleet) endBox(ctx context.Context, id outboard.BoxID, allow func(outboard.Box) error,
	remove func(context.Context, outboard.BoxID) error) error {
	l, err := f.enterBox(ctx, id)
	if err != nil {
		return err
	}
	defer l.leave()
	b, err := f.boxHere(ctx, id)
	if err != nil && b.Host != "" && b.Host != f.cfg.Host && f.cfg.Provider != nil {
		if unserved, uerr := f.Unserved(ctx); uerr == nil && unserved(b.Host) {
			err = nil // nobody else can end it
		}
	}
	if err == nil {
		err = allow(b)
	}
	if err != nil {
		return err
	}
	if err := remove(ctx, id); err != nil { // first: from here on the reaper would end it
		return err
	}
	f.forgetBox(id)
	f.cut(l)
	err = f.dropMachine(ctx, b.Machine)
	f.boxGone(ctx, b) // after the machine: it may have to wait for something that is away
	return err
}

func (f *Fleet) boxGone(ctx context.Context, b outboard.Box) {
	if f.cfg.BoxGone != nil {
		f.cfg.BoxGone(context.WithoutCancel(ctx), b)
	}
}

// boxHere returns a box of this host.
func (f *Fleet) boxHere(ctx context.Context, id outboard.BoxID) (outboard.Box, error) {
	b, err := f.cfg.Store.Box(ctx, id)
	if outboard.KindOf(err) == outboard.NotFound {
		f.forgetBox(id) // there may have been an attempt to enter it
	}
	if err == nil && b.Host != f.cfg.Host {
		err = f.away(ctx, "box "+string(id), b.Host, "outboard box rm "+string(id))
	}
	if err == nil && f.cfg.Provider == nil {
		err = f.noProvider()
	}
	return b, err
}

func (f *Fleet) forgetBox(id outboard.BoxID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.boxes, id)
}

// cut drops the connection to a box's machine; what runs over it fails at once.
func (f *Fleet) cut(l *liveBox) {
	if l.use == nil {
		return
	}
	l.use.machine.Close() // it always returns nil
	f.letGo(l.use.held)
	l.use = nil
}

// dropMachine destroys a machine that no box has any more.
func (f *Fleet) dropMachine(ctx context.Context, id outboard.SandboxID) error {
	if id == "" {
		return nil
	}
	row, err := f.cfg.Store.Sandbox(ctx, id)
	if outboard.KindOf(err) == outboard.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return f.destroy(context.WithoutCancel(ctx), row)
}

// PauseBox stops a box until it is resumed. Its processes are frozen with it, or, with dropMemory and where the
// host cannot freeze, end: then its files are kept. Conflict when it is paused already.
func (f *Fleet) PauseBox(ctx context.Context, by By, id outboard.BoxID, dropMemory bool) (outboard.Box, error) {
	return f.pauseBox(ctx, by, id, dropMemory, func(*outboard.Box) error { return nil })
}

// pauseBox is PauseBox for as long as the box's row allows it: allow is asked before anything is done, and again
// in the transaction that says paused, since a client that gives a box more time does not wait for us.
func (f *Fleet) pauseBox(ctx context.Context, by By, id outboard.BoxID, dropMemory bool,
	allow func(*outboard.Box) error) (outboard.Box, error) {
	l, err := f.enterBox(ctx, id)
	if err != nil {
		return outboard.Box{}, err
	}
	defer l.leave()
	b, err := f.boxHere(ctx, id)
	if err != nil {
		return b, err
	}
	if b.State == outboard.BoxPaused {
		return b, outboard.Errorf(outboard.Conflict, "box %s is paused already", id)
	}
	if err := allow(&b); err != nil {
		return b, err
	}
	dropMemory = dropMemory || !f.cfg.Provider.Capabilities().Freeze
	if err := f.recordBox(ctx, &b, by, "box.pause", map[string]bool{"drop_memory": dropMemory}); err != nil {
		return b, err
	}
	m, err := f.connect(ctx, l, &b)
	if err != nil {
		return b, err
	}
	saved, machine := outboard.BlobRef{}, b.Machine
	if dropMemory {
		if saved, err = f.saveFiles(ctx, m); err != nil {
			return b, err
		}
		machine = ""
	} else if err = m.Freeze(ctx); err != nil {
		return b, err
	}
	old := b.Machine
	b, err = f.cfg.Store.ChangeBox(ctx, id, func(b *outboard.Box) error {
		if err := allow(b); err != nil {
			return err
		}
		b.State, b.EndAt, b.Saved, b.Machine = outboard.BoxPaused, f.now(), saved, machine
		return nil
	})
	if err != nil { // it runs on, as its row says
		if !dropMemory {
			err = errors.Join(err, m.Thaw(context.WithoutCancel(ctx)))
		}
		return b, err
	}
	f.cut(l)
	if machine == "" {
		err = f.dropMachine(ctx, old)
	}
	l.note(f.now(), "sandbox paused", nil)
	return b, err
}

// saveFiles stores a machine's files, whole.
func (f *Fleet) saveFiles(ctx context.Context, m *machine) (outboard.BlobRef, error) {
	m.saving.Lock()
	defer m.saving.Unlock()
	return f.receive(ctx, MaxCheckpoint, func(w io.Writer) error {
		_, err := m.Save(ctx, guest.Save{Epoch: 1, Next: rand.Text()}, w)
		return err
	})
}

// ResumeBox makes sure that a box runs and gives it an end; resumed says that it did not run before. With
// dropMemory a paused one begins with its files only, whatever was kept.
func (f *Fleet) ResumeBox(ctx context.Context, by By, id outboard.BoxID, dropMemory bool,
	end func(b *outboard.Box) time.Time) (b outboard.Box, resumed bool, err error) {
	l, err := f.enterBox(ctx, id)
	if err != nil {
		return b, false, err
	}
	defer l.leave()
	if b, err = f.boxHere(ctx, id); err != nil {
		return b, false, err
	}
	if resumed = b.State == outboard.BoxPaused; resumed {
		if err := f.RoomForBox(ctx, b.Org, true); err != nil {
			return b, false, err
		}
		if err := f.recordBox(ctx, &b, by, "box.resume", map[string]bool{"drop_memory": dropMemory}); err != nil {
			return b, false, err
		}
		if dropMemory {
			if err := f.forgetMemory(ctx, l, &b); err != nil {
				return b, false, err
			}
		}
	}
	if _, err := f.connect(ctx, l, &b); err != nil {
		return b, resumed, err
	}
	machine := b.Machine
	b, err = f.cfg.Store.ChangeBox(ctx, id, func(b *outboard.Box) error {
		if resumed {
			b.State, b.StartedAt, b.Saved, b.Machine = outboard.BoxRunning, f.now(), outboard.BlobRef{}, machine
		}
		b.EndAt = end(b)
		return nil
	})
	if err == nil && resumed {
		l.note(b.StartedAt, "sandbox resumed", nil)
	}
	return b, resumed, err
}

// UseBox returns the connection to a box's machine, which is good until the box is paused or ends. A box that is
// paused is resumed if wake says so or its policy does; else the answer is Conflict.
func (f *Fleet) UseBox(ctx context.Context, by By, id outboard.BoxID, wake bool) (Sandbox, error) {
	l, err := f.enterBox(ctx, id)
	if err != nil {
		return nil, err
	}
	if l.use != nil && l.use.machine.usable() {
		m := l.use.machine
		l.leave()
		return m, nil
	}
	b, err := f.boxHere(ctx, id)
	if err == nil && b.State == outboard.BoxRunning {
		m, err := f.connect(ctx, l, &b)
		l.leave()
		return m, err
	}
	l.leave()
	if err != nil {
		return nil, err
	}
	if !wake && !b.OnTimeout.Resume {
		return nil, outboard.Errorf(outboard.Conflict, "box %s is paused", id).WithHint("resume it first")
	}
	if _, _, err := f.ResumeBox(ctx, by, id, false,
		func(b *outboard.Box) time.Time { return later(b.EndAt, f.now().Add(WakeTTL)) }); err != nil {
		return nil, err
	}
	return f.UseBox(ctx, by, id, false)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// connect returns the connection to a box's machine, making it, or a machine from the box's saved files, when
// there is none. A box whose machine is gone and of which nothing was saved is no more.
func (f *Fleet) connect(ctx context.Context, l *liveBox, b *outboard.Box) (*machine, error) {
	if l.use != nil && l.use.machine.usable() {
		return l.use.machine, nil
	}
	f.cut(l)
	if b.Machine == "" {
		u, row, err := f.makeFor(ctx, *b, b.Saved)
		if err != nil {
			return nil, err
		}
		l.use, b.Machine = u, row.ID
		return u.machine, nil
	}
	row, err := f.cfg.Store.Sandbox(ctx, b.Machine)
	if err != nil {
		return nil, err
	}
	u, reason, err := f.open(ctx, outboard.SandboxReady{Sandbox: row.ID, Generation: row.Generation})
	if err != nil {
		return nil, err
	}
	if reason == "" {
		if f.networked(f.boxNetworking(b)) {
			f.cfg.Network.AttachBox(row.ID, *b)
		}
		f.own(row.ID, b.Subject())
		u.machine.defaults = defaults{user: b.User, dir: b.Workdir}
		l.use = u
		return u.machine, nil
	}
	f.log.Warn("box lost", "box", b.ID, "sandbox", b.Machine, "reason", reason)
	f.recordEnd(ctx, b, By{Actor: "server", Rule: reason})
	err = f.cfg.Store.DeleteBox(ctx, b.ID)
	f.forgetBox(b.ID)
	removed := err == nil
	err = errors.Join(err, f.dropMachine(ctx, b.Machine))
	if removed {
		f.boxGone(ctx, *b)
	}
	if err != nil {
		return nil, err
	}
	return nil, outboard.Errorf(outboard.NotFound, "box %s is gone: %s", b.ID, reason)
}

// SaveBox stores the files of a box. It runs on, or stays paused.
func (f *Fleet) SaveBox(ctx context.Context, id outboard.BoxID) (outboard.Box, outboard.BlobRef, error) {
	l, err := f.enterBox(ctx, id)
	if err != nil {
		return outboard.Box{}, outboard.BlobRef{}, err
	}
	defer l.leave()
	b, err := f.boxHere(ctx, id)
	if err != nil || b.State == outboard.BoxPaused && b.Machine == "" {
		return b, b.Saved, err
	}
	m, err := f.connect(ctx, l, &b)
	if err != nil {
		return b, outboard.BlobRef{}, err
	}
	files, err := f.saveFiles(ctx, m)
	if b.State == outboard.BoxPaused {
		err = errors.Join(err, m.Freeze(ctx))
		f.cut(l)
	}
	return b, files, err
}
