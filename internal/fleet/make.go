package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// attach connects b to the session's current machine, or sets b.Lost.
func (f *Fleet) attach(ctx context.Context, s *slot, r Request, b *Lease) error {
	cur := *r.Current
	b.Ready = cur
	if s.cur != nil && s.cur.machine.ID() == cur.Sandbox && s.cur.machine.Generation() == cur.Generation &&
		s.cur.machine.usable() {
		if err := f.mount(ctx, s.cur.machine, r, false); err == nil || s.cur.machine.usable() {
			b.use = s.cur
			return noDiskSpace(err, r.Config.Env.Limits.DiskBytes)
		} // it died of something else meanwhile, and is looked for like any other
	}
	row, err := f.cfg.Store.Sandbox(ctx, cur.Sandbox)
	switch {
	case outboard.KindOf(err) == outboard.NotFound:
		return f.lose(ctx, r, b, nil, "it has no record here")
	case err != nil:
		return err
	case row.State == stateDestroyed, row.State == stateStopped:
		return f.lose(ctx, r, b, nil, cmp.Or(row.Why, "it was destroyed"))
	case row.Host != f.cfg.Host:
		return f.lose(ctx, r, b, nil, fmt.Sprintf("it is on another host, %s", row.Host))
	case !f.made(row):
		return f.lose(ctx, r, b, nil, fmt.Sprintf("it was made by provider %s, and this server uses %s", row.Provider,
			f.cfg.Provider.Name()))
	}
	u, reason, err := f.open(ctx, cur)
	if err != nil {
		return err
	}
	if reason != "" {
		return f.lose(ctx, r, b, &row, reason)
	}
	if row.State == stateStopping { // whoever stopped it was killed before it could say so
		row.Why = ""
		if err := f.put(ctx, &row, stateLive); err != nil {
			f.letGo(u.held)
			return errors.Join(err, u.machine.Close())
		}
	}
	if err := f.mount(ctx, u.machine, r, false); err != nil {
		alive := u.machine.usable()
		f.letGo(u.held)
		err = errors.Join(noDiskSpace(err, r.Config.Env.Limits.DiskBytes), u.machine.Close())
		if alive || ctx.Err() != nil {
			return err
		}
		return f.lose(ctx, r, b, &row, "the machine died while the session's files were mounted")
	}
	if f.networked(r.Config.Env.Networking) {
		f.cfg.Network.Attach(cur.Sandbox, r.Session, r.Config)
	}
	b.use, s.cur = u, u
	return nil
}

// goneBy is the reason of what sandbox.Gone reports, for the log and the model.
func goneBy(err error) string {
	if errors.Is(err, sandbox.ErrMemory) {
		return sandbox.ErrMemory.Error()
	}
	return "the machine is gone"
}

// open connects to a machine that should be alive. A reason means that it is lost; an error, that nothing can be said.
func (f *Fleet) open(ctx context.Context, cur outboard.SandboxReady) (*use, string, error) {
	h, err := f.hold(ctx, cur.Sandbox)
	if err != nil {
		return nil, "", err
	}
	octx, cancel := context.WithTimeout(ctx, OpenTimeout)
	defer cancel()
	sb, err := f.cfg.Provider.Open(octx, cur.Sandbox)
	if err == nil && f.cfg.Provider.Capabilities().Freeze {
		if err = sb.Thaw(octx); err != nil {
			sb.Close()
		}
	}
	if err != nil {
		f.letGo(h)
		if ctx.Err() != nil {
			return nil, "", outboard.Errorf(outboard.Canceled, "opening sandbox %s: %w", cur.Sandbox,
				context.Cause(ctx))
		}
		if sandbox.Gone(err) {
			return nil, goneBy(err), nil
		}
		f.log.Warn("sandbox does not answer", "sandbox", cur.Sandbox, "err", err)
		return nil, "the machine does not answer", nil
	}
	if sb.Generation() != cur.Generation {
		f.letGo(h)
		sb.Close()
		return nil, "the machine was replaced", nil
	}
	m := newMachine(sb)
	m.defaults = visits(&cur)
	return &use{machine: m, held: h}, "", nil
}

// lose records in b that the current machine is gone, after making sure of it: what cannot be reached must not
// go on acting. row is nil when there is no machine on this host.
func (f *Fleet) lose(ctx context.Context, r Request, b *Lease, row *outboard.Sandbox, reason string) error {
	if err := f.fence(ctx, r); err != nil {
		return err
	}
	from, err := f.origin(ctx, r.Checkpoint)
	if err != nil {
		return err
	}
	if from.lost != "" {
		reason += "; " + from.lost
	}
	b.Lost = &outboard.SandboxLost{
		Sandbox:    r.Current.Sandbox,
		Generation: r.Current.Generation,
		Reason:     reason,
		Restore:    from.checkpoint,
	}
	f.log.Warn("sandbox lost", "session", r.Session, "sandbox", r.Current.Sandbox, "reason", reason)
	if row == nil {
		return nil
	}
	if err := f.destroy(ctx, *row); err != nil {
		return fmt.Errorf("removing lost sandbox %s: %w", row.ID, err)
	}
	return nil
}

// fence refuses a request of a lease that is over, before anything is destroyed or made for it.
func (f *Fleet) fence(ctx context.Context, r Request) error {
	if r.Epoch == 0 {
		return nil
	}
	h, err := f.cfg.Store.Session(ctx, r.Session)
	if err != nil {
		return err
	}
	if h.Epoch != r.Epoch {
		return store.ErrFenced
	}
	return nil
}

// makeTries bounds how often a machine is made for one request.
const makeTries = 5

// errPassing is about what is no reason to give up: of another machine it need not hold.
type errPassing struct{ error }

// Unwrap returns what happened.
func (e errPassing) Unwrap() error { return e.error }

// make creates a machine for the session. A machine may die while it is being made as it may later, and the
// layers that it was to begin with may go, once they are stored, between the look at them and their use: then
// another one is made, of what there is.
func (f *Fleet) make(ctx context.Context, r Request, b *Lease) error {
	for try := 1; ; try++ {
		err := f.makeOne(ctx, r, b)
		if _, again := errors.AsType[errPassing](err); !again || try == makeTries || ctx.Err() != nil {
			return err
		}
		f.log.Info("making another sandbox", "session", r.Session, "try", try, "err", err)
	}
}

// makeOne makes a machine: row, machine, workspace, resources, row. Whatever fails, what was made is removed and
// the row says destroyed; where even that fails, the reaper finishes it.
func (f *Fleet) makeOne(ctx context.Context, r Request, b *Lease) (err error) {
	if err := f.fence(ctx, r); err != nil {
		return err
	}
	st, err := f.prepare(ctx, r.Config.Owner.Org, r.Config.Env)
	if err != nil {
		return err
	}
	defer st.release()
	ctx, cancel := context.WithTimeout(ctx, MakeTimeout)
	defer cancel()
	from, err := f.origin(ctx, r.Checkpoint)
	if err != nil {
		return err
	}
	if from.lost != "" { // a machine that was let go, or another session's: this one has none to lose
		b.Lost, r.Checkpoint = &outboard.SandboxLost{Reason: from.lost, Restore: from.checkpoint}, from.checkpoint
	}
	row := outboard.Sandbox{
		ID:          outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox),
		Session:     r.Session,
		Environment: r.Config.Environment,
		Owner:       r.Config.Owner.Key,
		Person:      r.Config.Owner.User,
		Provider:    f.maker(r.Config.Env),
		Host:        f.cfg.Host,
		Generation:  rand.Text(),
		Checkpoint:  r.Checkpoint,
		CreatedAt:   f.now(),
	}
	h, err := f.hold(ctx, row.ID)
	if err != nil {
		return err
	}
	var sb sandbox.Sandbox
	defer func() {
		if err != nil {
			err = f.unmakeAside(ctx, row, sb, h, err)
		}
	}()
	if err := f.add(ctx, &row, r.Config.Owner.Org, r.Config.Env); err != nil {
		return err
	}
	vars, err := f.environment(ctx, r.Session, r.Config)
	if err != nil {
		return err
	}
	if sb, err = f.create(ctx, row, r.Config, st, vars, from); sandbox.Gone(err) {
		return errPassing{err}
	} else if err != nil {
		return err
	}
	m := newMachine(sb)
	if err := f.furnish(ctx, m, r, st, from); err != nil && !m.usable() {
		return errPassing{err}
	} else if err != nil {
		return noDiskSpace(err, r.Config.Env.Limits.DiskBytes)
	}
	if err := f.put(ctx, &row, stateLive); err != nil {
		return err
	}
	b.use = &use{machine: m, held: h}
	f.introduce(b, row, r, st)
	return nil
}

// introduce says in b what the log is told of the machine that b uses, which is new.
func (f *Fleet) introduce(b *Lease, row outboard.Sandbox, r Request, st stack) {
	m := b.use.machine
	b.New = true
	b.Ready = outboard.SandboxReady{
		Sandbox:    row.ID,
		Generation: row.Generation,
		Provider:   row.Provider,
		Isolation:  m.Isolation(),
		From:       r.Checkpoint,
		User:       toolUser(m.Sandbox),
		Workdir:    st.workdir(),
	}
	m.defaults = visits(&b.Ready)
	if b.Ready.Note = st.unheeded(b.Ready.User); b.Ready.Note != "" {
		f.log.Warn("the user of an image or template does not hold", "session", r.Session, "sandbox", row.ID, "note",
			b.Ready.Note)
	}
	f.log.Info("sandbox ready", "session", r.Session, "sandbox", row.ID, "from", r.Checkpoint)
}

// toolUser is who tools run as, "" for the sandbox's own user.
func toolUser(sb sandbox.Sandbox) string {
	if h, ok := sb.(sandbox.Housed); ok {
		return h.ToolUser()
	}
	return ""
}

// furnish puts into a new machine what its calls find there: the files of a checkpoint, those that the session
// brings, and what the environment starts.
func (f *Fleet) furnish(ctx context.Context, m *machine, r Request, st stack, from origin) error {
	if err := f.restore(ctx, m, from); err != nil {
		return err
	}
	if err := f.seed(ctx, m, r); err != nil {
		return err
	}
	if err := f.mount(ctx, m, r, true); err != nil {
		return err
	}
	if err := f.settle(ctx, m, defaults{dir: st.settings.Workdir}); err != nil {
		return err
	}
	if err := f.begin(ctx, m, st); err != nil {
		return err
	}
	return f.settleCalls(ctx, m, r.Epoch, st.workdir())
}

// add writes the row of a machine that is about to be made, if there may be one more, and records that it is
// made, for an organization. A row without a state was refused.
func (f *Fleet) add(ctx context.Context, row *outboard.Sandbox, org outboard.OrgID, env outboard.EnvConfig) error {
	row.State, row.UpdatedAt = stateCreating, f.now()
	err := f.cfg.Store.AddSandbox(ctx, *row, store.Quota{Environment: f.lifecycle(env).MaxSandboxes,
		Own:   env.Lifecycle.MaxSandboxes > 0,
		Owner: f.cfg.MaxPerOwner})
	if outboard.KindOf(err) == outboard.Exhausted {
		row.State = ""
	}
	if err != nil {
		return err
	}
	return f.record(ctx, row, org, "sandbox.create")
}

// create makes the machine. vars are in the environment of all its processes.
func (f *Fleet) create(ctx context.Context, row outboard.Sandbox, cfg outboard.SessionConfig, st stack,
	vars map[string]string, from origin) (sandbox.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, CreateTimeout)
	defer cancel()
	all := map[string]string{"OUTBOARD_SANDBOX": string(row.ID)} // a command's marks can name where it ran
	maps.Copy(all, vars)
	env := cfg.Env
	network, err := f.network(row.ID, env.Networking)
	if err != nil {
		return nil, err
	}
	spec := sandbox.Spec{
		ID:         row.ID,
		Generation: row.Generation,
		Env:        all,
		Limits:     env.Limits,
		Isolation:  env.Isolation,
		Network:    network,
	}
	if from.local {
		spec.From = from.checkpoint
	}
	f.fill(&spec, st)
	if spec.Env["GIT_CONFIG_COUNT"] == "" && network != nil {
		spec.Env = maps.Clone(spec.Env)
		maps.Copy(spec.Env, gitByHTTPS(env.Networking))
	}
	if row.Session != "" { // others say with each program who it runs as
		spec.User = st.settings.User
	}
	sb, err := f.cfg.Provider.Create(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("making a sandbox: %w", err)
	}
	if network != nil && (row.Session != "" || st.build) { // a box's is attached by who knows the box
		f.cfg.Network.Attach(row.ID, row.Session, cfg)
	}
	return sb, nil
}

// environment is what the credentials of a session put into its sandbox.
func (f *Fleet) environment(ctx context.Context, id outboard.SessionID,
	cfg outboard.SessionConfig) (map[string]string, error) {
	if f.cfg.Environment == nil || len(cfg.VaultIDs) == 0 {
		return nil, nil
	}
	vars, err := f.cfg.Environment(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("preparing the variables of a sandbox: %w", err)
	}
	return vars, nil
}

// unmake undoes a failed make and returns its cause.
func (f *Fleet) unmake(ctx context.Context, row outboard.Sandbox, sb sandbox.Sandbox, cause error) error {
	return f.unmakeWith(context.WithoutCancel(ctx), row, sb, cause)
}

func (f *Fleet) unmakeWith(ctx context.Context, row outboard.Sandbox, sb sandbox.Sandbox, cause error) error {
	if row.State == "" {
		f.removeLock(row.ID)
		return cause
	}
	if sb != nil {
		sb.Close()
	}
	if err := f.destroy(ctx, row); err != nil {
		f.log.Error("half-made sandbox left to the reaper", "sandbox", row.ID, "err", err)
	}
	return cause
}

// unmakeAside is unmake, and lets go: beside the caller where it takes long. Who waits for the sandbox is told
// as soon as it is known that there will be none. A server that stops leaves what is not removed by then to the
// reaper of the next.
func (f *Fleet) unmakeAside(ctx context.Context, row outboard.Sandbox, sb sandbox.Sandbox, h *held, cause error) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(f.unmaking.ctx, func() {
		last := time.NewTimer(unmakePatience)
		defer last.Stop()
		select {
		case <-last.C:
			cancel()
		case <-ctx.Done():
		}
	})
	done := make(chan struct{})
	f.unmaking.wg.Go(func() {
		defer close(done)
		defer cancel()
		defer stop()
		_ = f.unmakeWith(ctx, row, sb, cause) // it is the cause, which the caller has
		f.letGo(h)
	})
	patience := time.NewTimer(unmakePatience)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
	return cause
}

func (f *Fleet) destroyMachine(ctx context.Context, id outboard.SandboxID) error {
	ctx, cancel := context.WithTimeout(ctx, DestroyTimeout)
	defer cancel()
	if err := f.cfg.Provider.Destroy(ctx, id); err != nil {
		return fmt.Errorf("destroying sandbox %s: %w", id, err)
	}
	if f.cfg.Network != nil {
		f.cfg.Network.Detach(id)
	}
	f.forget(id)
	f.removeLock(id)
	return nil
}

// restore brings a checkpoint into a fresh machine that was not made from its layers: the checkpoint and what it
// builds on, oldest first.
func (f *Fleet) restore(ctx context.Context, m *machine, from origin) error {
	if from.local || from.checkpoint == "" {
		return nil
	}
	var chain []outboard.Checkpoint
	for id := from.checkpoint; id != ""; {
		c, err := f.cfg.Store.Checkpoint(ctx, id)
		if err != nil {
			return fmt.Errorf("restoring checkpoint %s: %w", id, err)
		}
		if len(chain) > MaxChain {
			return outboard.Errorf(outboard.Internal, "restoring checkpoint %s: more than %d ancestors", id, MaxChain)
		}
		chain = append(chain, c)
		id = c.Parent
	}
	for i := len(chain) - 1; i >= 0; i-- {
		if err := f.load(ctx, m, string(chain[i].ID), chain[i].Delta); err != nil {
			return fmt.Errorf("restoring checkpoint %s: %w", chain[i].ID, err)
		}
	}
	return f.relayer(ctx, m, from.checkpoint)
}

// load brings stored files into a machine. That they are damaged is nothing that only the server's log should
// tell: who has them may have another state to go back to.
func (f *Fleet) load(ctx context.Context, m *machine, label string, files outboard.BlobRef) error {
	r, err := f.cfg.Blob.Open(ctx, files)
	if err != nil {
		return err
	}
	defer r.Close()
	if err = m.Load(ctx, label, r); errors.Is(err, blob.ErrDamaged) {
		return outboard.Errorf(outboard.Unavailable, "what is stored of its files is not what was saved: %w", err).
			WithHint("put the object back as it was, or go back to another checkpoint or snapshot")
	}
	return err
}

// mount puts the session's file resources in place. On a machine that has been in use only those that are missing are
// written, since resources may be added to a session at any time.
func (f *Fleet) mount(ctx context.Context, m *machine, r Request, fresh bool) error {
	var files []outboard.Resource
	for _, res := range r.Config.Resources {
		if res.Kind == "file" && !m.isMounted(res.ID) {
			files = append(files, res)
		}
	}
	if len(files) == 0 {
		return nil
	}
	have := map[string]bool{}
	if !fresh {
		stats, err := m.List(ctx, sandbox.Uploads)
		if err != nil {
			return fmt.Errorf("listing mounted files: %w", err)
		}
		for _, st := range stats {
			have[path.Clean(st.Path)] = true
		}
	}
	for _, res := range files {
		target, err := mountPath(res)
		if err != nil {
			return err
		}
		if !have[target] {
			if err := f.mountFile(ctx, m, res, target); err != nil {
				return fmt.Errorf("mounting %s: %w", target, err)
			}
		}
		m.setMounted(res.ID)
	}
	return nil
}

func (f *Fleet) mountFile(ctx context.Context, m *machine, res outboard.Resource, target string) error {
	file, err := f.cfg.Store.File(ctx, res.File)
	if outboard.KindOf(err) == outboard.NotFound {
		f.log.Warn("file resource was deleted and is not mounted", "resource", res.ID, "file", res.File)
		return nil
	}
	if err != nil {
		return err
	}
	r, err := f.cfg.Blob.Open(ctx, file.Blob)
	if err != nil {
		return err
	}
	defer r.Close()
	return m.Put(ctx, target, 0o444, true, r)
}

// mountPath returns where a file resource goes: below Uploads, whatever the resource says.
func mountPath(res outboard.Resource) (string, error) {
	p := res.MountPath
	if p == "" {
		p = string(res.File)
	}
	if !strings.HasPrefix(p, sandbox.Uploads+"/") {
		p = sandbox.Uploads + "/" + p
	}
	clean := path.Clean(p)
	if !strings.HasPrefix(clean, sandbox.Uploads+"/") || strings.ContainsRune(clean, 0) {
		return "", outboard.Errorf(outboard.Invalid, "resource %s: mount path %q is not below %s", res.ID,
			res.MountPath, sandbox.Uploads)
	}
	return clean, nil
}
