package vault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Config makes a Keeper.
type Config struct {
	Store *store.Store
	// Wrappers open the data key. The first one also wraps new ones; the others are for moving from one
	// technology to another.
	Wrappers []Wrapper
	// Mark is a file that remembers the highest sequence seen; an older database is refused. "" = only within
	// this process.
	Mark string
	// HTTP reaches token issuers and MCP servers. It must refuse addresses inside the operator's network and
	// follow no redirects.
	HTTP *http.Client
	// Registries reaches AWS for the passwords of registries, which may be on the operator's own network. nil = HTTP.
	Registries *http.Client
	// Permit is asked before a credential is used; its error keeps it from being used. nil = every use is permitted.
	Permit func(ctx context.Context, id outboard.CredentialID) error
	Logger *slog.Logger     // nil = discard
	Now    func() time.Time // nil = the store's
	// the time in signatures, which others judge by their clocks; nil = Now where it is set, else the host's
	Signed func() time.Time

	reached func(step string) // for tests: a rotation, or a reading of the state, is here; nil = nobody asks
}

// Keeper seals and opens secrets. It needs no key before its first use, and is safe for concurrent use.
type Keeper struct {
	cfg    Config
	org    string
	family *family
	log    *slog.Logger

	mu       sync.Mutex
	keys     *keys
	sequence int64 // highest that was verified
	index    map[outboard.CredentialID]store.CredentialMark
	seen     time.Time // when the sequence was last compared with the store's
	sessions map[outboard.SessionID]*held
	minted   map[string]minted
	denied   map[string]denied                // in place of a token
	bearers  map[outboard.CredentialID]uses   // who used access tokens
	refs     map[string]outboard.CredentialID // what find has found
	flights  flights[outboard.Secret]
	renewals flights[refreshed]
	opener   opener
}

// New returns the Keeper of the default organization, which knows those of the others. It reads nothing yet.
func New(cfg Config) *Keeper {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Signed == nil {
		cfg.Signed = cfg.Now
	}
	if cfg.Now == nil {
		cfg.Now = cfg.Store.Now
	}
	if cfg.Signed == nil {
		cfg.Signed = cfg.Store.HostNow
	}
	k := newKeeper(cfg, outboard.DefaultOrg)
	k.family = &family{keepers: map[outboard.OrgID]*Keeper{outboard.DefaultOrg: k},
		sessions: map[outboard.SessionID]outboard.OrgID{}, withdrawals: newWithdrawals()}
	return k
}

func newKeeper(cfg Config, org outboard.OrgID) *Keeper {
	return &Keeper{cfg: cfg, org: string(org), log: cfg.Logger, sessions: map[outboard.SessionID]*held{},
		minted: map[string]minted{}, denied: map[string]denied{}, bearers: map[outboard.CredentialID]uses{}, refs: map[string]outboard.CredentialID{}}
}

// errMoved: another process changed the key while an edit was decided.
var errMoved = outboard.Errorf(outboard.Conflict, "the vault key was changed by another process")

// state is a verified view of the vault.
type state struct {
	keys     *keys
	sequence int64
	index    map[outboard.CredentialID]store.CredentialMark // replaced, never written to
}

// current returns the state, not older than Freshness. keys is nil when there is no vault yet. The key is opened
// without mu held: whoever has what is cached must not wait for a key service.
func (k *Keeper) current(ctx context.Context) (state, error) {
	var opened *keys
	for range maxEdits { // another process may exchange the key meanwhile
		st, need, err := k.look(ctx, opened)
		if err != nil || need == nil {
			return st, err
		}
		if opened, err = k.opener.open(ctx, need.ID, k.remote(need),
			func(ctx context.Context) (*keys, error) { return k.unwrap(ctx, need) }); err == nil {
			continue
		}
		now, failed := k.cfg.Store.VaultKey(ctx, k.org)
		if failed != nil || now.ID == need.ID { // else a rotation has given it up
			return state{}, locked(err)
		}
	}
	return state{}, locked(errMoved)
}

// look is current as far as it goes with the keys that are open already: those cached, and opened. It returns
// the key that must be opened first, if one must.
func (k *Keeper) look(ctx context.Context, opened *keys) (st state, need *outboard.VaultKey, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.cfg.Now()
	if k.keys != nil && now.Sub(k.seen) < Freshness && !now.Before(k.seen) {
		return state{k.keys, k.sequence, k.index}, nil, nil
	}
	row, err := k.cfg.Store.VaultKey(ctx, k.org)
	if err != nil {
		return state{}, nil, locked(err)
	}
	if k.keys == nil || row.ID != k.keys.id || row.Sequence != k.sequence {
		if need, err = k.load(ctx, opened); err != nil || need != nil {
			return state{}, need, err
		}
	}
	k.seen = now
	return state{k.keys, k.sequence, k.index}, nil, nil
}

// locked says that the vault cannot be used at all.
func locked(err error) error {
	if outboard.KindOf(err) == outboard.Canceled {
		return err
	}
	e := outboard.Errorf(outboard.Unavailable, "the vault is locked: %w", err)
	if cause, ok := errors.AsType[*outboard.Error](err); ok && cause.Hint != "" {
		e = e.WithHint("%s", cause.Hint)
	}
	return e
}

// load reads and verifies the whole state, or returns the key that has to be opened for that. Called with mu held.
func (k *Keeper) load(ctx context.Context, opened *keys) (need *outboard.VaultKey, err error) {
	// before the state is read: another process may go on in between, and note that it has
	least := max(k.sequence, k.mark())
	st, err := k.cfg.Store.VaultState(ctx, k.org)
	if err != nil {
		return nil, locked(err)
	}
	k.reached("read")
	if st.Key.ID == "" {
		if least > 0 {
			return nil, locked(rolledBack(0, least, k.cfg.Mark))
		}
		return nil, nil
	}
	ks := k.keys
	if ks == nil || ks.id != st.Key.ID {
		ks = opened
	}
	if ks == nil || ks.id != st.Key.ID {
		return &st.Key, nil
	}
	if err := k.verify(ks, &st, least); err != nil {
		return nil, locked(err)
	}
	k.keep(ks, st.Key.Sequence, st.Marks)
	return nil, nil
}

// keep remembers a verified state. Called with mu held.
func (k *Keeper) keep(ks *keys, sequence int64, marks []store.CredentialMark) {
	if sequence != k.sequence {
		clear(k.sessions)
		clear(k.refs)
	}
	k.keys, k.sequence, k.index = ks, sequence, map[outboard.CredentialID]store.CredentialMark{}
	for _, m := range marks {
		k.index[m.ID] = m
	}
	if err := k.remember(sequence); err != nil {
		k.log.Warn("remembering the vault's sequence failed", "err", err)
	}
}

// verify checks that nobody but a Keeper wrote a state, and that it is not older than least, which was seen before.
func (k *Keeper) verify(ks *keys, st *store.VaultState, least int64) error {
	if !bytes.Equal(ks.sum(k.org, st.Key.Sequence, st.Marks), st.Key.Tag) {
		return outboard.Errorf(outboard.Denied, "the credentials in the database are not those that were stored").
			WithHint("a row was added, removed or replaced by something other than outboard; restore the database")
	}
	if st.Key.Sequence < least {
		return rolledBack(st.Key.Sequence, least, k.cfg.Mark)
	}
	return nil
}

func rolledBack(have, least int64, mark string) error {
	return outboard.Errorf(outboard.Denied,
		"the credentials in the database are older (%d) than those seen before (%d)", have, least).
		WithHint("someone restored an old database; if it was you, remove %s and set again what was changed or "+
			"revoked since", mark)
}

// mark reads the highest sequence seen by any process here. What cannot be read is no witness.
func (k *Keeper) mark() int64 {
	if k.cfg.Mark == "" {
		return 0
	}
	b, err := os.ReadFile(k.cfg.Mark)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

func (k *Keeper) remember(sequence int64) error {
	if k.cfg.Mark == "" || sequence <= k.mark() {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(k.cfg.Mark), "."+filepath.Base(k.cfg.Mark)+"-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatInt(sequence, 10) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), k.cfg.Mark)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// remote reports whether a key is opened by a key management service, which may be away.
func (k *Keeper) remote(row *outboard.VaultKey) bool {
	w, err := parseWrapping(row.Wrapping)
	return err == nil && slices.ContainsFunc(k.cfg.Wrappers,
		func(by Wrapper) bool { _, far := by.(External); return far && by.Kind() == w.Kind })
}

// unwrap opens a data key with whichever wrapper made it.
func (k *Keeper) unwrap(ctx context.Context, row *outboard.VaultKey) (*keys, error) {
	w, err := parseWrapping(row.Wrapping)
	if err != nil {
		return nil, err
	}
	err = outboard.Errorf(outboard.NotFound, "the vault key is wrapped by %q, which is not configured", w.Kind).
		WithHint("configure vault in the configuration as it was; docs/reference/config.md")
	for _, by := range k.cfg.Wrappers {
		if by.Kind() != w.Kind {
			continue
		}
		var b []byte
		if b, err = by.Unwrap(ctx, row.Wrapping, row.Wrapped, keyAAD(k.org, row.ID)); err == nil {
			return parseKeys(row.ID, b)
		}
	}
	return nil, err
}

// wrap wraps new data keys with the first wrapper.
func (k *Keeper) wrap(ctx context.Context, ks *keys) (outboard.VaultKey, func(json.RawMessage) error, error) {
	if len(k.cfg.Wrappers) == 0 {
		return outboard.VaultKey{}, nil, outboard.Errorf(outboard.Unavailable,
			"the vault is locked: no key-encryption key is configured")
	}
	raw, wrapped, settle, err := k.cfg.Wrappers[0].Wrap(ctx, ks.bytes(), keyAAD(k.org, ks.id))
	return outboard.VaultKey{Org: k.org, ID: ks.id, Wrapping: raw, Wrapped: wrapped}, settle, err
}

// maxEdits bounds how often an edit is decided again because another process changed the key. Each loss means
// another one won.
const maxEdits = 8

// edit changes credentials. decide gets keys to seal with and the living state; it fills in what to put and
// drop, and may run more than once. The first edit makes the key.
func (k *Keeper) edit(ctx context.Context, decide func(ks *keys, st *store.VaultState) (store.VaultEdit, error)) error {
	var err error
	for range maxEdits {
		if err = k.editOnce(ctx, decide); !errors.Is(err, errMoved) {
			return err
		}
		k.lookAgain()
	}
	return err
}

func (k *Keeper) editOnce(ctx context.Context,
	decide func(ks *keys, st *store.VaultState) (store.VaultEdit, error)) error {
	cur, err := k.current(ctx)
	if err != nil {
		return err
	}
	ks, first := cur.keys, outboard.VaultKey{}
	if ks == nil {
		ks = newKeys()
		if first, _, err = k.wrap(ctx, ks); err != nil {
			return err
		}
	}
	var after store.VaultState
	err = k.cfg.Store.EditVaults(ctx, k.org, false, func(st store.VaultState) (store.VaultEdit, error) {
		row := st.Key
		switch {
		case row.ID == "" && first.ID != "":
			row = first
		case row.ID != ks.id:
			return store.VaultEdit{}, errMoved
		default:
			// nobody else can go on while the state is held
			if err := k.verify(ks, &st, max(cur.sequence, k.mark())); err != nil {
				return store.VaultEdit{}, locked(err)
			}
		}
		e, err := decide(ks, &st)
		if err != nil {
			return e, err
		}
		row.Sequence++
		after.Marks = applyMarks(st.Marks, &e)
		row.Tag = ks.sum(k.org, row.Sequence, after.Marks)
		e.Key, after.Key = row, row
		return e, nil
	})
	if errors.Is(err, store.ErrDuplicate) && first.ID != "" {
		return errMoved // another process made the first key
	}
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if after.Key.Sequence > k.sequence {
		k.keep(ks, after.Key.Sequence, after.Marks)
		k.seen = time.Time{}
	}
	return nil
}

// applyMarks returns the marks as they are after an edit, by id.
func applyMarks(marks []store.CredentialMark, e *store.VaultEdit) []store.CredentialMark {
	all := map[outboard.CredentialID]store.CredentialMark{}
	for _, m := range marks {
		all[m.ID] = m
	}
	for _, c := range e.Put {
		all[c.ID] = store.CredentialMark{ID: c.ID, Vault: c.Vault, Version: c.Version, Archived: !c.ArchivedAt.IsZero()}
	}
	for _, id := range e.Drop {
		delete(all, id)
	}
	return slices.SortedFunc(maps.Values(all),
		func(a, b store.CredentialMark) int { return strings.Compare(string(a.ID), string(b.ID)) })
}

// clock is the current time as the store keeps it.
func clock(k *Keeper) time.Time { return k.cfg.Now().UTC().Truncate(time.Microsecond) }
