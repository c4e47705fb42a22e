package vault

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// The headers of a box, and the password of its proxy, are one credential, in no vault that anybody can name,
// list or give to a session: where its vault would be, and so in what the seal is bound to, is the box. Which
// hosts they are for is sealed with them; the box's row repeats it, for the eye and so that other requests open
// nothing.

// boxVault is where a vault's id is in the credential of a box.
func boxVault(id outboard.BoxID) outboard.VaultID {
	return outboard.VaultID(store.BoxVaultPrefix + string(id))
}

// ofProxy is where the password of a box's proxy is among the headers, by host and name: it is no host that
// anything covers.
const ofProxy = ""

// SealBox seals headers for a box: values by the header's name, by the host as a name, *.name or an address; and
// the password of its proxy, "" = it has none. The caller has checked them, and forgets what it has sealed and
// no box's row names.
func (k *Keeper) SealBox(ctx context.Context, box outboard.BoxID, headers map[string]map[string]outboard.Secret,
	password outboard.Secret) (h outboard.BoxHeaders, err error) {
	if len(headers) == 0 && password.IsZero() {
		return h, nil
	}
	plain := map[string]map[string]string{}
	if !password.IsZero() {
		plain[ofProxy] = map[string]string{"password": password.Reveal()}
	}
	h.Names = map[string][]string{}
	for host, list := range headers {
		plain[host] = map[string]string{}
		for name, value := range list {
			plain[host][http.CanonicalHeaderKey(name)] = value.Reveal()
		}
		h.Names[host] = slices.Sorted(maps.Keys(plain[host]))
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return h, outboard.Errorf(outboard.Internal, "encoding the headers of a box: %w", err)
	}
	now := clock(k)
	c := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential), Vault: boxVault(box),
		CreatedAt: now, UpdatedAt: now}
	// no two are alike: the new ones are there before the old ones go
	c.Auth = outboard.Auth{Type: outboard.AuthBox, Name: string(c.ID)}
	h.Credential = c.ID
	return h, k.Create(ctx, c, Secrets{Value: outboard.NewSecret(string(text))})
}

// ForgetBox removes what SealBox has sealed, for good. Removing nothing is no error.
func (k *Keeper) ForgetBox(ctx context.Context, h outboard.BoxHeaders) error {
	if h.Credential == "" {
		return nil
	}
	return k.Delete(ctx, h.Credential)
}

// UseBox is Use for a box: it returns the headers that are for the request's host, after an audit record. Any
// error means that the request must not be sent. Headers are sent over TLS only, and where they are to be set no
// request goes without.
func (k *Keeper) UseBox(ctx context.Context, r Request, box outboard.BoxID, org outboard.OrgID,
	h outboard.BoxHeaders) (in Injection, err error) {
	covers := func(pattern string) bool { return hostMatches(pattern, r.Host) }
	if h.Credential == "" || !slices.ContainsFunc(slices.Collect(maps.Keys(h.Names)), covers) {
		return in, nil
	}
	if r.Scheme != "https" {
		return in, outboard.Errorf(outboard.Denied, "this sandbox's headers for %s are sent over https only", r.Host)
	}
	k = k.For(org)
	row, sealed, err := k.openBox(ctx, box, h)
	if err != nil {
		return in, err
	}
	delete(sealed, ofProxy)
	in.Names = []string{label(&row.Credential)}
	if err := k.record(ctx, string(box), &r, in.Names, versions([]*store.Credential{&row})); err != nil {
		return Injection{}, err
	}
	in.Set = map[string]outboard.Secret{}
	for _, pattern := range slices.SortedFunc(maps.Keys(sealed), wider) {
		if !covers(pattern) {
			continue
		}
		for name, value := range sealed[pattern] {
			in.Set[name] = outboard.NewSecret(value)
		}
	}
	for _, value := range in.Set {
		in.Scrub = append(in.Scrub, value)
	}
	return in, nil
}

// openBox opens what SealBox has sealed.
func (k *Keeper) openBox(ctx context.Context, box outboard.BoxID,
	h outboard.BoxHeaders) (row store.Credential, sealed map[string]map[string]string, err error) {
	row, s, err := k.openNow(ctx, h.Credential)
	if err != nil {
		return row, nil, locked(err)
	}
	if row.Vault != boxVault(box) || row.Auth.Type != outboard.AuthBox ||
		json.Unmarshal([]byte(s.Value.Reveal()), &sealed) != nil {
		return row, nil, locked(outboard.Errorf(outboard.Denied,
			"credential %s does not hold the secrets of sandbox %s", row.ID, box))
	}
	return row, sealed, nil
}

// UseBoxProxy returns the password of a box's proxy, after an audit record. The request is the one that the
// proxy is asked for. Any error means that it must not be sent.
func (k *Keeper) UseBoxProxy(ctx context.Context, r Request, box outboard.BoxID, org outboard.OrgID,
	h outboard.BoxHeaders) (password outboard.Secret, err error) {
	k = k.For(org)
	row, sealed, err := k.openBox(ctx, box, h)
	if err != nil {
		return password, err
	}
	text, ok := sealed[ofProxy]["password"]
	if !ok {
		return password, locked(outboard.Errorf(outboard.Denied, "credential %s holds no password of a proxy", row.ID))
	}
	err = k.record(ctx, string(box), &r, []string{label(&row.Credential)}, versions([]*store.Credential{&row}))
	if err != nil {
		return password, err
	}
	return outboard.NewSecret(text), nil
}

// wider orders patterns of hosts such that what says more comes later, and so wins: *.test, *.a.test, b.a.test.
func wider(a, b string) int {
	wild := func(s string) int {
		if strings.HasPrefix(s, "*.") {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(wild(a), wild(b)), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// sweepAge is how old the headers of no box are that SweepBoxes removes: whoever makes a box seals them first.
const sweepAge = time.Hour

// SweepBoxes removes headers, of every organization, whose box is gone or has others by now: a process died
// between the two, or the vault was locked when the box was killed.
func (k *Keeper) SweepBoxes(ctx context.Context) error {
	list, err := k.cfg.Store.BoxCredentials(ctx, clock(k).Add(-sweepAge))
	if err != nil {
		return err
	}
	for _, c := range list {
		b, err := k.cfg.Store.Box(ctx, c.Box)
		if outboard.KindOf(err) == outboard.NotFound || err == nil && b.Headers.Credential != c.ID {
			err = k.For(c.Org).Delete(ctx, c.ID)
		}
		if err != nil { // a key service that is away would be asked for each
			return err
		}
	}
	return nil
}
