package control_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/store"
)

// memory is a kill switch whose disk is full.
type memory struct{ kills []outboard.Kill }

func (m *memory) Check(context.Context, outboard.KillSubject) error         { return nil }
func (m *memory) Enforce(context.Context)                                   {}
func (m *memory) Left(context.Context, outboard.Kill) (machines, flows int) { return 0, 0 }
func (m *memory) Host() string                                              { return "" }
func (m *memory) Active() []outboard.Kill                                   { return m.kills }
func (m *memory) Forget(outboard.KillID) error                              { return nil }
func (m *memory) Keep(k outboard.Kill) error {
	m.kills = append(m.kills, k)
	return errors.New("the disk is full")
}

// Fails if a kill that is in force only in memory, because the disk is full and the database is locked, keeps
// its caller waiting behind all others who wait for the database, so that nobody learns that it is in force; or
// if it is no row once the database is free.
func TestKillWithAFullDiskAndALockedDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "outboard.db")
	synctest.Test(t, func(t *testing.T) {
		st, err := store.Open(t.Context(), store.Config{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		m := &memory{}
		c := control.New(control.Config{Store: st, Kill: m})
		defer c.Stop()
		db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		lock, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var other sync.WaitGroup
		other.Go(func() { _ = st.PutEnvironment(t.Context(), outboard.Environment{ID: "env_1"}) })
		synctest.Wait() // it has the one connection that writes, and waits for the lock
		operator := admin
		operator.Kind = outboard.KeyOperator
		begun := time.Now()
		_, err = c.Kill(t.Context(), operator, control.NewKill{Kill: outboard.Kill{Scope: outboard.KillAll}})
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("the kill answered after %v", took)
		}
		if outboard.KindOf(err) != outboard.Unavailable || len(m.kills) != 1 ||
			!strings.Contains(err.Error(), "is in force as "+string(m.kills[0].ID)) {
			t.Errorf("the kill says %v", err)
		}
		if err := lock.Rollback(); err != nil {
			t.Fatal(err)
		}
		c.Stop()
		other.Wait()
		if rows, err := st.ActiveKills(t.Context()); err != nil || len(rows) != 1 {
			t.Errorf("%d rows, %v", len(rows), err)
		}
	})
}

// kept is a kill switch that keeps what it is given.
type kept struct{ memory }

func (k *kept) Keep(one outboard.Kill) error { k.kills = append(k.kills, one); return nil }

// Fails if one organization throws so many kills that every server reads nothing else, or if that keeps another
// one, or who runs the server, from theirs.
func TestKillsOfOneOrganization(t *testing.T) {
	m := &kept{}
	c, st, _ := partsWith(t, t.TempDir(), control.Config{Kill: m})
	t.Cleanup(c.Stop)
	throw := func(by outboard.Caller, org outboard.OrgID, name string) error {
		id := outboard.NewID[outboard.AgentID](outboard.PrefixAgent)
		if err := st.PutAgent(t.Context(), outboard.Agent{ID: id, Version: 1, Name: name, Org: org}); err != nil {
			t.Fatal(err)
		}
		_, err := c.Kill(t.Context(), by,
			control.NewKill{Kill: outboard.Kill{Scope: outboard.KillAgent, Target: string(id)}})
		return err
	}
	const most = 200
	for range most {
		m.kills = append(m.kills, outboard.Kill{ID: outboard.NewID[outboard.KillID](outboard.PrefixKill),
			Scope: outboard.KillAgent, Target: "x", Org: "org_evil"})
	}
	evil, good := admin, admin
	evil.Org, good.Org = "org_evil", "org_good"
	if err := throw(evil, evil.Org, "a"); outboard.KindOf(err) != outboard.Exhausted {
		t.Errorf("one more: %v", err)
	}
	if len(m.kills) != most {
		t.Errorf("%d kills are kept", len(m.kills))
	}
	if err := throw(good, good.Org, "b"); err != nil {
		t.Errorf("one of another organization: %v", err)
	}
	operator := admin
	operator.Kind, operator.Org = outboard.KeyOperator, evil.Org
	if err := throw(operator, evil.Org, "c"); err != nil {
		t.Errorf("one of who runs the server: %v", err)
	}
}
