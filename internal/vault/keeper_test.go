package vault

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	_ "modernc.org/sqlite"
)

func openRaw(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// If this fails, a stolen database gives its secrets away.
func TestDatabaseAloneIsUseless(t *testing.T) {
	r := newRig(t)
	const secret = "canary-d41d8cd98f00b204"
	r.add(header("a", "api.example.com"), secret)
	if got := r.bearer(r.Keeper, "api.example.com"); got != "Bearer "+secret {
		t.Fatalf("with the key: %q", got)
	}
	r.must(r.store.Close())
	files, _ := filepath.Glob(filepath.Join(r.dir, "outboard.db*"))
	if len(files) == 0 {
		t.Fatal("there is no database")
	}
	found := false
	for _, f := range files {
		b, err := os.ReadFile(f)
		r.must(err)
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%s holds the secret", f)
		}
		// the control: the search does find what is there in the clear
		found = found || bytes.Contains(b, []byte("api.example.com"))
	}
	if !found {
		t.Error("the search finds nothing at all")
	}
	stolen := filepath.Join(t.TempDir(), "outboard.db")
	b, err := os.ReadFile(filepath.Join(r.dir, "outboard.db"))
	r.must(err)
	r.must(os.WriteFile(stolen, b, 0o600))
	s, err := store.Open(t.Context(), store.Config{Path: stolen})
	r.must(err)
	defer s.Close()
	thief := New(Config{Store: s, Wrappers: []Wrapper{KeyDir{t.TempDir()}}})
	_, err = thief.Use(t.Context(), r.to("GET", "api.example.com", "/"))
	r.wantKind(err, outboard.Unavailable, "locked", "is not there")
}

// If this fails, a key file that others can read, or that belongs to somebody else, is used without a word.
func TestKeyFileMode(t *testing.T) {
	r := newRig(t)
	r.add(header("a", "api.example.com"), "s3cret-value")
	keys, _ := filepath.Glob(filepath.Join(r.dir, "vault-keys", "*.key"))
	if len(keys) != 1 {
		t.Fatalf("keys: %v", keys)
	}
	if info, err := os.Stat(keys[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode of the key: %v, %v", info.Mode(), err)
	}
	for _, mode := range []os.FileMode{0o644, 0o640, 0o604} {
		r.must(os.Chmod(keys[0], mode))
		_, err := r.another().Use(t.Context(), r.to("GET", "api.example.com", "/"))
		r.wantKind(err, outboard.Unavailable, "mode")
	}
	r.must(os.Chmod(keys[0], 0o600))
	if got := r.bearer(r.another(), "api.example.com"); got != "Bearer s3cret-value" {
		t.Fatalf("with the mode repaired: %q", got)
	}
	if os.Geteuid() != 0 {
		return // the file of somebody else cannot be made, nor read
	}
	r.must(os.Chown(keys[0], 12345, -1))
	_, err := r.another().Use(t.Context(), r.to("GET", "api.example.com", "/"))
	r.wantKind(err, outboard.Unavailable, "belongs to the user 12345")
	r.must(os.Chown(keys[0], 0, 12345))
	if got := r.bearer(r.another(), "api.example.com"); got != "Bearer s3cret-value" {
		t.Fatalf("with the owner repaired: %q", got)
	}
}

// If this fails, whoever can write to the database can make the gateway send a secret to a host of their choice,
// bring back a revoked one, or have a request go out without its credential.
func TestTampering(t *testing.T) {
	setup := func(t *testing.T) (*rig, outboard.Credential) {
		r := newRig(t)
		r.add(header("b", "other.example.com"), "another-secret")
		return r, r.add(header("a", "api.example.com"), "s3cret-value")
	}
	use := func(r *rig) error {
		_, err := r.another().Use(r.Context(), r.to("GET", "api.example.com", "/"))
		return err
	}
	for name, change := range map[string]func(r *rig, c outboard.Credential){
		"another host": func(r *rig, c outboard.Credential) {
			r.sql(`UPDATE credentials SET body = replace(body, 'api.example.com', 'evil.example.com') WHERE id = ?`,
				string(c.ID))
			r.sql(`UPDATE credentials SET body = replace(body, 'other.example.com', 'api.example.com')`)
		},
		"other bytes": func(r *rig, c outboard.Credential) {
			r.sql(`UPDATE credentials SET sealed = randomblob(length(sealed)) WHERE id = ?`, string(c.ID))
		},
		"swapped secrets": func(r *rig, c outboard.Credential) {
			r.sql(`UPDATE credentials SET sealed = (SELECT sealed FROM credentials WHERE id <> ?) WHERE id = ?`,
				string(c.ID), string(c.ID))
		},
		"another vault": func(r *rig, c outboard.Credential) {
			r.sql(`UPDATE credentials SET vault = 'vlt_01other' WHERE id = ?`, string(c.ID))
		},
		"a removed row": func(r *rig, c outboard.Credential) {
			r.sql(`DELETE FROM credentials WHERE id = ?`,
				string(c.ID))
		},
		"a version": func(r *rig, c outboard.Credential) {
			r.sql(`UPDATE credentials SET version = 7 WHERE id = ?`, string(c.ID))
		},
		"the sequence": func(r *rig, c outboard.Credential) { r.sql(`UPDATE vault_keys SET sequence = sequence + 1`) },
		"the key": func(r *rig, c outboard.Credential) {
			r.sql(`UPDATE vault_keys SET wrapped = zeroblob(length(wrapped))`)
		},
		"no key": func(r *rig, c outboard.Credential) { r.sql(`DELETE FROM vault_keys`) },
	} {
		t.Run(name, func(t *testing.T) {
			r, c := setup(t)
			r.T = t
			if err := use(r); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			change(r, c)
			r.wantKind(use(r), outboard.Unavailable, "locked")
		})
	}
}

// If this fails, a database restored from an old copy brings revoked credentials back without anyone noticing.
func TestRollback(t *testing.T) {
	r := newRig(t)
	c := r.add(header("a", "api.example.com"), "old-value")
	copyDB := func(from, to string) {
		db := openRaw(t, from)
		os.Remove(to)
		if _, err := db.ExecContext(t.Context(), "VACUUM INTO ?", to); err != nil {
			t.Fatal(err)
		}
	}
	backup := filepath.Join(t.TempDir(), "backup.db")
	copyDB(filepath.Join(r.dir, "outboard.db"), backup)
	if got := r.bearer(r.Keeper, "api.example.com"); got != "Bearer old-value" {
		t.Fatal(got)
	}
	if _, err := r.Archive(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if got := r.bearer(r.Keeper, "api.example.com"); got != "" {
		t.Fatalf("archived, and still used: %q", got)
	}
	s, err := store.Open(t.Context(), store.Config{Path: backup})
	r.must(err)
	defer s.Close()
	restored := New(Config{Store: s, Wrappers: r.cfg.Wrappers, Mark: r.cfg.Mark})
	_, err = restored.Use(t.Context(), r.to("GET", "api.example.com", "/"))
	r.wantKind(err, outboard.Unavailable, "older")
	r.must(os.Remove(r.cfg.Mark)) // the control: the operator accepts it, and the same database works
	if got := r.bearer(New(restored.cfg), "api.example.com"); got != "Bearer old-value" {
		t.Fatal(got)
	}
}

// If this fails, a process that reads the vault while another one changes it takes the database for an old one,
// and refuses every secret.
func TestReadingBesideAChangeIsNoRollback(t *testing.T) {
	r := newRig(t)
	beside := func(reading int, change func()) *Keeper {
		k, n := r.another(), 0
		k.cfg.reached = func(step string) {
			if step != "read" {
				return
			}
			if n++; n == reading {
				change()
			}
		}
		return k
	}
	var c outboard.Credential
	k := beside(1, func() { c = r.add(header("a", "api.example.com"), "first-value") })
	if _, err := k.current(t.Context()); err != nil || c.ID == "" {
		t.Errorf("beside the first secret: %v", err)
	}
	if got := r.bearer(k, "api.example.com"); got != "Bearer first-value" {
		t.Errorf("and then: %q", got)
	}
	changed := false
	k = beside(2, func() { // the first one finds which key is to be opened
		changed = true
		_, err := r.Update(t.Context(), c.ID, func(_ *outboard.Credential, s *Secrets) error {
			s.Value = outboard.NewSecret("second-value")
			return nil
		})
		r.must(err)
	})
	if got := r.bearer(k, "api.example.com"); got != "Bearer second-value" || !changed {
		t.Errorf("beside a change: %q", got)
	}
}

// crashing is a wrapper whose process dies at one of the three points of a rotation.
type crashing struct {
	KeyDir
	point string
}

func (c crashing) Wrap(ctx context.Context, plain,
	aad []byte) (json.RawMessage, []byte, func(json.RawMessage) error, error) {
	if c.point == "before" {
		return nil, nil, nil, errCrash
	}
	raw, wrapped, settle, err := c.KeyDir.Wrap(ctx, plain, aad)
	if c.point == "wrapped" {
		return nil, nil, nil, errCrash
	}
	if c.point == "stored" {
		settle = func(json.RawMessage) error { return errCrash }
	}
	return raw, wrapped, settle, err
}

// If this fails, a process killed while it rotates keys leaves a vault that nobody can open, or the old key in
// use after a success.
func TestRotation(t *testing.T) {
	for _, point := range []string{"", "before", "wrapped", "stored"} {
		t.Run("killed "+point, func(t *testing.T) {
			r := newRig(t)
			c := r.add(header("a", "api.example.com"), "s3cret-value")
			r.add(outboard.Auth{Type: outboard.AuthEnv, Name: "TOKEN", InHeader: true,
				Rule: outboard.UseRule{AnyHost: true}}, "in-the-environment")
			before, err := r.store.Credential(t.Context(), c.ID)
			r.must(err)
			env, err := r.Environment(t.Context(), r.session)
			r.must(err)
			running := r.another() // has the old key in memory
			if got := r.bearer(running, "api.example.com"); got != "Bearer s3cret-value" {
				t.Fatal(got)
			}
			dir := r.cfg.Wrappers[0].(KeyDir)
			k := New(Config{Store: r.store, Wrappers: []Wrapper{crashing{dir, point}}, Mark: r.cfg.Mark,
				Now: r.cfg.Now})
			n, err := k.RotateKeys(t.Context())
			rotated := point == "" || point == "stored"
			if rotated && (err != nil || n.Credentials != 2) || !rotated && err == nil {
				t.Fatalf("rotated %+v, %v", n, err)
			}
			after, err := r.store.Credential(t.Context(), c.ID)
			r.must(err)
			if changed := after.Sealed.Key != before.Sealed.Key && !bytes.Equal(after.Sealed.Data,
				before.Sealed.Data); changed != rotated {
				t.Fatalf("sealed anew: %v", changed)
			}
			r.now = r.now.Add(Freshness)
			for _, k := range []*Keeper{running, r.another()} {
				if got := r.bearer(k, "api.example.com"); got != "Bearer s3cret-value" {
					t.Errorf("after the rotation: %q", got)
				}
				if again, err := k.Environment(t.Context(), r.session); err != nil || again["TOKEN"] != env["TOKEN"] {
					t.Errorf("the placeholder changed: %v, %v, %v", env, again, err)
				}
			}
			if _, err := r.another().RotateKeys(t.Context()); err != nil { // and it can be done again
				t.Fatal(err)
			}
			if got := r.bearer(r.another(), "api.example.com"); got != "Bearer s3cret-value" {
				t.Error(got)
			}
		})
	}
}

// If this fails, an old key opens what was sealed after a rotation, or the file of the old key stays.
func TestRotationRetiresTheOldKey(t *testing.T) {
	r := newRig(t)
	c := r.add(header("a", "api.example.com"), "s3cret-value")
	old := r.keys
	row, err := r.store.Credential(t.Context(), c.ID)
	r.must(err)
	if _, err := old.open(r.org, &row); err != nil {
		t.Fatalf("the control: %v", err)
	}
	if _, err := r.RotateKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	row, err = r.store.Credential(t.Context(), c.ID)
	r.must(err)
	row.Sealed.Key = old.id
	if _, err := old.open(r.org, &row); err == nil {
		t.Error("the old key opens it")
	}
	if keys, _ := filepath.Glob(filepath.Join(r.dir, "vault-keys", "*.key")); len(keys) != 1 {
		t.Errorf("key files: %v", keys)
	}
}

// If this fails, processes that store secrets or rotate at the same time lose a secret.
func TestConcurrentEdits(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for i := range 4 {
		k := r.another()
		wg.Go(func() {
			for j := range 4 {
				c := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential),
					Vault: r.vault,
					Auth: header(fmt.Sprintf("n%d-%d", i, j), fmt.Sprintf("h%d-%d.example.com", i,
						j)), CreatedAt: r.now}
				if err := k.Create(t.Context(), c, Secrets{Value: outboard.NewSecret("value")}); err != nil {
					errs <- err
				}
			}
		})
	}
	wg.Go(func() {
		k := r.another()
		for range 3 {
			if _, err := k.RotateKeys(t.Context()); err != nil && outboard.KindOf(err) != outboard.NotFound {
				errs <- err
			}
		}
	})
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	for i := range 4 {
		for j := range 4 {
			if got := r.bearer(r.another(), fmt.Sprintf("h%d-%d.example.com", i, j)); got != "Bearer value" {
				t.Errorf("%d-%d: %q", i, j, got)
			}
		}
	}
}

// If this fails, a wrong passphrase opens the vault, or one cannot be changed.
func TestPassphrase(t *testing.T) {
	r := newRig(t)
	first, second := Passphrase{outboard.NewSecret("correct horse")}, Passphrase{outboard.NewSecret("battery staple")}
	with := func(ws ...Wrapper) *Keeper { return New(Config{Store: r.store, Wrappers: ws, Now: r.cfg.Now}) }
	k := with(first)
	r.must(k.Create(t.Context(), outboard.Credential{ID: "vcrd_01a", Vault: r.vault,
		Auth: header("a", "api.example.com"), CreatedAt: r.now},
		Secrets{Value: outboard.NewSecret("s3cret-value")}))
	_, err := with(second).Use(t.Context(), r.to("GET", "api.example.com", "/"))
	r.wantKind(err, outboard.Unavailable, "locked")
	if _, err := with(second, first).RotateKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.bearer(with(second), "api.example.com"); got != "Bearer s3cret-value" {
		t.Fatal(got)
	}
	_, err = with(first).Use(t.Context(), r.to("GET", "api.example.com", "/"))
	r.wantKind(err, outboard.Unavailable, "locked")
}

// If this fails, an archived credential's name stays taken, a second one shares it, or its secret stays in the
// database.
func TestArchivePurges(t *testing.T) {
	r := newRig(t)
	c := r.add(header("a", "api.example.com"), "s3cret-value")
	again := outboard.Credential{ID: "vcrd_01again", Vault: r.vault, Auth: header("a", "api.example.com"),
		CreatedAt: r.now}
	r.wantKind(r.Create(t.Context(), again, Secrets{}), outboard.Conflict, "already")
	if _, err := r.Archive(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	row, err := r.store.Credential(t.Context(), c.ID)
	r.must(err)
	if len(row.Sealed.Data) != 0 || row.ArchivedAt.IsZero() {
		t.Errorf("archived: %d sealed bytes, %v", len(row.Sealed.Data), row.ArchivedAt)
	}
	r.must(r.Create(t.Context(), again, Secrets{Value: outboard.NewSecret("new-value")}))
	if got := r.bearer(r.Keeper, "api.example.com"); got != "Bearer new-value" {
		t.Error(got)
	}
	if _, err := r.ArchiveVault(t.Context(), outboard.Vault{ID: r.vault, CreatedAt: r.now}); err != nil {
		t.Fatal(err)
	}
	if got := r.bearer(r.another(), "api.example.com"); got != "" {
		t.Errorf("used from an archived vault: %q", got)
	}
}

// If this fails, rotating or revoking a credential reaches a running session late, or never.
func TestChangesReachRunningSessions(t *testing.T) {
	r := newRig(t)
	c := r.add(header("a", "api.example.com"), "first-value")
	there := r.another()
	if got := r.bearer(there, "api.example.com"); got != "Bearer first-value" {
		t.Fatal(got)
	}
	if _, err := r.Update(t.Context(), c.ID, func(_ *outboard.Credential, s *Secrets) error {
		s.Value = outboard.NewSecret("second-value")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := r.bearer(r.Keeper, "api.example.com"); got != "Bearer second-value" {
		t.Errorf("in the process that rotated: %q", got)
	}
	r.now = r.now.Add(Freshness)
	if got := r.bearer(there, "api.example.com"); got != "Bearer second-value" {
		t.Errorf("in another process %v later: %q", Freshness, got)
	}
	if _, err := r.Archive(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	r.now = r.now.Add(Freshness)
	if got := r.bearer(there, "api.example.com"); got != "" {
		t.Errorf("revoked, and used by another process %v later: %q", Freshness, got)
	}
	if Freshness > time.Second {
		t.Errorf("Freshness is %v", Freshness)
	}
}

// If this fails, what was opened with a credential goes on after that was revoked or given another rule, or ends
// for a new value.
func TestUseInProgress(t *testing.T) {
	r := newRig(t)
	kept, moved, gone := r.add(header("a", "a.example.com"), "first-value"), r.add(header("b", "b.example.com"),
		"second-value"), r.add(header("c", "c.example.com"), "third-value")
	uses := map[string]Injection{}
	for _, host := range []string{"a", "b", "c"} {
		in, err := r.Use(t.Context(), r.to("GET", host+".example.com", "/"))
		r.must(err)
		r.must(in.Still(t.Context())) // the control
		uses[host] = in
	}
	_, err := r.Update(t.Context(), kept.ID, func(_ *outboard.Credential, s *Secrets) error {
		s.Value = outboard.NewSecret("another-value")
		return nil
	})
	r.must(err)
	_, err = r.Update(t.Context(), moved.ID, func(c *outboard.Credential, _ *Secrets) error {
		c.Auth.Rule.Hosts = []string{"elsewhere.example.com"}
		return nil
	})
	r.must(err)
	_, err = r.Archive(t.Context(), gone.ID)
	r.must(err)
	r.now = r.now.Add(Freshness)
	if err := uses["a"].Still(t.Context()); err != nil {
		t.Errorf("a new value: %v", err)
	}
	for _, host := range []string{"b", "c"} {
		if err := uses[host].Still(t.Context()); outboard.KindOf(err) != outboard.Denied {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// If this fails, a secret can be printed by accident.
func TestSecretsDoNotPrint(t *testing.T) {
	s := Secrets{Value: outboard.NewSecret("s3cret-value"), RefreshToken: outboard.NewSecret("r3fresh-value")}
	in := Injection{Set: map[string]outboard.Secret{"A": s.Value}, Replace: []Placeholder{{Text: "p", Value: s.Value}},
		Scrub: []outboard.Secret{s.Value}}
	j, err := json.Marshal([]any{s, in.Set, in.Scrub})
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprintf("%v %+v %#v %s %v %+v %#v", s, s, s, j, in, in, in)
	if strings.Contains(all, "s3cret") || strings.Contains(all, "r3fresh") {
		t.Errorf("printed: %s", all)
	}
	if !strings.Contains(s.Value.Reveal(), "s3cret") || !strings.Contains(all, "[secret]") {
		t.Error("the control: nothing was there to print")
	}
}

// If this fails, who opens a credential while another process changes it, or rotates the keys, is told that the
// vault was tampered with.
func TestOpenBesideEdits(t *testing.T) {
	r := newRig(t)
	id, there := r.addOAuth("https://issuer.example.com").ID, r.another()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 60 {
			_, err := there.Update(t.Context(), id, func(*outboard.Credential, *Secrets) error { return nil })
			if err == nil && i%5 == 0 {
				_, err = there.RotateKeys(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		}
	}()
	defer func() { <-done }()
	for opened := 0; ; opened++ {
		if _, s, err := r.openNow(t.Context(), id); err != nil || s.Value.Reveal() != "access-1" {
			t.Fatalf("opened %d times, then: %v", opened, err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// If this fails, whoever starts a server with the wrong passphrase or key is not told so, or is told to make a
// new one where that loses everything.
func TestCheckSaysWhatIsLocked(t *testing.T) {
	words := func(s string) []Wrapper { return []Wrapper{Passphrase{Words: outboard.NewSecret(s)}} }
	for name, c := range map[string]struct {
		good, bad func(dir string) []Wrapper
		spoil     func(t *testing.T, dir string)
		say, hint string
	}{
		"another passphrase": {good: func(string) []Wrapper { return words("right") },
			bad: func(string) []Wrapper { return words("wrong") },
			say: "passphrase is not the one in use", hint: "previous_passphrase_env"},
		"another key": {spoil: func(t *testing.T, path string) {
			rewrite(t, path,
				base64.StdEncoding.EncodeToString(make([]byte, 32)))
		},
			say: "another key than the one in use", hint: "backup"},
		"a key that was cut": {spoil: func(t *testing.T, path string) { rewrite(t, path, "c2hvcnQ=") },
			say: "is not 32 bytes", hint: "backup"},
		"a key that is gone": {spoil: func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, say: "is not there", hint: "backup"},
		"a directory": {spoil: func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		}, say: "is not a file"},
		"a file of another's": {good: func(dir string) []Wrapper { return []Wrapper{keyFile(t, dir, "one")} },
			bad: func(dir string) []Wrapper {
				return []Wrapper{keyFile(t, dir,
					"two")}
			}, say: "another key than the one in use", hint: "previous_key_file"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, org := range []outboard.OrgID{outboard.DefaultOrg, "org_other"} {
				r := newRig(t)
				if org != outboard.DefaultOrg {
					r.must(r.store.AddOrg(t.Context(), outboard.Organization{ID: org, Name: "other", CreatedAt: r.now}))
				}
				keeper := func(ws func(string) []Wrapper) *Keeper {
					k := r.another()
					if ws != nil {
						k.cfg.Wrappers = ws(r.dir)
					}
					return k
				}
				v := outboard.Vault{ID: outboard.NewID[outboard.VaultID](outboard.PrefixVault), Org: org,
					DisplayName: "v", CreatedAt: r.now}
				r.must(r.store.PutVault(t.Context(), v))
				k := keeper(c.good)
				cred := outboard.Credential{ID: outboard.NewID[outboard.CredentialID](outboard.PrefixCredential),
					Vault: v.ID, Auth: outboard.Auth{Type: outboard.AuthEnv, Name: "A"}, CreatedAt: r.now}
				r.must(k.For(org).Create(t.Context(), cred, Secrets{Value: outboard.NewSecret("sekrit-value")}))
				r.must(keeper(c.good).Check(t.Context()))
				if c.spoil != nil {
					files, err := filepath.Glob(filepath.Join(r.dir, "vault-keys", "*.key"))
					if org != outboard.DefaultOrg {
						files, err = filepath.Glob(filepath.Join(r.dir, "vault-keys", string(org), "*.key"))
					}
					if err != nil || len(files) != 1 {
						t.Fatalf("%v, %v", files, err)
					}
					c.spoil(t, files[0])
				}
				err := keeper(c.bad).Check(t.Context())
				if err == nil || !strings.Contains(err.Error(), c.say) ||
					!strings.Contains(outboard.HintOf(err), c.hint) ||
					strings.Contains(outboard.HintOf(err), "openssl") {
					t.Errorf("%s: %v (hint: %s), want %q and %q", org, err, outboard.HintOf(err), c.say, c.hint)
				}
				if org != outboard.DefaultOrg && (err == nil || !strings.Contains(err.Error(), string(org))) {
					t.Errorf("it does not say whose: %v", err)
				}
			}
		})
	}
}

func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// keyFile is a key of its own for each name.
func keyFile(t *testing.T, dir, name string) KeyFile {
	path := filepath.Join(dir, name)
	rewrite(t, path, base64.StdEncoding.EncodeToString([]byte((name + strings.Repeat(".", 32))[:32])))
	return KeyFile{Path: path}
}
