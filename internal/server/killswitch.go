package server

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/kill"
	"github.com/outboard-dev/outboard/internal/runner"
)

// enforceEvery is how often what is in force is enforced again while it is: a machine may have been under way to
// be made.
const enforceEvery = time.Second

// KillWait bounds how long whoever writes the file of a kill waits for a server to take it over; it is in force
// from the start.
const KillWait = 15 * time.Second

// AdoptAfter is how old a file must be to be made a row: whoever wrote it may still be asking a server to check
// it and do so.
const AdoptAfter = KillWait + 5*time.Second

// KillDir is where the kills of a data directory are.
func KillDir(data string) string { return filepath.Join(data, "kills") }

// killer is the kill switch of one server with everything it holds in its hands. It implements control.KillSwitch.
type killer struct {
	*kill.Switch
	s *Server

	mu     sync.Mutex     // one enforcement at a time
	runner *runner.Runner // nil until the server works
	frozen map[outboard.SandboxID]bool
	stop   context.CancelFunc
	loop   sync.WaitGroup
}

// openKill makes the switch. What it holds comes later; until then there is nothing to end.
func (s *Server) openKill() {
	k := &killer{s: s, frozen: map[outboard.SandboxID]bool{}}
	k.Switch = kill.New(kill.Config{Source: s.Store, Dir: KillDir(s.cfg.Data), Host: HostName(s.cfg.Data),
		Logger: s.log})
	s.killer = k
}

// works says who runs sessions.
func (k *killer) works(r *runner.Runner) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.runner = r
}

// Start begins to look and to enforce.
func (k *killer) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	k.stop = cancel
	k.Switch.Start()
	k.loop.Go(func() { k.withdraw(ctx) })
	k.loop.Go(func() {
		tick := time.NewTicker(kill.LookEvery)
		defer tick.Stop()
		last, at := "", time.Time{}
		for {
			active := k.Active()
			if now := kill.Signature(active); now != last || len(active) > 0 && time.Since(at) > enforceEvery {
				k.enforce(ctx)
				last, at = now, time.Now()
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

// withdraw gives back the tokens of what is revoked, every second: one may have been about to be made when the
// kill came.
func (k *killer) withdraw(ctx context.Context) {
	tick := time.NewTicker(enforceEvery)
	defer tick.Stop()
	for {
		active := k.Active()
		for i := range active {
			if active[i].Level == outboard.KillRevoke {
				k.s.Vault.Withdraw("kill "+string(active[i].ID),
					func(id outboard.CredentialID, session outboard.SessionID) bool {
						return k.tokenOf(ctx, &active[i], id, session)
					})
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// tokenOf reports whether a kill covers a token of a credential that a session has used.
func (k *killer) tokenOf(ctx context.Context, in *outboard.Kill, id outboard.CredentialID,
	session outboard.SessionID) bool {
	who := outboard.KillSubject{Session: session, Credential: id}
	if in.Scope != outboard.KillCredential && in.Scope != outboard.KillSession && session != "" {
		cfg, err := k.s.Store.SessionConfig(ctx, session)
		if err != nil {
			return false // it is asked again in a second
		}
		who = cfg.Subject(session)
	}
	return in.Covers(k.here(who))
}

// Stop ends looking. It may be called twice, and before Start.
func (k *killer) Stop() {
	if k.stop != nil {
		k.stop()
	}
	k.loop.Wait()
	k.Switch.Stop()
}

// Enforce implements control.KillSwitch.
func (k *killer) Enforce(ctx context.Context) {
	k.Refresh(ctx)
	k.enforce(ctx)
}

// enforce closes connections, ends turns, and freezes, kills or thaws machines. Each step is tried whatever
// became of the others.
func (k *killer) enforce(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	active := k.Active()
	if g := k.s.egress; g != nil {
		for i := range active {
			g.End(func(s egress.Subject) bool {
				if active[i].Scope == outboard.KillCredential { // nobody knows which streams were opened with it
					return len(s.Config.VaultIDs) > 0
				}
				return active[i].Covers(k.here(s.Config.Subject(s.Session)))
			}, kill.Refusal(&active[i]))
		}
	}
	if k.runner != nil {
		k.runner.Recheck(ctx)
	}
	if k.s.Fleet != nil {
		k.machines(ctx)
	}
	k.adopt(ctx)
}

// machines brings every machine of this host to where the kills in force want it: first those that this process
// knows of, which waits for no database, and then the others.
func (k *killer) machines(ctx context.Context) {
	held := k.s.Fleet.Held()
	k.bring(ctx, held)
	rctx, cancel := context.WithTimeout(ctx, enforceEvery)
	owned, err := k.s.Fleet.Owned(rctx)
	cancel()
	if err != nil && ctx.Err() == nil { // else this process ends
		k.s.log.Error("machines are ended as far as this process knows them", "err", err)
	}
	maps.DeleteFunc(owned, func(id outboard.SandboxID, _ outboard.KillSubject) bool { _, ok := held[id]; return ok })
	k.bring(ctx, owned)
}

// bring freezes, kills or thaws some machines.
func (k *killer) bring(ctx context.Context, owned map[outboard.SandboxID]outboard.KillSubject) {
	var dead []outboard.SandboxID
	for id, who := range owned {
		found, err := k.Known(who)
		switch {
		case err != nil: // nothing new happens; what runs is left to whoever can read the switch
		case found == nil && k.frozen[id]:
			if err := k.s.Fleet.ThawMachine(ctx, id); err != nil && outboard.KindOf(err) != outboard.NotFound {
				k.s.log.Warn("a paused machine does not go on", "sandbox", id, "err", err)
				continue
			}
			delete(k.frozen, id)
		case found == nil:
		case found.Level.Rank() >= outboard.KillStop.Rank():
			dead = append(dead, id)
			delete(k.frozen, id)
		case !k.frozen[id]:
			err := k.s.Fleet.FreezeMachine(ctx, id)
			if err != nil && outboard.KindOf(err) != outboard.NotFound { // what cannot be frozen must not run on
				k.s.log.Warn("a machine that cannot be paused is killed", "sandbox", id, "err", err)
				dead = append(dead, id)
				continue
			}
			k.frozen[id] = true
		}
	}
	if len(dead) == 0 {
		return
	}
	if err := k.s.Fleet.KillMachines(context.WithoutCancel(ctx), dead); err != nil {
		k.s.log.Error("killing machines", "err", err)
	}
}

// adopt makes rows of files, once the database answers: then all servers see the kill, and sessions at rest
// learn of it.
func (k *killer) adopt(ctx context.Context) {
	for _, f := range k.Files() {
		if time.Since(f.At) < AdoptAfter || k.s.Control == nil {
			continue
		}
		actx, cancel := context.WithTimeout(ctx, enforceEvery)
		err := k.s.Control.AdoptKill(actx, f)
		if err == nil {
			k.Refresh(actx) // the row must be known before the file goes
			err = k.Forget(f.ID)
		}
		cancel()
		if err != nil {
			k.s.log.Warn("a kill is in force as a file only", "kill", f.ID, "err", err)
			return
		}
	}
}

// Left implements control.KillSwitch.
func (k *killer) Left(ctx context.Context, in outboard.Kill) (machines, flows int) {
	if k.s.Fleet != nil && in.Level.Rank() >= outboard.KillStop.Rank() {
		rctx, cancel := context.WithTimeout(ctx, enforceEvery)
		owned, _ := k.s.Fleet.Owned(rctx) // without the database: what this process knows
		cancel()
		there, _ := k.s.Fleet.Present(ctx)
		for id, who := range owned {
			if in.Covers(k.here(who)) && there[id] {
				machines++
			}
		}
	}
	if k.s.egress != nil {
		flows = k.s.egress.Flows(func(s egress.Subject) bool { return in.Covers(k.here(s.Config.Subject(s.Session))) })
	}
	return machines, flows
}

func (k *killer) here(who outboard.KillSubject) outboard.KillSubject {
	who.Host = HostName(k.s.cfg.Data)
	return who
}

// Keep implements control.KillSwitch.
func (k *killer) Keep(in outboard.Kill) error {
	err := kill.WriteFile(KillDir(k.s.cfg.Data), in)
	if err != nil {
		k.Hold(in)
	}
	return err
}

// Forget implements control.KillSwitch.
func (k *killer) Forget(id outboard.KillID) error {
	if !outboard.ValidID(outboard.PrefixKill, string(id)) {
		return errors.New("not the id of a kill")
	}
	k.Drop(id)
	return kill.RemoveFile(KillDir(k.s.cfg.Data), id)
}

// Frozen is how many sandboxes the kill switch of this process holds frozen.
func (s *Server) Frozen() int {
	s.killer.mu.Lock()
	defer s.killer.mu.Unlock()
	return len(s.killer.frozen)
}

// May implements egress.Gate.
func (k *killer) May(ctx context.Context, s egress.Subject) error {
	return k.Check(ctx, s.Config.Subject(s.Session))
}

// permit is asked before a credential is used.
func (k *killer) permit(ctx context.Context, id outboard.CredentialID) error {
	return k.Check(ctx, outboard.KillSubject{Credential: id})
}
