// Package storetest gives tests real databases: SQLite files, and schemas of a PostgreSQL server
// that it starts once per test binary and that ends with it. Nothing that ships imports it.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboard-dev/outboard/internal/store"
)

// Each runs fn once on each kind of database, as a subtest, with a new and empty store that is closed at its end.
func Each(t *testing.T, fn func(t *testing.T, s *store.Store)) {
	t.Helper()
	EachConfig(t, func(t *testing.T, cfg store.Config) { fn(t, Open(t, cfg)) })
}

// EachConfig is Each for tests that open the database themselves, perhaps more than once at a time.
func EachConfig(t *testing.T, fn func(t *testing.T, cfg store.Config)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { fn(t, SQLite(t)) })
	t.Run("postgres", func(t *testing.T) { fn(t, store.Config{URL: Postgres(t)}) })
}

// SQLite returns the config of a new file.
func SQLite(t testing.TB) store.Config {
	return store.Config{Path: filepath.Join(t.TempDir(), "outboard.db")}
}

// Open opens a store that is closed when the test ends.
func Open(t testing.TB, cfg store.Config) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("opening store: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing store: %v", err)
		}
	})
	return s
}

// Postgres returns the URL of a new and empty schema that is dropped when the test ends. The server is the one
// OUTBOARD_TEST_POSTGRES names (a URL whose user may create schemas), else one started from the binaries on this
// machine. Without either the test fails in CI, and is skipped elsewhere.
func Postgres(t testing.TB) string {
	t.Helper()
	base := os.Getenv("OUTBOARD_TEST_POSTGRES")
	if base == "" {
		var err error
		if base, err = server(); err != nil {
			skip(t, "no PostgreSQL for this test: "+err.Error()+" (install the postgresql package, or set "+
				"OUTBOARD_TEST_POSTGRES)")
		}
	}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatalf("OUTBOARD_TEST_POSTGRES: %v", err)
	}
	name := "outboard_" + strings.ToLower(rand.Text())
	if err := execute(t.Context(), base, `CREATE SCHEMA `+name); err != nil {
		t.Fatalf("creating a schema: %v", err)
	}
	t.Cleanup(func() {
		if err := execute(context.Background(), base, `DROP SCHEMA `+name+` CASCADE`); err != nil {
			t.Errorf("dropping a schema: %v", err)
		}
	})
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return u.String()
}

// skip is the one place where a test of this package gives up for want of a dependency.
func skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	fmt.Fprintf(os.Stderr, "SKIPPED %s: %s\n", t.Name(), why)
	t.Skip(why)
}

func execute(ctx context.Context, url, query string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, query)
	return errors.Join(err, conn.Close(ctx))
}
