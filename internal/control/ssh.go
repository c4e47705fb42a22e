package control

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/policy"
)

// SSHDoor is where this server takes SSH connections: what clients are told, so that they need not guess.
type SSHDoor struct {
	Address string // host:port as it listens
	HostKey string // as in known_hosts, without the name
}

// SSH returns where SSH connections are taken. NotFound where they are not.
func (c *Control) SSH(_ context.Context, by outboard.Caller) (SSHDoor, error) {
	if err := requireReader(by); err != nil {
		return SSHDoor{}, err
	}
	if d := c.ssh.Load(); d != nil {
		return *d, nil
	}
	return SSHDoor{}, outboard.Errorf(outboard.NotFound, "this server takes no SSH connections").
		WithHint("outboard serve --ssh ADDRESS, or ssh: in the configuration")
}

// SetSSH says where SSH connections are taken from now on.
func (c *Control) SetSSH(d SSHDoor) { c.ssh.Store(&d) }

// SSHVisit is somebody who showed that a registered key is theirs, at a sandbox they may use. It is safe for
// concurrent use, but for Alive.
type SSHVisit struct {
	By      outboard.Caller
	Key     outboard.SSHKey
	Box     outboard.BoxID     // "" at a session
	Session outboard.SessionID // "" at a box

	c       *Control
	subject outboard.KillSubject
	seen    int64 // of revocations; of whoever calls Alive
}

// Target is the id that was visited.
func (v *SSHVisit) Target() string {
	if v.Box != "" {
		return string(v.Box)
	}
	return string(v.Session)
}

// refusedSSH is the one answer to who may not: it tells neither what there is nor what is missing.
var refusedSSH = outboard.Errorf(outboard.Denied, "no such sandbox, or it is not yours to use with this key")

// ErrSSHStranger is the same answer to who shows a key that is not registered where it is to open something. Others
// are on record already.
var ErrSSHStranger = outboard.Errorf(outboard.Denied, "%s", refusedSSH.Message)

// OpenSSH admits whoever proved to hold a public key, by its fingerprint, to a box or a session. The admission
// is in the audit first, and so is a refusal of a key that is registered where the sandbox is. Every refusal has
// the same text.
func (c *Control) OpenSSH(ctx context.Context, fingerprint, target, from string) (*SSHVisit, error) {
	v := &SSHVisit{c: c}
	org, err := c.sshTarget(ctx, target, v)
	if err != nil {
		return nil, err
	}
	keys, err := c.store.SSHKeysBy(ctx, org, fingerprint)
	if err != nil {
		return nil, outboard.Errorf(outboard.KindOf(err), "reading SSH keys: %w", err)
	}
	if len(keys) == 0 {
		return nil, ErrSSHStranger
	}
	for i := range keys {
		v.Key = keys[i]
		if v.By, err = c.sshCaller(ctx, &v.Key); err == nil {
			err = v.may(ctx, v.By)
		}
		switch outboard.KindOf(err) {
		case outboard.Denied, outboard.NotFound, outboard.Unauthenticated:
			v.refuse(ctx, from, err)
			continue
		}
		if err == nil {
			err = v.Record(ctx, "ssh.connect", map[string]string{"from": from, "fingerprint": fingerprint})
		}
		if err != nil {
			return nil, err
		}
		return v, nil
	}
	return nil, refusedSSH
}

// sshTarget finds what is visited, and whose it is.
func (c *Control) sshTarget(ctx context.Context, target string, v *SSHVisit) (outboard.OrgID, error) {
	var org outboard.OrgID
	var err error
	switch {
	case outboard.BoxID(target).Valid():
		var b outboard.Box
		b, err = c.store.Box(ctx, outboard.BoxID(target))
		org, v.Box, v.subject = b.Org, b.ID, b.Subject()
	case outboard.ValidID(outboard.PrefixSession, target):
		var h outboard.Header
		var cfg outboard.SessionConfig
		if h, err = c.store.Session(ctx, outboard.SessionID(target)); err == nil {
			cfg, err = c.store.SessionConfig(ctx, h.ID)
		}
		org, v.Session, v.subject = h.Org, h.ID, cfg.Subject(h.ID)
	default:
		return "", ErrSSHStranger
	}
	if outboard.KindOf(err) == outboard.NotFound && err != nil {
		return "", ErrSSHStranger
	}
	return org, err
}

// sshCaller is who holds a public key, as they are now. Unauthenticated: nobody any more.
func (c *Control) sshCaller(ctx context.Context, k *outboard.SSHKey) (outboard.Caller, error) {
	if !k.Alive(c.now()) {
		return outboard.Caller{}, badKey()
	}
	held := outboard.Key{ID: outboard.KeyID(k.ID), Name: k.Name, Role: k.Role, Kind: outboard.KeyAPI, Org: k.Org,
		User: k.User, Scopes: k.Scopes, ExpiresAt: k.ExpiresAt}
	if k.Key != "" {
		row, err := c.store.Key(ctx, k.Key)
		if outboard.KindOf(err) == outboard.NotFound && err != nil {
			return outboard.Caller{}, badKey()
		}
		if err != nil {
			return outboard.Caller{}, err
		}
		held = row
	}
	by, err := c.holder(ctx, &held)
	if err != nil {
		return by, err
	}
	return c.ActIn(ctx, by, string(k.Org))
}

// may is whether the visitor may run programs there by the API, and whether anybody may now.
func (v *SSHVisit) may(ctx context.Context, by outboard.Caller) error {
	var err error
	if v.Box != "" {
		_, err = v.c.boxFor(ctx, by, v.Box)
	} else if err = v.c.boxes(by); err == nil {
		if err = requireDeveloper(by, scopeSessions); err == nil { // what runs there is read by the session's agent
			_, err = v.c.header(ctx, by, v.Session)
		}
	}
	if err != nil {
		return err
	}
	return v.c.alive(ctx, v.subject)
}

// Alive reports whether the visit may go on: nobody was removed, no key revoked or over, no kill covers the
// sandbox. A store that does not answer ends nothing; a kill switch that cannot be read does. Not for concurrent
// use.
func (v *SSHVisit) Alive(ctx context.Context) error {
	now := v.c.now()
	if !v.Key.Alive(now) || !v.By.Until.IsZero() && !now.Before(v.By.Until) {
		return badKey()
	}
	if err := v.c.alive(ctx, v.subject); err != nil {
		return err
	}
	n, err := v.c.revocations(ctx)
	if err != nil || n+1 == v.seen {
		return nil
	}
	key, err := v.c.store.SSHKey(ctx, v.Key.ID)
	if err == nil {
		var by outboard.Caller
		if by, err = v.c.sshCaller(ctx, &key); err == nil {
			err = v.may(ctx, by)
		}
	}
	switch outboard.KindOf(err) {
	case outboard.Denied, outboard.NotFound, outboard.Unauthenticated:
		return err
	}
	if err == nil {
		v.seen = n + 1
	}
	return nil
}

// Record writes what the visitor is about to do to the audit. Without it nothing may be done.
func (v *SSHVisit) Record(ctx context.Context, action string, detail map[string]string) error {
	all := map[string]string{"ssh_key": string(v.Key.ID)}
	maps.Copy(all, detail)
	return v.c.record(ctx, v.By, action, v.Target(), all)
}

// refuse writes to the audit that the holder of a registered key was refused. It is refused in any case.
func (v *SSHVisit) refuse(ctx context.Context, from string, why error) {
	detail, err := json.Marshal(map[string]string{"from": from, "why": why.Error()})
	if err == nil {
		err = v.c.store.Audit(ctx, outboard.AuditRecord{At: v.c.clock(), Org: string(v.Key.Org),
			Actor: string(v.Key.ID), Action: "ssh.connect",
			Resource: v.Target(), Decision: outboard.Refused, Rule: "role " + v.By.Role, Detail: detail})
	}
	if err != nil {
		v.c.log.Error("a refused SSH connection was not recorded", "target", v.Target(), "err", err)
	}
}

// Sandbox returns the visited sandbox, woken, or made where a resting session has none; release ends its use.
func (v *SSHVisit) Sandbox(ctx context.Context) (m Sandbox, release func(), err error) {
	if v.Box != "" {
		m, err = v.c.UseBox(ctx, v.By, v.Box)
		return m, func() {}, err
	}
	if err := v.may(ctx, v.By); err != nil {
		return nil, nil, err
	}
	b, err := v.c.fleet.VisitSession(ctx, v.Session, v.mayMake)
	if err != nil {
		return nil, nil, err
	}
	return b, func() {
		if err := v.c.fleet.Release(context.WithoutCancel(ctx), b); err != nil {
			v.c.log.Warn("giving a visited sandbox back", "session", v.Session, "err", err)
		}
	}, nil
}

// mayMake asks the policies whether a sandbox may be made for the session, as its turn would. What the session
// has seen is not looked up: it counts as tainted in every way.
func (v *SSHVisit) mayMake(ctx context.Context) error {
	cfg, err := v.c.store.SessionConfig(ctx, v.Session)
	if err != nil {
		return wrapLookup("session", string(v.Session), err)
	}
	over, err := v.c.store.BudgetsOver(ctx, v.Session, cfg.Agent.ID, cfg.Owner)
	if err != nil {
		return wrapLookup("session", string(v.Session), err)
	}
	r := &policy.Request{Session: v.Session, Owner: cfg.Owner, Agent: cfg.Agent.ID, Environment: cfg.Environment,
		Action:   policy.ActionSandbox,
		Resource: string(cfg.Environment), Context: policy.Context{Networking: cfg.Env.Networking.Mode, Now: v.c.now(),
			Taint: outboard.Taint{Private: true, Untrusted: true, Exfil: true}, Left: new(outboard.LeftOf(over,
				outboard.Spend{}))}}
	if d, _ := v.c.policy.Decide(ctx, r); d.Decision != outboard.Allow {
		return outboard.Errorf(outboard.Denied, "no sandbox may be made for the session: %s", d.Reason)
	}
	return v.c.policy.Admit(ctx, r, "ssh "+string(v.Session)+v.c.clock().Format(time.RFC3339Nano), "")
}
