package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/image"
)

// builds are the template builds of this process. A build is found by its row, and belongs to the process that
// has its lock: a row that says "building" with a lock that nobody has is of a process that was killed.
type builds struct {
	slots chan struct{} // capacity MaxBuilds

	mu   sync.Mutex
	live map[outboard.TemplateBuildID]context.CancelCauseFunc // nil once Stop has been called
	of   map[outboard.OrgID]*orgBuilds
	wg   sync.WaitGroup
}

// orgBuilds are the builds of an organization.
type orgBuilds struct {
	n     int           // live
	slots chan struct{} // capacity maxOrgBuilds
}

func newBuilds() *builds {
	return &builds{slots: make(chan struct{}, MaxBuilds), live: map[outboard.TemplateBuildID]context.CancelCauseFunc{},
		of: map[outboard.OrgID]*orgBuilds{}}
}

// enter makes room for one more build of an organization, or says that there is none. leave follows.
func (b *builds) enter(org outboard.OrgID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := 0
	for _, o := range b.of {
		all += o.n
	}
	o := b.of[org]
	if o == nil {
		o = &orgBuilds{slots: make(chan struct{}, maxOrgBuilds)}
	}
	if o.n >= maxOrgQueue || all >= maxQueue {
		return outboard.Errorf(outboard.Exhausted, "%d builds of the organization and %d in all go on or wait here; "+
			"at most %d and %d may", o.n, all, maxOrgQueue, maxQueue).
			WithHint("try again when one is over")
	}
	o.n++
	b.of[org] = o
	return nil
}

func (b *builds) leave(org outboard.OrgID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[org].n--; b.of[org].n == 0 {
		delete(b.of, org)
	}
}

// slotsOf are the turns of an organization that has entered.
func (b *builds) slotsOf(org outboard.OrgID) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[org].slots
}

// errStopped is why a build ended that its server did not outlive.
const errStopped = "the server ended while it was being built; build it again"

// errNotBegun is why one ended that its server was about to begin.
const errNotBegun = "it was never begun: the server ended, or who asked for it went away; build it again"

// Host is what rows call this host.
func (f *Fleet) Host() string { return f.cfg.Host }

// CanBuild says why no template can be built here.
func (f *Fleet) CanBuild() error {
	if f.cfg.Provider == nil {
		return f.noProvider()
	}
	return f.stacked()
}

// BuildTemplate builds a template in the background: change completes the row of a build that waits for it.
// Conflict when it was begun before. What comes of it is in its row.
func (f *Fleet) BuildTemplate(ctx context.Context, id outboard.TemplateBuildID,
	change func(*outboard.TemplateBuild) error) (b outboard.TemplateBuild, err error) {
	if err := f.CanBuild(); err != nil {
		return b, err
	}
	was, err := f.cfg.Store.TemplateBuild(ctx, id)
	if err != nil {
		return b, err
	}
	if err := f.builds.enter(was.Org); err != nil {
		return b, err
	}
	unlock, err := f.claimBuild(id)
	if err != nil {
		f.builds.leave(was.Org)
		return b, err
	}
	release := func() { unlock(); f.builds.leave(was.Org) }
	defer func() {
		if err != nil {
			release()
		}
	}()
	b, err = f.cfg.Store.ChangeTemplateBuild(ctx, id, func(b *outboard.TemplateBuild) error {
		if b.State != outboard.TemplateWaiting {
			return outboard.Errorf(outboard.Conflict, "build %s was begun already", id)
		}
		b.State, b.Host, b.StartedAt = outboard.TemplateBuilding, f.cfg.Host, f.now()
		return change(b)
	})
	if err != nil {
		return b, err
	}
	f.builds.mu.Lock()
	defer f.builds.mu.Unlock()
	if f.builds.live == nil {
		return b, errors.Join(outboard.Errorf(outboard.Unavailable, "the server is ending"),
			f.endBuild(context.WithoutCancel(ctx), id, nil, errors.New(errStopped)))
	}
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f.builds.live[id] = cancel
	f.builds.wg.Go(func() {
		defer release()
		var watch sync.WaitGroup
		watch.Go(func() { f.watchTemplate(run, b, cancel) })
		f.runBuild(run, b)
		cancel(nil)
		watch.Wait()
		f.builds.mu.Lock()
		defer f.builds.mu.Unlock()
		delete(f.builds.live, id)
	})
	return b, nil
}

// CancelBuild ends a build that this process is at.
func (f *Fleet) CancelBuild(id outboard.TemplateBuildID, why error) {
	f.builds.mu.Lock()
	defer f.builds.mu.Unlock()
	if cancel := f.builds.live[id]; cancel != nil {
		cancel(why)
	}
}

// watchTemplate ends a build once its template is removed. Who removes it may be another process on the same
// database, which cannot cancel what this one is at; nor can one that asks for a removed template's build to
// begin. It returns with ctx.
func (f *Fleet) watchTemplate(ctx context.Context, b outboard.TemplateBuild, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(removedEvery)
	defer tick.Stop()
	for {
		_, err := f.cfg.Store.Template(ctx, b.Org, string(b.Template))
		switch {
		case outboard.KindOf(err) == outboard.NotFound:
			cancel(outboard.Errorf(outboard.Canceled, "the template was removed"))
			return
		case err != nil && ctx.Err() == nil: // the next look tells
			f.log.Warn("looking whether the template of a build was removed", "template", b.Template, "build", b.ID,
				"err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// stopBuilds ends all builds and waits for them; no more begin.
func (f *Fleet) stopBuilds() {
	f.builds.mu.Lock()
	for _, cancel := range f.builds.live {
		cancel(errors.New(errStopped))
	}
	f.builds.live = nil
	f.builds.mu.Unlock()
	f.builds.wg.Wait()
}

// claimBuild takes the lock of a build, which the kernel gives up when this process dies.
func (f *Fleet) claimBuild(id outboard.TemplateBuildID) (release func(), err error) {
	if f.cfg.Dir == "" {
		return func() {}, nil
	}
	path := filepath.Join(f.cfg.Dir, "build-"+filepath.Base(string(id))+".lock")
	file, err := f.openLock(path)
	if err != nil {
		return nil, err
	}
	if !tryLock(file) || !stillThere(file) {
		file.Close()
		return nil, outboard.Errorf(outboard.Conflict, "build %s is going on already", id)
	}
	return func() { // a build is begun once, so nobody waits for the file
		if err := errors.Join(os.Remove(path), file.Close()); err != nil {
			f.log.Warn("the lock of a build stays", "build", id, "err", err)
		}
	}, nil
}

// lostBuilds ends the builds that killed processes of this host left, and removes what they were making.
func (f *Fleet) lostBuilds(ctx context.Context) error {
	if f.cfg.Images == nil {
		return nil
	}
	open, err := f.cfg.Store.OpenTemplateBuilds(ctx, f.cfg.Host)
	if err != nil {
		return err
	}
	for _, b := range open {
		if b.State == outboard.TemplateWaiting {
			if err := f.endUnbegun(ctx, &b); err != nil {
				return err
			}
			continue
		}
		f.builds.mu.Lock()
		_, ours := f.builds.live[b.ID]
		f.builds.mu.Unlock()
		if ours || f.cfg.Dir == "" && f.now().Sub(b.StartedAt) < BuildTimeout {
			continue
		}
		release, err := f.claimBuild(b.ID)
		if err != nil {
			continue // another process is at it
		}
		err = f.endBuild(ctx, b.ID, nil, errors.New(errStopped))
		release()
		if err != nil {
			return err
		}
		f.log.Warn("a build was found that its server did not outlive", "build", b.ID, "template", b.Template)
	}
	return f.cfg.Images.Abandoned(ctx)
}

// endUnbegun ends a build that this host was about to begin and has not for so long that it will not. One that a
// client has yet to say more about has no host, and may wait.
func (f *Fleet) endUnbegun(ctx context.Context, b *outboard.TemplateBuild) error {
	if f.now().Sub(b.CreatedAt) < BeginBuildTimeout {
		return nil
	}
	_, err := f.cfg.Store.ChangeTemplateBuild(ctx, b.ID, func(b *outboard.TemplateBuild) error {
		if b.State == outboard.TemplateWaiting { // else it was begun meanwhile
			b.State, b.Error, b.EndedAt = outboard.TemplateFailed, errNotBegun, f.now()
		}
		return nil
	})
	return err
}

// endBuild writes what came of a build. A build that is over stays what it is.
func (f *Fleet) endBuild(ctx context.Context, id outboard.TemplateBuildID, result *outboard.TemplateResult,
	cause error) error {
	_, err := f.cfg.Store.ChangeTemplateBuild(ctx, id, func(b *outboard.TemplateBuild) error {
		if b.State != outboard.TemplateBuilding {
			return nil
		}
		b.EndedAt = f.now()
		if cause == nil {
			b.State, b.Result = outboard.TemplateReady, *result
			return nil
		}
		b.State, b.Error, b.ErrorStep = outboard.TemplateFailed, clean(outboard.PublicOf(cause)), 0
		if at, ok := errors.AsType[*stepError](cause); ok {
			b.ErrorStep = at.step
		}
		return nil
	})
	return err
}

// runBuild builds and says how it went. It returns when nothing of the build is going on any more.
func (f *Fleet) runBuild(ctx context.Context, b outboard.TemplateBuild) {
	log := f.newBuildLog(ctx, b.ID)
	result, err := f.buildInTurn(ctx, b, log)
	if err == nil {
		log.line(0, "info", "Ready")
	} else {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if outboard.KindOf(err) == outboard.Internal && !sayable(err) {
			f.log.Error("building a template", "template", b.Template, "build", b.ID, "err", err)
			err = errors.New("internal error; the server's log says what it was")
		}
		step := 0
		if at, ok := errors.AsType[*stepError](err); ok {
			step = at.step
		}
		log.line(step, "error", outboard.PublicOf(err))
	}
	log.close()
	done := context.WithoutCancel(ctx)
	if err := f.endBuild(done, b.ID, &result, err); err != nil {
		f.log.Error("the end of a build was not stored; the next start does it", "build", b.ID, "err", err)
	}
	if err == nil {
		if err := f.poolTemplates(done); err != nil {
			f.log.Warn("having sandboxes of templates wait", "err", err)
		}
	}
	f.log.Info("template built", "template", b.Template, "build", b.ID, "err", err)
}

// sayable reports whether an error was made for its reader.
func sayable(err error) bool {
	_, ok := errors.AsType[*stepError](err)
	return ok || err.Error() == errStopped
}

// buildInTurn builds once one of the slots is free.
func (f *Fleet) buildInTurn(ctx context.Context, b outboard.TemplateBuild,
	log *buildLog) (outboard.TemplateResult, error) {
	told := false
	// its own first: who waits for that keeps nobody else from theirs
	for _, slots := range []chan struct{}{f.builds.slotsOf(b.Org), f.builds.slots} {
		select {
		case slots <- struct{}{}:
		default:
			if !told {
				log.line(0, "info", "Waiting for other builds to end")
			}
			told = true
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return outboard.TemplateResult{}, context.Cause(ctx)
			}
		}
		defer func() { <-slots }()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, BuildTimeout, outboard.Errorf(outboard.Unavailable,
		"the build took longer than %v", BuildTimeout))
	defer cancel()
	release, err := f.cfg.Images.Hold(ctx)
	if err != nil {
		return outboard.TemplateResult{}, err
	}
	defer release()
	st, digest, err := f.buildStack(ctx, b, log)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return outboard.TemplateResult{}, err
	}
	result := outboard.TemplateResult{Digest: digest, Layers: st.layers, Env: st.settings.Env,
		Workdir: st.settings.Workdir, User: st.settings.User}
	if st.start == "" && st.ready == "" {
		return result, nil
	}
	log.line(0, "info", "Starting a sandbox to see whether it becomes ready")
	return result, f.tryTemplate(ctx, b, st)
}

// tryTemplate makes a sandbox as a template describes it and lets it go again: a start command that fails is a
// mistake of who builds the template, not of who uses it.
func (f *Fleet) tryTemplate(ctx context.Context, b outboard.TemplateBuild, st stack) (err error) {
	st.owner, st.person = b.Owner, b.Person
	return f.temporary(ctx, buildEnv(b.Spec), st, func(ctx context.Context, m *machine, _ outboard.SandboxID) error {
		if err := f.settle(ctx, m, st.defaults()); err != nil {
			return err
		}
		return f.begin(ctx, m, st)
	})
}

// buildEnv is the environment of the machines of a build.
func buildEnv(s outboard.TemplateSpec) outboard.EnvConfig {
	return outboard.EnvConfig{Kind: "cloud", Isolation: s.Isolation, Limits: s.Limits,
		Networking: outboard.Networking{Mode: "limited",
			AllowPackageManagers: true, AllowedHosts: s.Hosts, Ask: outboard.NetAsk{Approver: outboard.ApproverNone}}}
}

// template makes a stack what a build says: with the layers that are here, or, where they are not, by the same
// steps again.
func (f *Fleet) template(ctx context.Context, st *stack, id outboard.TemplateBuildID) error {
	b, err := f.cfg.Store.TemplateBuild(ctx, id)
	if err != nil {
		return fmt.Errorf("looking for what the template means: %w", err)
	}
	if b.State != outboard.TemplateReady {
		return outboard.Errorf(outboard.Conflict, "build %s of the template is not ready: %s", id, b.State)
	}
	here, err := f.cfg.Images.Use(b.Result.Layers)
	if err != nil {
		return err
	}
	if here {
		release := st.release
		*st = stackOf(&b)
		st.release = release
		return nil
	}
	f.log.Warn("the layers of a template are not here, and are built again", "template", b.Template, "build", id)
	again, digest, err := f.buildStack(ctx, b, nil)
	if err != nil {
		return fmt.Errorf("building the template again: %w", err)
	}
	if digest != b.Result.Digest {
		return outboard.Errorf(outboard.Unavailable, "the layers of build %s are not here, and the image %s is "+
			"another one now", id, b.Spec.Image).
			WithHint("build the template again")
	}
	again.release = st.release
	*st = again
	return nil
}

// login is who a build is at registries.
func (f *Fleet) login(b outboard.TemplateBuild) image.Login {
	if b.Spec.Login == "" {
		return f.cfg.Images.Own()
	}
	return f.loginAs(b.Org, b.Spec.Login)
}

// stackOf is what a build made.
func stackOf(b *outboard.TemplateBuild) stack {
	st := stack{layers: b.Result.Layers, start: b.Spec.Start, ready: b.Spec.Ready, rootfs: rootOf(b.Spec), org: b.Org}
	st.settings.Env, st.settings.Workdir, st.settings.User = b.Result.Env, b.Result.Workdir, b.Result.User
	return st
}

// wantedLayers are the layers that a tag of some template means.
func (f *Fleet) wantedLayers(ctx context.Context) (map[string]bool, error) {
	tagged, err := f.cfg.Store.TaggedBuilds(ctx)
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, b := range tagged {
		for _, l := range b.Result.Layers {
			wanted[l] = true
		}
	}
	return wanted, nil
}

// buildLog collects the log of a build and writes it from time to time. A nil one collects nothing.
type buildLog struct {
	f  *Fleet
	id outboard.TemplateBuildID

	mu      sync.Mutex
	lines   []outboard.TemplateLine // not written yet
	n       int                     // written
	bytes   int                     // of all lines so far
	full    bool
	stop    chan struct{}
	stopped sync.WaitGroup
}

func (f *Fleet) newBuildLog(ctx context.Context, id outboard.TemplateBuildID) *buildLog {
	l := &buildLog{f: f, id: id, stop: make(chan struct{})}
	ctx = context.WithoutCancel(ctx)
	l.stopped.Go(func() {
		tick := time.NewTicker(logEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				l.flush(ctx)
			case <-l.stop:
				l.flush(ctx)
				return
			}
		}
	})
	return l
}

// close writes the rest.
func (l *buildLog) close() {
	close(l.stop)
	l.stopped.Wait()
}

// line adds a line. A log that is too long ends early, but for errors.
func (l *buildLog) line(step int, level, text string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	text = clean(text)
	l.bytes += len(text) + 64
	switch {
	case l.full && level != "error":
		return
	case l.bytes > MaxTemplateLog && !l.full:
		l.full = true
		l.lines = append(l.lines, outboard.TemplateLine{At: l.f.now(), Level: "warn", Step: step,
			Message: "the log is cut here: it is too long"})
	}
	if !l.full || level == "error" {
		l.lines = append(l.lines, outboard.TemplateLine{At: l.f.now(), Level: level, Step: step, Message: text})
	}
}

// flush is called by one goroutine only.
func (l *buildLog) flush(ctx context.Context) {
	l.mu.Lock()
	lines := l.lines
	l.lines = nil
	l.mu.Unlock()
	if len(lines) == 0 {
		return
	}
	if err := l.f.cfg.Store.LogTemplateBuild(ctx, l.id, l.n, lines); err != nil {
		l.f.log.Warn("lines of a build's log are lost", "build", l.id, "err", err)
		return
	}
	l.n += len(lines)
}
