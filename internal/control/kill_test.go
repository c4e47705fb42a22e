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

// Fails if a kill that is in force only in memory, because the disk is full and the database is locked, keeps its caller waiting behind all
// others who wait for the database, so that nobody learns that it is in force; or if it is no row once the database is free.
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
		if outboard.KindOf(err) != outboard.Unavailable || len(m.kills) != 1 || !strings.Contains(err.Error(), "is in force as "+string(m.kills[0].ID)) {
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
