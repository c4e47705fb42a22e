package kill

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard"
)

// table is a source whose rows, or failure, a test sets.
type table struct {
	mu   sync.Mutex
	rows []outboard.Kill
	err  error
}

func (t *table) set(err error, rows ...outboard.Kill) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows, t.err = rows, err
}

func (t *table) ActiveKills(context.Context) ([]outboard.Kill, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rows, t.err
}

func killOf(scope outboard.KillScope, target string, level outboard.KillLevel) outboard.Kill {
	return outboard.Kill{ID: outboard.NewID[outboard.KillID](outboard.PrefixKill), Scope: scope, Target: target,
		Level: level, At: time.Now().UTC()}
}

var somebody = outboard.KillSubject{Session: "sesn_1", Agent: "agent_1", Owner: "apikey_1", Person: "user_1",
	Environment: "env_1"}

// If this fails, a kill reaches somebody else, or spares whom it names.
func TestCovers(t *testing.T) {
	for _, c := range []struct {
		scope  outboard.KillScope
		target string
		want   bool
	}{{outboard.KillAll, "", true}, {outboard.KillSession, "sesn_1", true}, {outboard.KillSession, "sesn_2",
		false}, {outboard.KillAgent, "agent_1", true},
		{outboard.KillOwner, "apikey_1", true}, {outboard.KillOwner, "apikey_2", false}, {outboard.KillOwner, "user_1",
			true}, {outboard.KillOwner, "user_2", false}, {outboard.KillEnvironment, "env_1", true},
		{outboard.KillHost, "here", true}, {outboard.KillHost, "there", false}, {outboard.KillCredential, "vcrd_1",
			false}, {"galaxy", "x", true}} {
		src := &table{}
		src.set(nil, killOf(c.scope, c.target, outboard.KillStop))
		s := New(Config{Source: src, Host: "here"})
		if err := s.Check(t.Context(), somebody); (err != nil) != c.want {
			t.Errorf("%s %s: %v", c.scope, c.target, err)
		}
	}
	lifted := killOf(outboard.KillAll, "", outboard.KillStop)
	lifted.LiftedAt = time.Now()
	if lifted.Covers(somebody) {
		t.Error("a lifted kill is in force")
	}
	if k := killOf(outboard.KillSession, "", outboard.KillStop); k.Covers(outboard.KillSubject{}) {
		t.Error("nobody is covered by a kill of nobody")
	}
}

// If this fails, a kill does nothing while the database is down, or what cannot be read lets everything go on.
func TestFilesAndFailures(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kills")
	src := &table{}
	s := New(Config{Source: src, Dir: dir})
	check := func(what string, want bool) {
		t.Helper()
		s.Refresh(t.Context())
		if err := s.Check(t.Context(), somebody); (err == nil) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("nothing is in force", true)

	pause, stop := killOf(outboard.KillAgent, "agent_1", outboard.KillPause), killOf(outboard.KillSession, "sesn_1",
		outboard.KillStop)
	for _, k := range []outboard.Kill{pause, stop} {
		if err := WriteFile(dir, k); err != nil {
			t.Fatal(err)
		}
	}
	src.set(errors.New("the database is down"))
	check("files, without the database", false)
	if k, err := s.Find(t.Context(), somebody); err != nil || k == nil || k.ID != stop.ID {
		t.Errorf("which goes furthest: %v, %v", k, err)
	}
	for _, k := range []outboard.Kill{pause, stop} {
		if err := RemoveFile(dir, k.ID); err != nil {
			t.Fatal(err)
		}
	}
	check("no files, and the database is down", false)
	if k, err := s.Find(t.Context(), somebody); k != nil || outboard.KindOf(err) != outboard.Unavailable {
		t.Errorf("nobody knows: %v, %v", k, err)
	}
	src.set(nil)
	check("the database is back", true)

	for name, text := range map[string]string{"a.json": "{",
		"b.json": `{"id":"kill_1","scope":"session","level":"stop"}`, "c.json": `{"id":"kill_1","scope":"all","level":"maybe"}`} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		check("a file nobody understands: "+text, false)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		check("without it", true)
	}
	if err := os.WriteFile(filepath.Join(dir, ".kill_1"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("a file that is being written", true)
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "z.json")); err != nil {
		t.Fatal(err)
	}
	check("a link", false)
}

// If this fails, a running switch does not see a kill that somebody else throws.
func TestLooks(t *testing.T) {
	dir, src := t.TempDir(), &table{}
	s := New(Config{Source: src, Dir: dir})
	s.Start()
	defer s.Stop()
	wait := func(what string, n int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); len(s.Active()) != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d in force, not %d", what, len(s.Active()), n)
			}
		}
	}
	k := killOf(outboard.KillAll, "", outboard.KillPause)
	if err := WriteFile(dir, k); err != nil {
		t.Fatal(err)
	}
	wait("a file", 1)
	src.set(nil, killOf(outboard.KillAll, "", outboard.KillStop))
	wait("and a row", 2)
	if err := RemoveFile(dir, k.ID); err != nil {
		t.Fatal(err)
	}
	src.set(nil)
	wait("lifted", 0)
}

// If this fails, a kill is listed twice while it is made a row of a file.
func TestActiveOnce(t *testing.T) {
	dir, src := t.TempDir(), &table{}
	s := New(Config{Source: src, Dir: dir})
	k, other := killOf(outboard.KillAll, "", outboard.KillPause), killOf(outboard.KillAll, "", outboard.KillPause)
	if err := WriteFile(dir, k); err != nil {
		t.Fatal(err)
	}
	s.Hold(k)
	src.set(nil, k, other)
	s.Refresh(t.Context())
	if active := s.Active(); len(active) != 2 || active[0].ID == active[1].ID {
		t.Errorf("of a kill in three places and one in one there are %+v", active)
	}
}

// hung is a database that answers nobody.
type hung struct{ asked chan struct{} }

func (h hung) ActiveKills(ctx context.Context) ([]outboard.Kill, error) {
	h.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// If this fails, a database that hangs holds up whoever ends what runs, or makes each of many who ask wait for
// it in turn.
func TestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "kills")
		db := hung{make(chan struct{}, 100)}
		s := New(Config{Source: db, Dir: dir})
		begun := time.Now()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if err := s.Check(t.Context(), somebody); outboard.KindOf(err) != outboard.Unavailable {
					t.Errorf("nobody knows: %v", err)
				}
			})
		}
		all.Wait()
		if took := time.Since(begun); took > 2*readTime || len(db.asked) > 2 {
			t.Errorf("they waited %s for %d readings", took, len(db.asked))
		}
		if err := WriteFile(dir, killOf(outboard.KillSession, "sesn_1", outboard.KillStop)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(Freshness + time.Millisecond) // what was read of the files is old now
		begun = time.Now()
		if k, err := s.Find(t.Context(), somebody); k == nil || err != nil || time.Since(begun) > 0 {
			t.Errorf("a file: %v, %v after %s", k, err, time.Since(begun))
		}
		if k, err := s.Known(somebody); k == nil || err != nil || time.Since(begun) > 0 {
			t.Errorf("what is known: %v, %v after %s", k, err, time.Since(begun))
		}
		if k, err := s.Known(outboard.KillSubject{Session: "sesn_2"}); k != nil ||
			outboard.KindOf(err) != outboard.Unavailable {
			t.Errorf("of somebody else: %v, %v", k, err)
		}
	})
}

// If this fails, a full disk keeps alive what a server was told to kill, or a kill that was held goes on after
// it was lifted.
func TestHeldWithoutFile(t *testing.T) {
	dir := t.TempDir()
	s := New(Config{Dir: dir})
	k := killOf(outboard.KillAll, "", outboard.KillStop)
	if err := s.Check(t.Context(), outboard.KillSubject{Session: "sesn_1"}); err != nil {
		t.Fatalf("nothing is killed: %v", err)
	}
	s.Hold(k)
	for range 2 { // before the files are read again, and after
		if err := s.Check(t.Context(),
			outboard.KillSubject{Session: "sesn_1"}); outboard.KindOf(err) != outboard.Denied || len(s.Files()) != 1 {
			t.Errorf("held: %v, %d to be made rows", err, len(s.Files()))
		}
		s.Refresh(t.Context())
	}
	s.Drop(k.ID)
	if err := s.Check(t.Context(), outboard.KillSubject{Session: "sesn_1"}); err != nil {
		t.Errorf("dropped: %v", err)
	}
}
