package control

import (
	"context"
	"crypto/rand"
	"errors"
	"net/mail"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Limits of people and keys.
const (
	maxOrgName = 64
	maxEmail   = 254                       // RFC 5321
	maxKeyTTL  = 10 * 366 * 24 * time.Hour // longer is a typing mistake
	maxUsers   = 10_000                    // of one organization, so that a list of people stays one
)

// keyPrefix begins the secret of every key, so that a scanner of repositories can tell one.
const keyPrefix = "obk_"

func newKeySecret() string { return keyPrefix + rand.Text() }

// Identity is who the caller is.
type Identity struct {
	Caller outboard.Caller
	Org    outboard.Organization
	Key    outboard.Key
	User   *outboard.User // nil for a machine's key
}

// Whoami says who the caller is.
func (c *Control) Whoami(ctx context.Context, by outboard.Caller) (Identity, error) {
	out := Identity{Caller: by}
	if err := requireReader(by); err != nil {
		return out, err
	}
	var err error
	if out.Org, err = c.store.Org(ctx, string(by.In())); err != nil {
		return out, wrapLookup("organization", string(by.In()), err)
	}
	if out.Key, err = c.store.Key(ctx, by.Key); err != nil {
		return out, wrapLookup("key", string(by.Key), err)
	}
	if by.User != "" {
		u, err := c.store.User(ctx, by.User)
		if err != nil {
			return out, wrapLookup("user", string(by.User), err)
		}
		out.User = &u
	}
	return out, nil
}

// Orgs returns the organizations that the caller may know of: all for who runs the server, else its own.
func (c *Control) Orgs(ctx context.Context, by outboard.Caller) ([]outboard.Organization, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	all, err := c.store.Orgs(ctx)
	if !by.Operator() {
		all = slices.DeleteFunc(all, func(o outboard.Organization) bool { return o.ID != by.In() })
	}
	return all, wrapLookup("organizations", "", err)
}

// CreateOrg makes an organization. Only who runs the server may.
func (c *Control) CreateOrg(ctx context.Context, by outboard.Caller, name string) (outboard.Organization, error) {
	o := outboard.Organization{ID: outboard.NewID[outboard.OrgID](outboard.PrefixOrg), Name: name, CreatedAt: c.clock()}
	if err := operator(by); err != nil {
		return o, err
	}
	if err := length("name", name, 1, maxOrgName); err != nil {
		return o, err
	}
	if outboard.ValidID(outboard.PrefixOrg, name) {
		return o, invalid("the name %s looks like an id", quote(name))
	}
	if err := c.record(ctx, by, "org.create", string(o.ID), map[string]string{"name": name}); err != nil {
		return o, err
	}
	err := c.store.AddOrg(ctx, o)
	if errors.Is(err, store.ErrDuplicate) {
		return o, outboard.Errorf(outboard.Conflict, "there is an organization %s already", quote(name))
	}
	return o, err
}

// ArchiveOrg ends an organization: its keys, its logins and the tokens of its boxes are refused at once, and its
// running sessions are interrupted and have no further effect. Its rows stay.
func (c *Control) ArchiveOrg(ctx context.Context, by outboard.Caller, ref string) (outboard.Organization, error) {
	if err := operator(by); err != nil {
		return outboard.Organization{}, err
	}
	if len(ref) > maxName || strings.ContainsRune(ref, 0) {
		return outboard.Organization{}, notFound("organization", ref)
	}
	o, err := c.store.Org(ctx, ref)
	if err != nil {
		return o, wrapLookup("organization", ref, err)
	}
	if o.ID == outboard.DefaultOrg {
		return o, invalid("the default organization cannot be archived")
	}
	if err := c.record(ctx, by, "org.archive", string(o.ID), nil); err != nil {
		return o, err
	}
	o, err = c.store.ArchiveOrg(ctx, o.ID, c.clock())
	if err != nil {
		return o, wrapLookup("organization", ref, err)
	}
	c.withdrawals.ring()
	c.interruptOrg(ctx, o.ID)
	return o, nil
}

// interruptOrg ends the turns of an organization that has ended. None can have an effect all the same: policy
// asks whom it is for.
func (c *Control) interruptOrg(ctx context.Context, org outboard.OrgID) {
	f := store.SessionFilter{Org: org, Limit: killPage}
	for {
		page, err := c.store.Sessions(ctx, f)
		if err != nil {
			c.log.Warn("interrupting the sessions of an organization that has ended", "org", org, "err", err)
			return
		}
		for i := range page {
			if err := c.interrupt(ctx, page[i].ID); err != nil {
				c.log.Warn("interrupting a session of an organization that has ended", "session", page[i].ID, "org",
					org, "err", err)
			}
		}
		if len(page) < killPage {
			return
		}
		f.Cursor = page[len(page)-1].ID
	}
}

// Users returns one page of the organization's people, newest first.
func (c *Control) Users(ctx context.Context, by outboard.Caller, p Page) ([]outboard.User, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	p.Org = by.In()
	list, err := c.store.Users(ctx, p)
	return list, wrapLookup("users", "", err)
}

// User returns one, by id.
func (c *Control) User(ctx context.Context, by outboard.Caller, id outboard.UserID) (outboard.User, error) {
	if err := requireReader(by); err != nil {
		return outboard.User{}, err
	}
	if !outboard.ValidID(outboard.PrefixUser, string(id)) {
		return outboard.User{}, notFound("user", string(id))
	}
	u, err := c.store.User(ctx, id)
	if err := ownedBy(by, u.Org, "user", string(id), err); err != nil {
		return outboard.User{}, err
	}
	return u, nil
}

func checkRole(role string) error {
	if !slices.Contains(outboard.Roles, role) {
		return invalid("role must be %s, not %s", strings.Join(outboard.Roles, ", "), quote(role))
	}
	return nil
}

// checkEmail returns an address as it is compared.
func checkEmail(s string) (string, error) {
	a, err := mail.ParseAddress(s)
	if err != nil || a.Address != s || len(s) > maxEmail ||
		strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", invalid("email: %s is not a plain address", quote(s))
	}
	return strings.ToLower(s), nil
}

// AddUser makes somebody a member of the organization. They sign in with a provider that vouches for the address.
func (c *Control) AddUser(ctx context.Context, by outboard.Caller, email, name, role string) (outboard.User, error) {
	u := outboard.User{ID: outboard.NewID[outboard.UserID](outboard.PrefixUser), Org: by.In(), Name: name, Role: role,
		CreatedAt: c.clock()}
	if err := requireAdmin(by, scopePeople); err != nil {
		return u, err
	}
	var err error
	if u.Email, err = checkEmail(email); err != nil {
		return u, err
	}
	if err := errors.Join(checkRole(role), length("name", name, 0, maxName)); err != nil {
		return u, invalid("%w", err)
	}
	have, err := c.store.Users(ctx, Page{Org: by.In(), Limit: maxUsers, IncludeArchived: true})
	if err != nil {
		return u, wrapLookup("users", "", err)
	}
	if len(have) >= maxUsers {
		return u, outboard.Errorf(outboard.Exhausted, "the organization has %d people, which is the most it may",
			len(have))
	}
	if err := c.record(ctx, by, "user.add", string(u.ID), map[string]string{"email": u.Email,
		"role": role}); err != nil {
		return u, err
	}
	err = c.store.AddUser(ctx, u)
	if errors.Is(err, store.ErrDuplicate) {
		return u, outboard.Errorf(outboard.Conflict, "the organization has %s already", quote(u.Email)).
			WithHint("outboard user ls -a; outboard user restore")
	}
	return u, err
}

// UserPatch changes a person. Nil fields keep their value.
type UserPatch struct {
	Name *string
	Role *string
}

// UpdateUser changes a person's name or role. A lower role ends what they hold, as RemoveUser does: they sign in
// again, and have less.
func (c *Control) UpdateUser(ctx context.Context, by outboard.Caller, id outboard.UserID,
	p UserPatch) (outboard.User, error) {
	if err := requireAdmin(by, scopePeople); err != nil {
		return outboard.User{}, err
	}
	u, err := c.User(ctx, by, id)
	if err != nil {
		return u, err
	}
	old := u.Role
	set(&u.Name, p.Name)
	set(&u.Role, p.Role)
	if err := errors.Join(checkRole(u.Role), length("name", u.Name, 0, maxName)); err != nil {
		return u, invalid("%w", err)
	}
	return u, c.changeUser(ctx, by, u, "user.update", !outboard.AtLeast(u.Role, old))
}

// RemoveUser ends everything of a person within a second: keys, also those they made for others, logins,
// streams, grants they have or gave, what their sessions wait for. Their running sessions are interrupted and
// have no further effect. Their rows stay, and RestoreUser lets them in again.
func (c *Control) RemoveUser(ctx context.Context, by outboard.Caller, id outboard.UserID) (outboard.User, error) {
	if err := requireAdmin(by, scopePeople); err != nil {
		return outboard.User{}, err
	}
	u, err := c.User(ctx, by, id)
	if err != nil || !u.RemovedAt.IsZero() {
		store.Unchanged(ctx)
		return u, err
	}
	if u.ID == by.User {
		return u, invalid("nobody removes themselves").WithHint("another administrator does")
	}
	if string(u.ID) == by.Maker {
		return u, invalid("%s made the key that asks, and it would end with them", quote(u.Email)).
			WithHint("with another administrator's key, or who runs the server")
	}
	u.RemovedAt = c.clock()
	return u, c.changeUser(ctx, by, u, "user.remove", true)
}

// RestoreUser lets a removed person sign in again: with any account of the identity provider that has verified
// their address, since an account that was made anew is a common reason. What ended stays ended; sessions go on
// when somebody writes to them.
func (c *Control) RestoreUser(ctx context.Context, by outboard.Caller, id outboard.UserID) (outboard.User, error) {
	if err := requireAdmin(by, scopePeople); err != nil {
		return outboard.User{}, err
	}
	u, err := c.User(ctx, by, id)
	if err != nil || u.RemovedAt.IsZero() {
		store.Unchanged(ctx)
		return u, err
	}
	u.RemovedAt, u.Issuer, u.Subject = time.Time{}, "", ""
	return u, c.changeUser(ctx, by, u, "user.restore", false)
}

// changeUser records and stores a change, and stops the sessions of whom it takes rights from.
func (c *Control) changeUser(ctx context.Context, by outboard.Caller, u outboard.User, action string, ends bool) error {
	if err := c.record(ctx, by, action, string(u.ID), map[string]any{"email": u.Email, "role": u.Role,
		"removed": !u.RemovedAt.IsZero()}); err != nil {
		return err
	}
	sessions, err := c.store.ChangeUser(ctx, u, ends)
	if err != nil {
		return wrapLookup("user", string(u.ID), err)
	}
	if ends {
		c.withdrawals.ring()
	}
	for _, id := range sessions {
		if err := c.interrupt(ctx, id); err != nil { // it can have no effect all the same: policy asks who it acts for
			c.log.Warn("interrupting a session of a person who lost rights", "session", id, "user", u.ID, "err", err)
		}
	}
	if ends {
		c.log.Info("a person lost rights", "user", u.ID, "role", u.Role, "removed", !u.RemovedAt.IsZero(), "by", by.Key,
			"sessions", len(sessions))
	}
	return nil
}

// interrupt ends the turn of a session, if it is in one.
func (c *Control) interrupt(ctx context.Context, id outboard.SessionID) error {
	h, err := c.store.Session(ctx, id)
	if err != nil {
		return err
	}
	if st := c.Status(&h); st != outboard.PhaseRunning && st != outboard.PhaseRetrying && !h.Parked() {
		return nil
	}
	_, err = c.store.Commit(ctx, store.Commit{Session: id, Expect: store.Any,
		Events: []outboard.Event{outboard.NewEvent(h.Thread, &outboard.InputInterrupt{})}})
	return err
}

// KeyRequest makes a key.
type KeyRequest struct {
	Name        string
	Role        string // "" = developer
	Scopes      []string
	User        outboard.UserID        // a person's; "" = a machine's
	Environment outboard.EnvironmentID // makes an environment key
	TTL         time.Duration          // 0 = it does not expire
}

// CreateKey makes a key of the organization and returns its secret, which nobody can read again.
func (c *Control) CreateKey(ctx context.Context, by outboard.Caller, r KeyRequest) (outboard.Key, string, error) {
	k := outboard.Key{ID: outboard.NewID[outboard.KeyID](outboard.PrefixKey), Name: r.Name, Role: r.Role,
		Kind: outboard.KeyAPI, Org: by.In(),
		User: r.User, Scopes: r.Scopes, Environment: r.Environment, CreatedAt: c.clock(), Maker: by.Makes(), MadeWith: by.Key}
	if err := requireAdmin(by, scopePeople); err != nil {
		return k, "", err
	}
	if k.Role == "" {
		k.Role = outboard.RoleDeveloper
	}
	if r.Environment != "" {
		k.Kind, k.Role = outboard.KeyEnvironment, outboard.RoleViewer
	}
	if r.TTL != 0 {
		k.ExpiresAt = k.CreatedAt.Add(r.TTL)
	}
	if err := c.checkKey(ctx, by, &k, r.TTL); err != nil {
		return k, "", err
	}
	if err := c.record(ctx, by, "key.create", string(k.ID), map[string]any{"name": k.Name, "role": k.Role,
		"kind": k.Kind, "user": k.User,
		"scopes": k.Scopes}); err != nil {
		return k, "", err
	}
	secret := newKeySecret()
	k.Hash = HashSecret(secret)
	if err := c.store.PutKey(ctx, k); err != nil {
		return k, "", outboard.Errorf(outboard.KindOf(err), "storing the key: %w", err)
	}
	return k, secret, nil
}

func (c *Control) checkKey(ctx context.Context, by outboard.Caller, k *outboard.Key, ttl time.Duration) error {
	if err := errors.Join(length("name", k.Name, 1, maxName), checkRole(k.Role)); err != nil {
		return invalid("%w", err)
	}
	if ttl < 0 || ttl > maxKeyTTL {
		return invalid("expires_in_seconds must be positive, and at most %d seconds", int64(maxKeyTTL.Seconds()))
	}
	for i, s := range k.Scopes {
		if !slices.Contains(outboard.KeyScopes, s) || slices.Contains(k.Scopes[:i], s) {
			return invalid("scopes: %s is not one of %s, or is there twice", quote(s),
				strings.Join(outboard.KeyScopes, ", "))
		}
	}
	if len(by.Scopes) > 0 { // a limited key makes no key that may more
		if len(k.Scopes) == 0 || slices.ContainsFunc(k.Scopes,
			func(s string) bool { return !slices.Contains(by.Scopes, s) }) {
			return outboard.Errorf(outboard.Denied, "a limited key makes only keys with some of its own scopes: %s",
				strings.Join(by.Scopes, ", "))
		}
	}
	// nor one that lasts longer
	if by.Kind != outboard.KeyLogin && !by.Until.IsZero() && (k.ExpiresAt.IsZero() || k.ExpiresAt.After(by.Until)) {
		return outboard.Errorf(outboard.Denied,
			"a key that ends makes only keys that end no later: this one does at %s", by.Until.Format(time.RFC3339)).
			WithHint("outboard key create %s --for %s", k.Name, max(by.Until.Sub(k.CreatedAt).Truncate(time.Second),
				time.Second))
	}
	if k.User != "" {
		u, err := c.User(ctx, by, k.User)
		if err != nil {
			return err
		}
		if !u.RemovedAt.IsZero() {
			return invalid("%s was removed", quote(u.Email))
		}
	}
	if k.Environment != "" {
		e, err := c.Environment(ctx, by, k.Environment)
		if err != nil {
			return err
		}
		if k.User != "" || len(k.Scopes) > 0 || e.Config.Kind != "self_hosted" {
			return invalid("an environment key is for a self_hosted environment, and has no user and no scopes")
		}
	}
	return nil
}

// Keys returns one page of keys, newest first: all of the organization for an administrator, else the caller's own.
func (c *Control) Keys(ctx context.Context, by outboard.Caller, p Page) ([]outboard.Key, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	p.Org = by.In()
	if requireAdmin(by, scopePeople) != nil { // a page of everybody's may have none of theirs
		list, err := c.store.KeysOf(ctx, p, by.User, by.Key)
		return list, wrapLookup("keys", "", err)
	}
	list, err := c.store.Keys(ctx, p)
	return list, wrapLookup("keys", "", err)
}

// owns reports whether a key is the caller's own.
func owns(by outboard.Caller, k *outboard.Key) bool {
	return k.ID == by.Key || by.User != "" && k.User == by.User
}

// Key returns one.
func (c *Control) Key(ctx context.Context, by outboard.Caller, id outboard.KeyID) (outboard.Key, error) {
	if err := requireReader(by); err != nil {
		return outboard.Key{}, err
	}
	if !outboard.ValidID(outboard.PrefixKey, string(id)) {
		return outboard.Key{}, notFound("key", string(id))
	}
	k, err := c.store.Key(ctx, id)
	if err := ownedBy(by, k.Org, "key", string(id), err); err != nil {
		return outboard.Key{}, err
	}
	if requireAdmin(by, scopePeople) != nil && !owns(by, &k) {
		return outboard.Key{}, notFound("key", string(id))
	}
	return k, nil
}

// RevokeKey ends a key at once. Everybody may end their own. An administrator also gets the living keys that
// were made with it, and with those: whoever has the secret may know theirs. With made they end as well.
func (c *Control) RevokeKey(ctx context.Context, by outboard.Caller, id outboard.KeyID,
	made bool) (k outboard.Key, others []outboard.Key, err error) {
	if k, err = c.Key(ctx, by, id); err != nil {
		return k, nil, err
	}
	admin := requireAdmin(by, scopePeople)
	if made && admin != nil {
		return k, nil, admin
	}
	if k, err = c.revokeKey(ctx, by, k); err != nil || admin != nil {
		return k, nil, err
	}
	// Each is revoked before it is asked what was made with it: none can be made with it after that.
	for next := []outboard.Key{k}; len(next) > 0; next = next[1:] {
		list, err := c.store.MadeWith(ctx, next[0].ID)
		if err != nil {
			return k, others, wrapLookup("keys", "", err)
		}
		for _, m := range list {
			if m.Org != k.Org && !by.Operator() || slices.ContainsFunc(others,
				func(o outboard.Key) bool { return o.ID == m.ID }) {
				continue
			}
			if made {
				if m, err = c.revokeKey(ctx, by, m); err != nil {
					return k, others, err
				}
			}
			others, next = append(others, m), append(next, m)
		}
	}
	return k, others, nil
}

func (c *Control) revokeKey(ctx context.Context, by outboard.Caller, k outboard.Key) (outboard.Key, error) {
	if k.Kind == outboard.KeyOperator {
		if err := operator(by); err != nil {
			return k, err
		}
		if n, err := c.store.OperatorKeys(ctx); err != nil || n < 2 {
			return k, invalid("this is the last key of who runs the server, and nobody could manage it without")
		}
	}
	if err := c.record(ctx, by, "key.revoke", string(k.ID), nil); err != nil {
		return k, err
	}
	k, err := c.endLogin(ctx, k.ID, "the login was ended")
	return k, wrapLookup("key", string(k.ID), err)
}
