package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

const (
	// killReport is how long a kill waits for its effects before it reports: within it no process may be left.
	killReport = 5 * time.Second
	// killRecord bounds the wait for the database to take a kill that is in force: whoever threw it must learn
	// that it is. It is less than the command waits, and enough for one whose writers wait for each other.
	killRecord = 8 * time.Second
	// killLook is the wait between two looks at what is left.
	killLook = 50 * time.Millisecond
	// maxInFlight bounds what a report lists.
	maxInFlight = 200
	// inFlightTime bounds the look at what is in flight before a kill: it must not delay it.
	inFlightTime = 300 * time.Millisecond
	// maxOrgKills bounds the kills in force of one organization: every server reads all of them five times a
	// second, and what it does not read in time counts as killed, for everybody. maxOrgThrows bounds those that
	// are thrown at a time, each of which is a file for a while: a switch reads a bounded number.
	maxOrgKills  = 200
	maxOrgThrows = 4
	// killPage is how many sessions are looked at in one read.
	killPage = 200
)

// KillSwitch is the switch of this process, and what it holds in its hands.
type KillSwitch interface {
	// Check returns an error if a subject may have no effect now.
	Check(ctx context.Context, who outboard.KillSubject) error
	// Enforce ends what the kills in force forbid, in this process and on this host, now.
	Enforce(ctx context.Context)
	// Left counts what a kill has not ended yet on this host: machines that may have processes, and requests under way.
	Left(ctx context.Context, k outboard.Kill) (machines, flows int)
	// Host is the name of this host, "" for none.
	Host() string
	// Active returns the kills in force, those that are files included.
	Active() []outboard.Kill
	// Keep writes the file of a kill, which is in force at once, with the database or without. After an error it
	// is in force, too, but only in this process.
	Keep(k outboard.Kill) error
	// Forget removes the file of a kill.
	Forget(id outboard.KillID) error
}

// InFlight is something that was going on when a kill came, and what became of it.
type InFlight struct {
	Session outboard.SessionID
	Call    outboard.EventID // the tool call, or the model call
	What    string           // a tool, or "model"
	Outcome string           // of a finished call, else "unknown"
}

// KillReport says what a kill did.
type KillReport struct {
	Kill     outboard.Kill
	InFlight []InFlight
	Partial  bool // there was more in flight than InFlight has, or it could not be told in time
	Machines int  // that may still have processes
	Flows    int  // requests still under way
	Took     time.Duration
}

// alive refuses what a kill covers.
func (c *Control) alive(ctx context.Context, who outboard.KillSubject) error {
	if c.kill == nil {
		return nil
	}
	return c.kill.Check(ctx, who)
}

func (c *Control) aliveSession(ctx context.Context, id outboard.SessionID) error {
	if c.kill == nil {
		return nil
	}
	cfg, err := c.store.SessionConfig(ctx, id)
	if err != nil {
		return wrapLookup("session", string(id), err)
	}
	return c.kill.Check(ctx, cfg.Subject(id))
}

// Kill throws the switch and reports what was in flight. The ID of k may be set: of a kill that is in force as a file.
func (c *Control) Kill(ctx context.Context, by outboard.Caller, in NewKill) (KillReport, error) {
	if err := requireAdmin(by, scopePolicies); err != nil {
		return KillReport{}, err
	}
	if err := c.checkKill(ctx, by, &in); err != nil {
		return KillReport{}, err
	}
	thrown, err := c.throws.enter(by, &in.Kill, c.kill.Active())
	if err != nil {
		return KillReport{}, err
	}
	defer thrown()
	k := in.Kill
	begun := time.Now()
	k.By, k.At, k.Org = by.Name, c.clock(), by.In()
	if k.ID == "" {
		k.ID = outboard.NewID[outboard.KillID](outboard.PrefixKill)
	}
	r := KillReport{Kill: k}
	r.InFlight, r.Partial = c.inFlight(ctx, k)
	// The file, which says who and why as well, is what makes the kill hold. The record cannot come first: a
	// database that takes no writes would keep everything alive.
	kept := c.kill.Keep(k)
	if kept != nil {
		c.log.Error("a kill has no file: until it is a row it ends with this process", "kill", k.ID, "err", kept)
	}
	ctx = context.WithoutCancel(ctx)
	c.kill.Enforce(ctx)
	if err := c.recordKill(ctx, k, by); err != nil {
		if kept != nil {
			return KillReport{}, outboard.Errorf(outboard.Unavailable,
				"the kill is in force as %s on the server that was asked, until that stops: it could not be written "+
					"anywhere: %w", k.ID, errors.Join(err, kept))
		}
		return KillReport{}, outboard.Errorf(outboard.Unavailable,
			"the kill is in force as %s on the server that was asked, and the others learn of it when the database "+
				"takes it: %w", k.ID, err)
	}
	c.kill.Enforce(ctx) // the row is known from here on, so the file may go
	err = errors.Join(c.AfterKill(ctx, k), c.kill.Forget(k.ID))
	c.settleReport(ctx, &r, begun)
	return r, err
}

// throws counts the kills that are being thrown, by organization.
type throws struct {
	mu sync.Mutex
	of map[outboard.OrgID]int
}

// enter refuses a kill of an organization that has its share of them. One that is in force already as a file is
// none more, and those of who runs the server are not counted. The caller calls done.
func (t *throws) enter(by outboard.Caller, k *outboard.Kill, active []outboard.Kill) (done func(), err error) {
	org := by.In()
	if by.Operator() || slices.ContainsFunc(active, func(a outboard.Kill) bool { return k.ID != "" && a.ID == k.ID }) {
		return func() {}, nil
	}
	n := 0
	for _, a := range active {
		if cmp.Or(a.Org, outboard.DefaultOrg) == org && a.Scope != outboard.KillAll && a.Scope != outboard.KillHost {
			n++
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n+t.of[org] >= maxOrgKills || t.of[org] >= maxOrgThrows {
		return nil, outboard.Errorf(outboard.Exhausted, "organization %s has %d kills in force and %d that are "+
			"being thrown; at most %d and %d may be", org, n, t.of[org], maxOrgKills, maxOrgThrows).
			WithHint("outboard kill ls, outboard kill SCOPE TARGET --lift; one of an agent, an environment or an " +
				"owner covers many sessions")
	}
	if t.of == nil {
		t.of = map[outboard.OrgID]int{}
	}
	t.of[org]++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.of[org]--; t.of[org] == 0 {
			delete(t.of, org)
		}
	}, nil
}

// recordKill is putKill that is not waited for longer than killRecord: behind others that wait for a locked
// database it can take several times as long. It goes on then.
func (c *Control) recordKill(ctx context.Context, k outboard.Kill, by outboard.Caller) error {
	done := make(chan error, 1)
	c.recording.Go(func() { done <- c.putKill(ctx, k, by.Key, "role "+by.Role) })
	select {
	case err := <-done:
		return err
	case <-time.After(killRecord):
		return outboard.Errorf(outboard.Unavailable, "the database has not taken it for %v", killRecord)
	}
}

// putKill records a kill and makes it a row.
func (c *Control) putKill(ctx context.Context, k outboard.Kill, actor outboard.KeyID, rule string) error {
	detail, err := json.Marshal(k)
	if err != nil {
		return outboard.Errorf(outboard.Internal, "encoding an audit record: %w", err)
	}
	err = c.store.Audit(ctx, outboard.AuditRecord{At: c.clock(), Org: string(cmp.Or(k.Org, outboard.DefaultOrg)),
		Actor: string(actor), Action: "kill", Resource: string(k.Scope) + " " + k.Target,
		Decision: outboard.Allowed, Rule: rule, Detail: detail})
	if err != nil {
		return outboard.Errorf(outboard.KindOf(err), "writing the audit: %w", err)
	}
	if err := c.store.PutKill(ctx, k); err != nil {
		return outboard.Errorf(outboard.KindOf(err), "storing the kill: %w", err)
	}
	return nil
}

// AdoptKill makes a row of a kill that is a file, which somebody wrote while no server could be asked.
func (c *Control) AdoptKill(ctx context.Context, k outboard.Kill) error {
	switch row, err := c.store.Kill(ctx, k.ID); {
	case err == nil && !row.LiftedAt.IsZero():
		return nil
	case err == nil:
		k = row
	case err != nil && outboard.KindOf(err) != outboard.NotFound:
		return err
	default:
		// as checkKillOwner
		if key, err := c.store.Key(ctx, outboard.KeyID(k.Target)); k.Scope == outboard.KillOwner && err == nil {
			k.Target = cmp.Or(string(key.User), k.Target)
		}
		if err := c.putKill(ctx, k, "data directory", "file"); err != nil {
			return err
		}
	}
	return c.AfterKill(ctx, k)
}

func (c *Control) checkKill(ctx context.Context, by outboard.Caller, k *NewKill) error {
	if c.kill == nil {
		return outboard.Errorf(outboard.Unavailable, "this server has no kill switch")
	}
	if k.Level == "" {
		k.Level = outboard.KillStop
	}
	if k.Level.Rank() == 0 {
		return invalid("level must be pause, stop or revoke, not %s", quote(string(k.Level)))
	}
	if !slices.Contains(outboard.KillScopes, k.Scope) {
		return invalid("scope must be session, agent, owner, credential, host, environment or all, not %s",
			quote(string(k.Scope)))
	}
	if (k.Scope == outboard.KillAll) != (k.Target == "") {
		return invalid("scope all has no target, and every other scope has one")
	}
	if (k.Scope == outboard.KillAll || k.Scope == outboard.KillHost) && !by.Operator() {
		return outboard.Errorf(outboard.Denied, "scope %s is for those who run the server", k.Scope)
	}
	if k.ID != "" && !outboard.ValidID(outboard.PrefixKill, string(k.ID)) {
		return invalid("id: %s is not the id of a kill", quote(string(k.ID)))
	}
	if err := length("reason", k.Reason, 0, maxTitle); err != nil {
		return err
	}
	if k.Ahead && k.Scope != outboard.KillHost {
		return invalid("ahead is for scope host")
	}
	switch k.Scope {
	case outboard.KillSession:
		_, err := c.header(ctx, by, outboard.SessionID(k.Target))
		return err
	case outboard.KillAgent:
		_, err := c.Agent(ctx, by, outboard.AgentID(k.Target), 0)
		return err
	case outboard.KillEnvironment:
		_, err := c.Environment(ctx, by, outboard.EnvironmentID(k.Target))
		return err
	case outboard.KillOwner:
		return c.checkKillOwner(ctx, by, &k.Kill)
	case outboard.KillHost:
		return c.checkKillHost(ctx, *k)
	case outboard.KillCredential:
		row, err := c.store.Credential(ctx, outboard.CredentialID(k.Target))
		if err == nil {
			_, err = c.Vault(ctx, by, row.Vault)
		}
		if outboard.KindOf(err) == outboard.NotFound && err != nil {
			return notFound("credential", k.Target)
		}
		return err
	}
	return nil
}

// checkKillOwner makes a kill that names a person's key one over the person: each sign-in is another key, and
// would be a way out.
func (c *Control) checkKillOwner(ctx context.Context, by outboard.Caller, k *outboard.Kill) error {
	if outboard.ValidID(outboard.PrefixUser, k.Target) {
		u, err := c.store.User(ctx, outboard.UserID(k.Target))
		return ownedBy(by, u.Org, "owner", k.Target, err)
	}
	key, err := c.store.Key(ctx, outboard.KeyID(k.Target))
	if err := ownedBy(by, key.Org, "owner", k.Target, err); err != nil {
		return err
	}
	if key.Kind == outboard.KeyOperator { // it acts in every organization, and may be the only one
		if err := operator(by); err != nil {
			return err
		}
		if n, err := c.store.OperatorKeys(ctx); k.Level == outboard.KillRevoke && (err != nil || n < 2) {
			return invalid("this is the last key of who runs the server, and nobody could manage it without").
				WithHint("outboard kill owner %s --level stop", k.Target)
		}
	}
	k.Target = cmp.Or(string(key.User), k.Target)
	return nil
}

// Kills returns the kills in force that the caller's organization threw; whoever runs the server sees all.
func (c *Control) Kills(_ context.Context, by outboard.Caller) ([]outboard.Kill, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	if c.kill == nil {
		return nil, nil
	}
	return slices.DeleteFunc(c.kill.Active(), func(k outboard.Kill) bool { return !c.seesKill(by, &k) }), nil
}

func (c *Control) seesKill(by outboard.Caller, k *outboard.Kill) bool {
	return by.Operator() || k.Org == by.In() && k.Scope != outboard.KillAll && k.Scope != outboard.KillHost
}

// LiftKill ends a kill. What was paused goes on; what was stopped or revoked stays so.
func (c *Control) LiftKill(ctx context.Context, by outboard.Caller, id outboard.KillID) error {
	if err := requireAdmin(by, scopePolicies); err != nil {
		return err
	}
	active, err := c.Kills(ctx, by)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(active, func(k outboard.Kill) bool { return k.ID == id }) {
		return notFound("kill in force", string(id))
	}
	if err := c.record(ctx, by, "kill.lift", string(id), nil); err != nil {
		return err
	}
	err = c.store.LiftKill(ctx, id, by.Name, c.clock())
	if err != nil && outboard.KindOf(err) != outboard.NotFound { // it may be a file only
		return wrapLookup("kill in force", string(id), err)
	}
	if err := c.kill.Forget(id); err != nil {
		return outboard.Errorf(outboard.Unavailable, "removing the file of the kill: %w", err)
	}
	c.kill.Enforce(ctx)
	return nil
}

// sessionsUnder calls fn for each session that a kill covers and that has something to end, until fn fails.
func (c *Control) sessionsUnder(ctx context.Context, k outboard.Kill, all bool,
	fn func(h outboard.Header, cfg outboard.SessionConfig) error) error {
	one := func(h outboard.Header) error {
		if h.Phase == outboard.PhaseTerminated || !all && h.Phase == outboard.PhaseIdle && !h.Parked() &&
			h.Inbox+h.Urgent == 0 && !h.Broke() {
			return nil
		}
		cfg, err := c.store.SessionConfig(ctx, h.ID)
		if outboard.KindOf(err) == outboard.NotFound && err != nil {
			return nil
		}
		if who := cfg.Subject(h.ID); err != nil || !k.Covers(who) {
			return err
		}
		return fn(h, cfg)
	}
	if k.Scope == outboard.KillSession {
		h, err := c.store.Session(ctx, outboard.SessionID(k.Target))
		if err != nil {
			return err
		}
		return one(h)
	}
	f := store.SessionFilter{Limit: killPage}
	if k.Scope == outboard.KillAgent {
		f.Agent = outboard.AgentID(k.Target)
	}
	for {
		page, err := c.store.Sessions(ctx, f)
		if err != nil {
			return err
		}
		for _, h := range page {
			if err := one(h); err != nil {
				return err
			}
		}
		if len(page) < killPage {
			return nil
		}
		f.Cursor = page[len(page)-1].ID
	}
}

// errEnough ends a walk.
var errEnough = errors.New("enough")

// inFlight lists the model and tool calls of running sessions that a kill covers, as far as that can be told in
// a moment.
func (c *Control) inFlight(ctx context.Context, k outboard.Kill) (out []InFlight, partial bool) {
	ctx, cancel := context.WithTimeout(ctx, inFlightTime)
	defer cancel()
	err := c.sessionsUnder(ctx, k, false, func(h outboard.Header, _ outboard.SessionConfig) error {
		if h.Phase != outboard.PhaseRunning {
			return nil
		}
		s, err := c.fold(ctx, h.ID)
		if err != nil {
			return err
		}
		if s.Request != "" {
			out = append(out, InFlight{h.ID, s.Request, "model", ""})
		}
		for _, call := range s.Calls {
			if call.Started != nil && call.Finished == nil {
				out = append(out, InFlight{h.ID, call.ID, call.Requested.Name, ""})
			}
		}
		if len(out) >= maxInFlight {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		c.log.Error("what is in flight cannot be told", "err", err)
	}
	return out, err != nil
}

// fold reads a session's log from its newest summary on.
func (c *Control) fold(ctx context.Context, id outboard.SessionID) (s *outboard.State, err error) {
	if s, err = c.store.FoldStart(ctx, id); err != nil {
		return nil, err
	}
	for e, err := range c.store.Read(ctx, id, s.Head) {
		if err == nil {
			err = s.Apply(&e)
		}
		if errors.Is(err, outboard.ErrRewound) { // just now
			return c.fold(ctx, id)
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// AfterKill does what a kill means for rows: asks and timers of stopped sessions are void, and what is revoked
// ends for good. It can be done twice.
func (c *Control) AfterKill(ctx context.Context, k outboard.Kill) error {
	if k.Level.Rank() < outboard.KillStop.Rank() {
		return nil
	}
	var errs []error
	revoke := k.Level == outboard.KillRevoke
	if k.Scope != outboard.KillCredential && k.Scope != outboard.KillHost {
		errs = append(errs, c.closeHosts(ctx, k), c.sessionsUnder(ctx, k, revoke,
			func(h outboard.Header, _ outboard.SessionConfig) error {
				return c.endSession(ctx, &h, &k, revoke)
			}))
	}
	if revoke {
		switch k.Scope {
		case outboard.KillOwner:
			errs = append(errs, c.revokeOwner(ctx, k.Target))
		case outboard.KillCredential:
			errs = append(errs, c.archiveKilled(ctx, k))
		}
	}
	return errors.Join(errs...)
}

// revokeOwner ends the keys of a person, their SSH keys and grants, or the key of a program.
func (c *Control) revokeOwner(ctx context.Context, id string) (err error) {
	if outboard.ValidID(outboard.PrefixUser, id) {
		err = c.store.EndKeysOf(ctx, outboard.UserID(id))
	} else {
		_, err = c.store.RevokeKey(ctx, outboard.KeyID(id), c.clock())
	}
	c.withdrawals.ring()
	return err
}

// closeHosts ends the approvals of hosts that sessions under a kill wait for, also of sessions that are at rest:
// no worker comes to close them, and an answer after the kill was lifted would be about what nobody waits for
// any more.
func (c *Control) closeHosts(ctx context.Context, k outboard.Kill) error {
	asking, err := c.store.AskingHosts(ctx)
	if err != nil {
		return err
	}
	why := *k.Closes(c.clock())
	var errs []error
	for _, id := range asking {
		cfg, err := c.store.SessionConfig(ctx, id)
		if err == nil && k.Covers(cfg.Subject(id)) {
			err = c.store.CloseNet(ctx, id, why)
		}
		if err != nil && outboard.KindOf(err) != outboard.NotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// archiveKilled archives a credential. Its tokens go back to their issuer, as far as they can be read.
func (c *Control) archiveKilled(ctx context.Context, k outboard.Kill) error {
	if c.vault == nil {
		return nil
	}
	id := outboard.CredentialID(k.Target)
	row, err := c.store.Credential(ctx, id)
	if err != nil {
		return err
	}
	v, err := c.store.Vault(ctx, row.Vault)
	if err != nil {
		return err
	}
	keeper := c.vault.For(v.Org)
	if err := keeper.Retire(ctx, "kill "+string(k.ID), id); err != nil {
		c.log.Error("the tokens of a killed credential are not revoked at their issuer", "credential", id, "err", err)
	}
	_, err = keeper.Archive(ctx, id)
	return err
}

// endSession wakes a session's worker, so that it closes what is open; revoked, the session takes nothing any more.
func (c *Control) endSession(ctx context.Context, h *outboard.Header, k *outboard.Kill, revoke bool) error {
	if !revoke {
		e := outboard.NewEvent(h.Thread, &outboard.InputInterrupt{})
		_, err := c.store.Append(ctx, h.ID, 0, store.Any, e)
		return ignoreEnded(err)
	}
	_, err := c.store.Append(ctx, h.ID, 0, store.Any, outboard.NewEvent(h.Thread, &outboard.SessionArchived{}))
	if err := ignoreEnded(err); err != nil {
		return err
	}
	c.closeApprovals(ctx, h.ID, k.Closes(c.clock()))
	c.settleLost(ctx, h.ID)
	return c.store.KillGrants(ctx, h.ID, c.clock())
}

func ignoreEnded(err error) error {
	if errors.Is(err, store.ErrTerminated) || err != nil && outboard.KindOf(err) == outboard.NotFound {
		return nil
	}
	return err
}

// settleReport waits until nothing is left, or the time is over, and then says what became of what was in flight.
func (c *Control) settleReport(ctx context.Context, r *KillReport, begun time.Time) {
	for {
		r.Machines, r.Flows = c.kill.Left(ctx, r.Kill)
		done := c.outcomes(ctx, r.InFlight)
		if r.Kill.Level == outboard.KillPause {
			done, r.Machines = true, 0 // they are frozen
		}
		r.Took = time.Since(begun)
		if done && r.Machines+r.Flows == 0 || r.Took > killReport || ctx.Err() != nil {
			break
		}
		select {
		case <-time.After(killLook):
		case <-ctx.Done():
		}
	}
	for i := range r.InFlight {
		if r.InFlight[i].Outcome == "" {
			r.InFlight[i].Outcome = string(outboard.OutcomeUnknown)
		}
	}
}

// outcomes looks up what is known, and reports whether all is.
func (c *Control) outcomes(ctx context.Context, list []InFlight) bool {
	done := true
	for i := range list {
		f := &list[i]
		if f.Outcome != "" {
			continue
		}
		about, err := c.store.EventsAbout(ctx, f.Session, f.Call)
		if err != nil {
			return false
		}
		for j := range about {
			switch p, err := about[j].Decode(); p := p.(type) {
			case *outboard.CallFinished:
				f.Outcome = string(p.Outcome)
			case *outboard.ModelFailed:
				f.Outcome = string(outboard.OutcomeCanceled)
			case *outboard.ModelFinished:
				f.Outcome = string(outboard.OutcomeOK)
			default:
				_ = err
			}
		}
		done = done && f.Outcome != ""
	}
	return done
}
