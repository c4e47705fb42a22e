package control

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/login"
	"github.com/outboard-dev/outboard/internal/login/logintest"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
	"github.com/outboard-dev/outboard/internal/vault"
)

// office is a database where people sign in and leave, and their identity provider.
type office struct {
	t     *testing.T
	cfg   store.Config
	keys  string // the directory of the vault's keys
	idp   *logintest.Provider
	org   outboard.OrgID
	ahead atomic.Int64 // by how much the clocks of its servers are ahead
	sent  atomic.Int64 // tokens that were given back, or tried to be
}

// desk is one server of an office.
type desk struct {
	*office
	*Control
	close func()
}

// offices runs fn once on each kind of database.
func offices(t *testing.T, fn func(t *testing.T, o *office)) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		o := &office{t: t, cfg: cfg, keys: t.TempDir(), idp: logintest.New(t)}
		o.revoke(o.idp.TakeBack)
		fn(t, o)
	})
}

// revoke says how the provider answers who gives a token back.
func (o *office) revoke(answer http.HandlerFunc) {
	o.idp.Bend(logintest.Bend{Revoke: func(w http.ResponseWriter, r *http.Request) { o.sent.Add(1); answer(w, r) }})
}

func away(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }

// passes moves the clocks on.
func (o *office) passes(d time.Duration) { o.ahead.Add(int64(d)) }

// server starts one. It looks for what is due only when the test says so, unless it is Started.
func (o *office) server() *desk { return o.serverAt(o.idp) }

func (o *office) serverAt(provider *logintest.Provider) *desk {
	o.t.Helper()
	s, err := store.Open(o.t.Context(), o.cfg)
	if err != nil {
		o.t.Fatal(err)
	}
	p, err := login.New(login.Config{Issuer: provider.URL, ClientID: "outboard", HTTP: provider.Client(),
		Renewable:    true,
		ClientSecret: func() (outboard.Secret, error) { return outboard.NewSecret(provider.Secret), nil }})
	if err != nil {
		o.t.Fatal(err)
	}
	c := New(Config{Store: s,
		Vault: vault.New(vault.Config{Store: s, Wrappers: []vault.Wrapper{vault.KeyDir{Dir: o.keys}}}),
		Now:   func() time.Time { return time.Now().Add(time.Duration(o.ahead.Load())) },
		Login: LoginConfig{Provider: p, Renew: 24 * time.Hour,
			Rules: []LoginRule{{Domain: "acme.test", Org: "acme", Role: outboard.RoleDeveloper},
				{Domain: "here.test", Role: outboard.RoleDeveloper}}}})
	d := &desk{office: o, Control: c, close: sync.OnceFunc(func() {
		c.Stop()
		if err := s.Close(); err != nil {
			o.t.Errorf("closing: %v", err)
		}
	})}
	o.t.Cleanup(d.close)
	if o.org == "" {
		org, err := c.CreateOrg(o.t.Context(), d.boss(), "acme")
		if err != nil {
			o.t.Fatal(err)
		}
		o.org = org.ID
	}
	return d
}

// boss runs the servers.
func (o *office) boss() outboard.Caller {
	return outboard.Caller{Key: "apikey_boss", Kind: outboard.KeyOperator, Role: outboard.RoleAdmin, Org: o.org}
}

// in signs somebody in.
func (d *desk) in(name string) (outboard.User, outboard.Key, string) {
	d.t.Helper()
	d.idp.SignsIn(logintest.Claims{"sub": name, "email": name, "email_verified": true})
	const back = "http://127.0.0.1:9/callback"
	verifier, nonce := rand.Text()+rand.Text(), rand.Text()
	sum := sha256.Sum256([]byte(verifier))
	at, _, err := d.LoginURL(d.t.Context(), LoginStart{Redirect: back, State: rand.Text(), Nonce: nonce,
		Challenge: base64.RawURLEncoding.EncodeToString(sum[:])})
	if err != nil {
		d.t.Fatal(err)
	}
	u, k, secret, err := d.Login(d.t.Context(), LoginAnswer{Code: logintest.Visit(d.t, at).Query().Get("code"),
		Redirect: back, Verifier: verifier, Nonce: nonce}, "")
	if err != nil {
		d.t.Fatal(err)
	}
	return u, k, secret
}

// remove removes somebody.
func (d *desk) remove(u outboard.User) {
	d.t.Helper()
	if _, err := d.RemoveUser(d.t.Context(), d.boss(), u.ID); err != nil {
		d.t.Fatal(err)
	}
}

// look gives back what is due.
func (d *desk) look() {
	d.t.Helper()
	if err := d.withdrawDue(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
}

// good wants that so many tokens are worth something at the provider, and that it was sent so many.
func (o *office) good(when string, tokens int, sent int64) {
	o.t.Helper()
	if n := len(o.idp.Tokens()); n != tokens || o.sent.Load() != sent {
		o.t.Errorf("%s: %d tokens are good and %d were sent, want %d and %d", when, n, o.sent.Load(), tokens, sent)
	}
}

// waits wants that what a login was renewed with is on its way, or is not.
func (d *desk) waits(id outboard.KeyID, want bool) {
	d.t.Helper()
	w, err := d.store.Withdrawal(d.t.Context(), id)
	if there := err == nil; there != want || err != nil && outboard.KindOf(err) != outboard.NotFound {
		d.t.Errorf("%s is on its way: %t, %v", id, there, err)
	}
	for _, token := range d.idp.Tokens() {
		if bytes.Contains(w.Sealed.Data, []byte(token)) {
			d.t.Error("it can be read")
		}
	}
	if _, err := d.store.LoginRenewal(d.t.Context(), id); want && outboard.KindOf(err) != outboard.NotFound {
		d.t.Errorf("the login can be renewed still: %v", err)
	}
}

// recorded wants these actions on record of a login's token.
func (d *desk) recorded(id outboard.KeyID, want ...string) {
	d.t.Helper()
	rows, err := d.store.AuditRecords(d.t.Context(), store.AuditQuery{Text: "refresh_token", Limit: 1000})
	if err != nil {
		d.t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		if bytes.Contains(r.Detail, []byte(id)) {
			got = append(got, r.Action)
		}
		for _, token := range d.idp.Tokens() {
			if bytes.Contains(r.Detail, []byte(token)) {
				d.t.Error("a token is in the audit")
			}
		}
	}
	if !slices.Equal(got, want) {
		d.t.Errorf("on record is %v, want %v", got, want)
	}
}

// Fails if the token of a login that has ended is worth something at the provider, however it ended, or if that
// of somebody else goes.
func TestEndedLoginsAreGivenBack(t *testing.T) {
	offices(t, func(t *testing.T, o *office) {
		d := o.server()
		ctx := t.Context()
		ways := map[string]func(u outboard.User, k outboard.Key) error{
			"removed": func(u outboard.User, _ outboard.Key) error {
				_,
					err := d.RemoveUser(ctx, d.boss(), u.ID)
				return err
			},
			"demoted": func(u outboard.User, _ outboard.Key) error {
				role := outboard.RoleViewer
				_, err := d.UpdateUser(ctx, d.boss(), u.ID, UserPatch{Role: &role})
				return err
			},
			"killed": func(_ outboard.User, k outboard.Key) error {
				return d.AfterKill(ctx, outboard.Kill{ID: "kill_1", Scope: outboard.KillOwner, Target: string(k.ID),
					Org: o.org, Level: outboard.KillRevoke})
			},
			"not renewed for long": func(outboard.User, outboard.Key) error {
				_, err := d.store.TidyLogins(ctx, d.clock().Add(-time.Hour))
				return err
			},
			"removed while it was renewed": func(u outboard.User, k outboard.Key) error {
				r, err := d.store.LoginRenewal(ctx, k.ID)
				if err == nil {
					_, err = d.RemoveUser(ctx, d.boss(), u.ID)
				}
				if err != nil {
					return err
				}
				return d.store.PutLoginRenewal(ctx, r)
			},
			"the organization has ended": func(outboard.User, outboard.Key) error {
				_,
					err := d.ArchiveOrg(ctx, d.boss(), "acme")
				return err
			},
		}
		_, _, stays := d.in("bob@here.test")
		for _, name := range slices.Sorted(maps.Keys(ways)) { // the organization's end is the last
			d.login.Renew = 24 * time.Hour
			if name == "not renewed for long" {
				d.login.Renew = time.Nanosecond
			}
			u, k, secret := d.in(name[:3] + "." + rand.Text() + "@acme.test")
			before := o.sent.Load()
			o.good(name, 2, before)
			if err := ways[name](u, k); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := d.Authenticate(ctx, secret); (err == nil) != (name == "not renewed for long") {
				t.Errorf("%s: the login: %v", name, err)
			}
			o.good(name, 2, before) // nobody has waited for that
			d.waits(k.ID, true)
			d.look()
			o.good(name, 1, before+1)
			d.waits(k.ID, false)
			d.recorded(k.ID, "token.revoke", "token.revoked")
			d.look()
			o.good(name, 1, before+1)
		}
		if _, err := d.Authenticate(ctx, stays); err != nil {
			t.Errorf("somebody else is out: %v", err)
		}
	})
}

// Fails if a provider that does not answer keeps anybody from removing a person, if the token is forgotten
// meanwhile, if the provider is asked without a pause or for ever, or if nobody is told that a token was not
// given back.
func TestWithdrawalFromAProviderThatIsAway(t *testing.T) {
	offices(t, func(t *testing.T, o *office) {
		d := o.server()
		u, k, secret := d.in("ann@acme.test")
		asked, answer := make(chan struct{}, 2), make(chan struct{})
		o.revoke(func(w http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			<-answer
			o.idp.TakeBack(w, r)
		})
		d.Start()
		d.remove(u) // while nobody answers
		<-asked     // at once, without a look at the clock
		if _, err := d.Authenticate(t.Context(), secret); outboard.KindOf(err) != outboard.Unauthenticated ||
			err == nil {
			t.Errorf("the login while the provider thinks: %v", err)
		}
		d.waits(k.ID, true)
		close(answer)
		d.close() // which waits for what is under way

		d = o.server()
		o.passes(withdrawLease) // it may have been cut after the provider has heard it
		d.look()
		d.waits(k.ID, false)

		o.revoke(away)
		u, k, _ = d.in("bob@acme.test")
		u2, k2, _ := d.in("eve@acme.test")
		d.remove(u)
		d.remove(u2)
		before := o.sent.Load()
		d.look()
		o.good("away", 2, before+1) // the other one waits for the next look
		d.look()
		o.good("away", 2, before+2)
		d.look()
		o.good("too early", 2, before+2)
		o.passes(withdrawFirst)
		d.look()
		o.good("later", 2, before+3)
		o.revoke(o.idp.TakeBack)
		d.look()
		o.good("up again", 1, before+4)
		o.passes(2 * withdrawFirst)
		d.look()
		o.good("up again", 0, before+5)
		for _, id := range []outboard.KeyID{k.ID, k2.ID} {
			d.waits(id, false)
		}

		o.revoke(away)
		u, k, _ = d.in("joe@acme.test")
		d.remove(u)
		want := []string{}
		before = o.sent.Load()
		for end := o.ahead.Load() + int64(80*time.Hour); o.ahead.Load() < end; o.passes(withdrawFirst) {
			d.look()
		}
		tries := o.sent.Load() - before
		for range tries - 1 {
			want = append(want, "token.revoke", "token.revoke_failed")
		}
		if tries < 10 || tries > 40 {
			t.Errorf("%d attempts", tries)
		}
		d.recorded(k.ID, append(want, "token.revoke", "token.revoke_dropped")...)
		d.waits(k.ID, false)
	})
}

// Fails if a token is lost, or is sent while somebody else may be sending it, when a server is killed between
// any two steps.
func TestWithdrawalOutlivesTheServer(t *testing.T) {
	offices(t, func(t *testing.T, o *office) {
		for name, c := range map[string]struct {
			before func(d *desk) // the server dies after it
			held   bool          // somebody may still be at it
			sent   int64
		}{
			"before it is taken": {func(*desk) {}, false, 1},
			"taken":              {func(d *desk) { d.taken() }, true, 1},
			"sent": {func(d *desk) {
				if err := d.sendBack(t.Context(), d.taken()); err != nil {
					t.Fatal(err)
				}
			}, true, 2},
			"recorded": {func(d *desk) {
				w := d.taken()
				if err := d.sendBack(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				if err := d.recordWithdrawal(t.Context(), &w, vault.AuditWithdrawn, map[string]any{}); err != nil {
					t.Fatal(err)
				}
			}, true, 2},
		} {
			o.sent.Store(0)
			d := o.server()
			u, k, _ := d.in(rand.Text() + "@acme.test")
			d.remove(u)
			c.before(d)
			d.close()

			d = o.server()
			d.waits(k.ID, true)
			if sent := o.sent.Load(); c.held {
				d.look()
				if o.sent.Load() != sent {
					t.Errorf("%s: it is sent while somebody else may be sending it", name)
				}
				o.passes(withdrawLease)
			}
			d.look()
			o.good(name, 0, c.sent)
			d.waits(k.ID, false)
			d.close()
		}
	})
}

// taken takes what is due, as a server does that dies then.
func (d *desk) taken() store.Withdrawal {
	d.t.Helper()
	now := d.clock()
	w, found, err := d.store.TakeWithdrawal(d.t.Context(), d.idp.URL, now, now.Add(withdrawLease))
	if err != nil || !found {
		d.t.Fatalf("nothing is due: %v", err)
	}
	return w
}

// Fails if two servers of one database send the same token, or if one of them waits for what the other has at hand.
func TestWithdrawalByTwoServers(t *testing.T) {
	offices(t, func(t *testing.T, o *office) {
		a, b := o.server(), o.server()
		const people = 12
		for range people {
			u, _, _ := a.in(rand.Text() + "@acme.test")
			a.remove(u)
		}
		var mu sync.Mutex
		seen := map[string]int{}
		both, here := make(chan struct{}), 0
		o.revoke(func(w http.ResponseWriter, r *http.Request) {
			token := r.PostFormValue("token")
			mu.Lock()
			seen[token]++
			if here++; here == 2 { // the first one waits for the second
				close(both)
			}
			mu.Unlock()
			<-both
			o.idp.TakeBack(w, r)
		})
		var all sync.WaitGroup
		for _, d := range []*desk{a, b} {
			all.Go(func() {
				if err := d.withdrawDue(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		o.good("two servers", 0, people)
		for token, n := range seen {
			if n != 1 {
				t.Errorf("%s was sent %d times", token, n)
			}
		}
		if len(seen) != people {
			t.Errorf("%d tokens were sent", len(seen))
		}
	})
}

// Fails if what one provider gave is sent to another that the server is configured with by now, or if a token
// that nobody can open any more stays for ever, without a word.
func TestWithdrawalGoesNowhereElse(t *testing.T) {
	offices(t, func(t *testing.T, o *office) {
		d := o.server()
		u, k, _ := d.in("ann@acme.test")
		var elsewhere atomic.Int64
		other := logintest.New(t)
		other.Bend(logintest.Bend{Revoke: func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }})
		e := o.serverAt(other)
		e.remove(u)
		e.look()
		d.waits(k.ID, true)
		d.look()
		o.good("the same provider", 0, 1)

		u, k, _ = d.in("bob@acme.test")
		e.remove(u)
		o.passes(withdrawLease + 80*time.Hour)
		e.look()
		d.waits(k.ID, false)
		e.recorded(k.ID, "token.revoke_dropped")
		if n := elsewhere.Load(); n != 0 {
			t.Errorf("%d tokens went elsewhere", n)
		}

		u, k, _ = d.in("eve@acme.test")
		d.remove(u)
		if _, err := d.vault.For(o.org).RotateKeys(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.look()
		d.waits(k.ID, false)
		d.recorded(k.ID, "token.revoke", "token.revoked")
		o.good("rotated", 1, 2)
	})
}

// Fails if somebody stays signed in for weeks at a server whose operator has turned renewals off, or loses what
// is left of their login by that.
func TestRenewalTurnedOff(t *testing.T) {
	offices(t, func(t *testing.T, o *office) {
		d := o.server()
		_, k, secret := d.in("ann@acme.test")
		if k.RenewAfter.IsZero() {
			t.Fatal("it cannot be renewed")
		}
		o.passes(defaultLogin/2 + time.Minute)
		_, renewed, err := d.RenewLogin(t.Context(), secret)
		if err != nil || !renewed.ExpiresAt.After(k.ExpiresAt) {
			t.Fatalf("the control: %v, %v", renewed.ExpiresAt, err)
		}
		d.login.Renew = 0
		asked := o.idp.Asked()
		o.passes(defaultLogin/2 + time.Minute)
		if _, k, err := d.RenewLogin(t.Context(), secret); err != nil || !k.ExpiresAt.Equal(renewed.ExpiresAt) ||
			!k.RenewAfter.IsZero() {
			t.Errorf("while it lasts: %v, %v, %v", k.ExpiresAt, k.RenewAfter, err)
		}
		o.passes(defaultLogin)
		if _, _, err := d.RenewLogin(t.Context(), secret); outboard.KindOf(err) != outboard.Unauthenticated ||
			err == nil {
			t.Errorf("when it is over: %v", err)
		}
		if n := o.idp.Asked() - asked; n != 0 {
			t.Errorf("the provider was asked %d times", n)
		}
	})
}

// Fails if a rotation of the keys ends people's logins, if the operator's leaves an organization out, or if one
// organization's trouble keeps the others from theirs.
func TestLoginsOutliveRotations(t *testing.T) {
	offices(t, func(t *testing.T, o *office) {
		d, e := o.server(), o.server()
		all := o.boss()
		all.Org = ""
		if _, err := d.RotateVaultKeys(t.Context(), all); outboard.KindOf(err) != outboard.NotFound || err == nil {
			t.Errorf("before there is a key: %v", err)
		}
		_, _, ann := d.in("ann@acme.test")
		_, _, bob := d.in("bob@here.test")
		for range 2 {
			done, err := d.RotateVaultKeys(t.Context(), all)
			if err != nil || len(done) != 2 {
				t.Fatalf("%+v, %v", done, err)
			}
			for _, r := range done {
				if r.Err != nil || r.Values["login_renewals"] != 1 || r.Lost != 0 {
					t.Errorf("%+v", r)
				}
			}
			o.passes(defaultLogin/2 + time.Minute)
			for who, secret := range map[string]string{"ann": ann, "bob": bob} {
				if _, k, err := e.RenewLogin(t.Context(), secret); err != nil ||
					!k.ExpiresAt.After(e.clock().Add(defaultLogin/2)) {
					t.Errorf("%s: %v, %v", who, k.ExpiresAt, err)
				}
			}
		}
		admin := outboard.Caller{Key: "apikey_admin", Kind: outboard.KeyAPI, Role: outboard.RoleAdmin, Org: o.org}
		if done, err := d.RotateVaultKeys(t.Context(), admin); err != nil || len(done) != 1 || done[0].Org != o.org {
			t.Errorf("an administrator: %+v, %v", done, err)
		}
		err := d.store.EditVaults(t.Context(), string(o.org), true, func(st store.VaultState) (store.VaultEdit, error) {
			st.Values[0].Sealed.Data[20] ^= 1
			return store.VaultEdit{Key: st.Key, Values: st.Values}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		done, err := d.RotateVaultKeys(t.Context(), all)
		if err != nil || len(done) != 2 || done[0].Err != nil || done[1].Org != o.org ||
			outboard.KindOf(done[1].Err) != outboard.Denied {
			t.Errorf("with a row that somebody changed: %+v, %v", done, err)
		}
		if _, err := d.RotateVaultKeys(t.Context(), admin); outboard.KindOf(err) != outboard.Denied {
			t.Errorf("the only one: %v", err)
		}
	})
}
