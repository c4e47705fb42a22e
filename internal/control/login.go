package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/login"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/text"
)

// LoginConfig says how people sign in. Without a provider nobody can.
type LoginConfig struct {
	Provider *login.Provider
	// Rules say who may come in without having been added. The first that fits counts.
	Rules []LoginRule
	// Follow makes the rules hold at every sign-in: the role is what they say then, and whom none fits is refused.
	Follow bool
	Lasts  time.Duration // of a login; 0 = defaultLogin
	Renew  time.Duration // how long after a sign-in its login can be renewed without a browser; 0 = never
}

// LoginRule fits a person by one of address, domain and claim.
type LoginRule struct {
	Email        string // the whole address
	Domain       string // what is behind its @
	Claim, Value string // a claim of the provider is this, or a list that has it
	Org          string // id or name; "" = the default organization
	Role         string
}

// What a client that signs somebody in has chosen, and got back.
type (
	LoginStart  = login.Start
	LoginAnswer = login.Answer
)

// What LoginAt returns while nobody has signed in; the second one also wants to be asked less often.
var (
	ErrLoginPending  = login.ErrPending
	ErrLoginSlowDown = login.ErrSlowDown
)

const (
	defaultLogin = 12 * time.Hour
	// MaxLogin bounds how long a login may last: somebody whom the identity provider no longer knows has it until then.
	MaxLogin = 30 * 24 * time.Hour
	// maxExchanges bounds the sign-ins that ask the provider at the same time: anybody may begin one.
	maxExchanges = 8
)

// loginCaller is in the audit for what a sign-in changes.
func loginCaller(org outboard.OrgID) outboard.Caller {
	return outboard.Caller{Key: "login", Role: "identity provider", Org: org}
}

func (c *Control) provider() (*login.Provider, error) {
	if c.login.Provider == nil {
		return nil, outboard.Errorf(outboard.NotFound, "people cannot sign in at this server").
			WithHint("configure login with an identity provider, see docs/guide/people.md; or use a key: " +
				"OUTBOARD_API_KEY")
	}
	return c.login.Provider, nil
}

// LoginURL returns where a person signs in, and the provider's name. It needs no caller.
func (c *Control) LoginURL(ctx context.Context, s LoginStart) (address, issuer string, err error) {
	p, err := c.provider()
	if err != nil {
		return "", "", err
	}
	done, err := c.exchanging()
	if err != nil {
		return "", "", err
	}
	defer done()
	address, err = p.URL(ctx, s)
	return address, p.Issuer(), err
}

// exchanging takes one of the places of those who ask the provider.
func (c *Control) exchanging() (done func(), err error) {
	select {
	case c.exchanges <- struct{}{}:
		return func() { <-c.exchanges }, nil
	default:
		return nil, outboard.Errorf(outboard.Exhausted, "too many people are signing in").
			WithHint("try again in a few seconds")
	}
}

// Login makes a key of the person who signed in, and returns its secret. It needs no caller: that is what it
// finds out. org names the organization that they sign in to; "" is the only one they are of, or else the one
// that a rule gives them, or the default one.
func (c *Control) Login(ctx context.Context, a LoginAnswer, org string) (outboard.User, outboard.Key, string, error) {
	return c.signIn(ctx, org, a.Nonce, func(p *login.Provider) (login.Person, error) { return p.Who(ctx, a) })
}

// signIn makes a key of whom ask finds out from the provider. once is of this sign-in alone.
func (c *Control) signIn(ctx context.Context, org, once string,
	ask func(*login.Provider) (login.Person, error)) (outboard.User, outboard.Key, string, error) {
	fail := func(err error) (outboard.User, outboard.Key, string, error) {
		return outboard.User{}, outboard.Key{}, "", err
	}
	p, err := c.provider()
	if err != nil {
		return fail(err)
	}
	done, err := c.exchanging()
	if err != nil {
		return fail(err)
	}
	who, err := ask(p)
	done()
	if err != nil {
		if !errors.Is(err, login.ErrPending) && !errors.Is(err, login.ErrSlowDown) {
			c.log.Info("a sign-in was refused", "err", err)
		}
		return fail(err)
	}
	return c.letIn(ctx, &who, org, once)
}

// letIn makes the key of whom the provider named.
func (c *Control) letIn(ctx context.Context, who *login.Person, org,
	once string) (outboard.User, outboard.Key, string, error) {
	u, err := c.admit(ctx, who, org)
	if err != nil {
		return outboard.User{}, outboard.Key{}, "", c.turnedAway(ctx, who, err)
	}
	k, secret, err := c.loginKey(ctx, u, once)
	if err != nil {
		return outboard.User{}, outboard.Key{}, "", err
	}
	return u, c.keepRenewal(ctx, k, who.Renew), secret, nil
}

// LoginDevice begins a sign-in on another device. It needs no caller.
func (c *Control) LoginDevice(ctx context.Context) (login.Device, string, error) {
	p, err := c.provider()
	if err != nil {
		return login.Device{}, "", err
	}
	done, err := c.exchanging()
	if err != nil {
		return login.Device{}, "", err
	}
	defer done()
	d, err := p.Device(ctx)
	return d, p.Issuer(), err
}

// LoginAt is Login for a sign-in on another device, by the code of the terminal. ErrLoginPending and
// ErrLoginSlowDown: not yet.
func (c *Control) LoginAt(ctx context.Context, code, org string) (outboard.User, outboard.Key, string, error) {
	return c.signIn(ctx, org, "device\x00"+HashSecret(code),
		func(p *login.Provider) (login.Person, error) { return p.WhoAt(ctx, code) })
}

// turnedAway records that somebody whom the provider knows was refused.
func (c *Control) turnedAway(ctx context.Context, who *login.Person, why error) error {
	if outboard.KindOf(why) != outboard.Denied {
		return why
	}
	detail, err := json.Marshal(map[string]any{"issuer": who.Issuer, "subject": text.Clip(who.Subject, maxEmail),
		"email": text.Clip(who.Email, maxEmail), "why": why.Error()})
	if err == nil {
		err = c.store.Audit(ctx, outboard.AuditRecord{At: c.clock(), Org: string(outboard.DefaultOrg), Actor: "login",
			Action:   "login",
			Decision: outboard.Refused, Rule: "sign-in", Detail: detail})
	}
	if err != nil {
		c.log.Error("a refused sign-in was not recorded", "err", err)
	}
	return why
}

// loginKey makes the key. Its id follows from the nonce, so that one sign-in gives one key, whoever repeats it.
func (c *Control) loginKey(ctx context.Context, u outboard.User, nonce string) (outboard.Key, string, error) {
	now := c.clock()
	k := outboard.Key{ID: outboard.DeriveID[outboard.KeyID](outboard.PrefixKey, "login", u.Issuer+"\x00"+nonce),
		Name: "login", Role: u.Role,
		Kind: outboard.KeyLogin, Org: u.Org, User: u.ID, CreatedAt: now, ExpiresAt: now.Add(c.loginLasts())}
	if err := c.record(ctx, loginCaller(u.Org), "login", string(u.ID),
		map[string]any{"key": k.ID, "email": u.Email, "role": u.Role, "until": k.ExpiresAt}); err != nil {
		return k, "", err
	}
	secret := newKeySecret()
	k.Hash = HashSecret(secret)
	err := c.store.PutKey(ctx, k)
	if errors.Is(err, store.ErrDuplicate) {
		return k, "", outboard.Errorf(outboard.Unauthenticated, "this sign-in was used already").
			WithHint("sign in again: outboard login")
	}
	if err != nil {
		return k, "", outboard.Errorf(outboard.KindOf(err), "storing the key: %w", err)
	}
	return k, secret, nil
}

func refuse(format string, args ...any) *outboard.Error {
	return outboard.Errorf(outboard.Denied, format, args...)
}

// admit returns the row of whoever the provider named: by identity where they have been here before, else in the
// organization that they name, that a rule of the installation gives, or the server's own. An organization that
// has added their address has invited them, no more: they accept by naming it.
func (c *Control) admit(ctx context.Context, who *login.Person, org string) (u outboard.User, err error) {
	ref, err := c.loginOrg(ctx, org)
	if err != nil {
		return u, err
	}
	bound, err := c.store.UsersBySubject(ctx, who.Issuer, who.Subject)
	if err != nil {
		return u, wrapLookup("user", "with this identity", err)
	}
	if ref != "" {
		bound = membersOf(bound, ref)
	}
	living := slices.DeleteFunc(slices.Clone(bound), func(u outboard.User) bool { return !u.RemovedAt.IsZero() })
	switch {
	case len(living) == 1:
		return c.enter(ctx, who, living[0])
	case len(living) > 1:
		return u, c.choose(ctx, "you are of", living)
	case len(bound) > 0 && (ref != "" || !who.Verified):
		return c.enter(ctx, who, bound[0]) // which says that they were removed
	}
	email, err := checkEmail(who.Email)
	if err != nil {
		return u, refuse("the identity provider tells no address of yours").
			WithHint("it must send the claim email: look at login.scopes and at what it sends to this client")
	}
	if !who.Verified {
		return u, refuse("the identity provider has not verified your address %s", quote(email)).
			WithHint("verify it there, and sign in again")
	}
	return c.settleIn(ctx, who, email, ref, bound)
}

// settleIn lets in somebody who was in none of the organizations before, or was removed from those.
func (c *Control) settleIn(ctx context.Context, who *login.Person, email string, ref outboard.OrgID,
	removed []outboard.User) (u outboard.User, err error) {
	ruled, role, err := c.fits(ctx, who, ref)
	if err != nil {
		return u, err
	}
	home := ref
	if home == "" {
		home = cmp.Or(ruled, outboard.DefaultOrg)
	}
	added, err := c.store.UsersByEmail(ctx, email)
	if err != nil {
		return u, wrapLookup("users", "", err)
	}
	if in := membersOf(added, home); len(in) > 0 {
		return c.first(ctx, who, in)
	}
	if in := membersOf(removed, home); len(in) > 0 {
		return c.enter(ctx, who, in[0])
	}
	if role != "" {
		return c.newcomer(ctx, who, email, home, role)
	}
	invited := slices.DeleteFunc(added, func(u outboard.User) bool { return u.Subject != "" || !u.RemovedAt.IsZero() })
	switch {
	case ref == "" && len(invited) > 0:
		return u, c.choose(ctx, "you are invited to", invited)
	case len(removed) > 0:
		return c.enter(ctx, who, removed[0])
	}
	return u, refuse("nobody has added %s here", quote(email)).
		WithHint("an administrator does: outboard user create %s", quote(email))
}

// membersOf are the rows of an organization.
func membersOf(all []outboard.User, org outboard.OrgID) []outboard.User {
	return slices.DeleteFunc(slices.Clone(all), func(u outboard.User) bool { return u.Org != org })
}

// choose tells somebody between which organizations they choose.
func (c *Control) choose(ctx context.Context, what string, rows []outboard.User) error {
	var names []string
	for _, u := range rows {
		o, err := c.store.Org(ctx, string(u.Org))
		if err != nil {
			return wrapLookup("organization", string(u.Org), err)
		}
		names = append(names, quote(o.Name))
	}
	return outboard.Errorf(outboard.Invalid, "%s %d organizations (%s), and say which one you sign in to", what,
		len(names), strings.Join(names, ", ")).
		WithHint("outboard --org NAME login")
}

// loginOrg returns the id of an organization that somebody wants to sign in to; "" = they do not say.
func (c *Control) loginOrg(ctx context.Context, ref string) (outboard.OrgID, error) {
	if ref == "" {
		return "", nil
	}
	if len(ref) > maxName || strings.ContainsRune(ref, 0) {
		return "", refuse("you are not of this organization")
	}
	o, err := c.store.Org(ctx, ref)
	if err != nil && outboard.KindOf(err) == outboard.NotFound {
		return "", refuse("you are not of this organization") // whether there is one is nobody's business yet
	}
	return o.ID, err
}

// first binds an identity to the person who was added to an organization under its address.
func (c *Control) first(ctx context.Context, who *login.Person, added []outboard.User) (outboard.User, error) {
	switch {
	case !added[0].RemovedAt.IsZero():
		return outboard.User{}, refuse("you were removed").WithHint("an administrator can let you in again: " +
			"outboard user restore")
	case added[0].Subject != "": // an address that was given to somebody else, or an account that was made anew
		return outboard.User{}, refuse("%s belongs to another account of the identity provider", quote(added[0].Email)).
			WithHint("if it is yours, an administrator forgets the other one: outboard user rm, then outboard user " +
				"restore")
	}
	u, err := c.enter(ctx, who, added[0])
	if err != nil {
		return u, err
	}
	u.Issuer, u.Subject = who.Issuer, who.Subject
	if err := c.record(ctx, loginCaller(u.Org), "user.bind", string(u.ID),
		map[string]string{"email": u.Email, "issuer": u.Issuer, "subject": u.Subject}); err != nil {
		return u, err
	}
	if err := c.store.BindUser(ctx, u.ID, who.Issuer, who.Subject); err != nil {
		return u, outboard.Errorf(outboard.Conflict, "somebody signed in at the same time: %w", err).
			WithHint("sign in again: outboard login")
	}
	return u, nil
}

// newcomer adds whom a rule fits.
func (c *Control) newcomer(ctx context.Context, who *login.Person, email string, org outboard.OrgID,
	role string) (outboard.User, error) {
	u := outboard.User{ID: outboard.NewID[outboard.UserID](outboard.PrefixUser), Org: org, Email: email,
		Name: usableName(who.Name), Role: role,
		Issuer: who.Issuer, Subject: who.Subject, CreatedAt: c.clock()}
	if err := c.openOrg(ctx, org); err != nil {
		return u, err
	}
	have, err := c.store.Users(ctx, Page{Org: org, Limit: maxUsers, IncludeArchived: true})
	if err != nil {
		return u, wrapLookup("users", "", err)
	}
	if len(have) >= maxUsers {
		return u, outboard.Errorf(outboard.Exhausted, "the organization has %d people, which is the most it may",
			len(have))
	}
	if err := c.record(ctx, loginCaller(org), "user.add", string(u.ID),
		map[string]string{"email": email, "role": role, "issuer": u.Issuer, "subject": u.Subject}); err != nil {
		return u, err
	}
	if err := c.store.AddUser(ctx, u); err != nil {
		return u, outboard.Errorf(outboard.KindOf(err), "adding %s: %w", quote(email), err)
	}
	return u, nil
}

// usableName is the name a provider tells, as far as it may be one here.
func usableName(s string) string {
	if length("name", s, 0, maxName) != nil {
		return ""
	}
	return s
}

// enter lets in a person with a row, unless they were removed, or their organization ended.
func (c *Control) enter(ctx context.Context, who *login.Person, u outboard.User) (outboard.User, error) {
	if !u.RemovedAt.IsZero() {
		return u, refuse("you were removed").WithHint("an administrator can let you in again: outboard user restore")
	}
	if err := c.openOrg(ctx, u.Org); err != nil || !c.login.Follow {
		return u, err
	}
	if who.Silent && slices.ContainsFunc(c.login.Rules, func(r LoginRule) bool { return r.Claim != "" }) {
		return u, refuse("the identity provider tells nothing of you when it renews a sign-in, and a rule asks for " +
			"a claim")
	}
	if who.Silent { // the address is what it was
		known := *who
		known.Email, known.Verified = u.Email, true
		who = &known
	}
	_, role, err := c.fits(ctx, who, u.Org)
	if err != nil {
		return u, err
	}
	if role == "" {
		return u, refuse("no rule of this server lets you in any more").WithHint("login.members in its configuration")
	}
	if role == u.Role {
		return u, nil
	}
	old := u.Role
	u.Role = role
	return u, c.changeUser(ctx, loginCaller(u.Org), u, "user.update", !outboard.AtLeast(role, old))
}

func (c *Control) openOrg(ctx context.Context, id outboard.OrgID) error {
	o, err := c.store.Org(ctx, string(id))
	if err != nil {
		return wrapLookup("organization", string(id), err)
	}
	if !o.ArchivedAt.IsZero() {
		return refuse("the organization %s has ended", quote(o.Name))
	}
	return nil
}

// fits returns what the first rule that fits gives: in one organization, or in any when org is "". No role is no rule.
func (c *Control) fits(ctx context.Context, who *login.Person, org outboard.OrgID) (outboard.OrgID, string, error) {
	email, err := checkEmail(who.Email)
	if err != nil || !who.Verified {
		email = ""
	}
	for _, r := range c.login.Rules {
		if !r.fits(who, email) {
			continue
		}
		var in outboard.OrgID = outboard.DefaultOrg
		if r.Org != "" {
			o, err := c.store.Org(ctx, r.Org)
			if err != nil {
				return "", "", outboard.Errorf(outboard.Unavailable,
					"a rule of login.members names the organization %s: %w", quote(r.Org), err).
					WithHint("make it: outboard org create")
			}
			in = o.ID
		}
		if org == "" || org == in {
			return in, r.Role, nil
		}
	}
	return "", "", nil
}

func (r LoginRule) fits(who *login.Person, email string) bool {
	switch {
	case r.Email != "":
		return email != "" && strings.EqualFold(r.Email, email)
	case r.Domain != "":
		_, domain, _ := strings.Cut(email, "@")
		return domain != "" && strings.EqualFold(r.Domain, domain)
	}
	return r.Claim != "" && who.Claims(r.Claim, r.Value)
}

// CheckLoginRules refuses rules that say nothing, or too much.
func CheckLoginRules(rules []LoginRule) error {
	for i, r := range rules {
		set := 0
		for _, s := range []string{r.Email, r.Domain, r.Claim} {
			if s != "" {
				set++
			}
		}
		if set != 1 || r.Claim != "" && r.Value == "" || checkRole(r.Role) != nil || strings.Contains(r.Domain, "@") {
			return invalid("configuring login.members[%d]: it needs one of email, domain and claim with value, and "+
				"a role of %s", i, strings.Join(outboard.Roles, ", "))
		}
	}
	return nil
}
