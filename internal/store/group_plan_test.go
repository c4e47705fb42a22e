package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// TestGroupIsNotReadForEachSession: however few sessions there are, PostgreSQL finds the header of a session in
// the group by its number. With a condition on the head in the join it goes through the group for each session,
// which the control shows.
func TestGroupIsNotReadForEachSession(t *testing.T) {
	cfg := store.Config{URL: storetest.Postgres(t)}
	s := storetest.Open(t, cfg)
	for range 64 {
		newSession(t, s)
	}
	conn, err := pgx.Connect(t.Context(), cfg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`); err != nil {
		t.Fatal(err)
	}
	for n, query := range store.GroupSQL {
		joined := strings.Replace(query, "WHERE s.num = k.num",
			"WHERE s.num = k.num AND s.head = k.base AND s.epoch = k.epoch AND s.deleted_at + 0 = 0", 1)
		if p := generic(t, conn, joined, n); !strings.Contains(p, "Join Filter") {
			t.Errorf("the control of %d parameters is planned as\n%s", n, p)
		}
		if p := generic(t, conn, query, n); strings.Contains(p, "Join Filter") {
			t.Errorf("the statement of %d parameters is planned as\n%s", n, p)
		}
	}
}

// generic is the plan of a query of n parameters, whatever they are.
func generic(t *testing.T, conn *pgx.Conn, query string, n int) string {
	t.Helper()
	name := fmt.Sprintf("p%d", len(query))
	if _, err := conn.Exec(t.Context(), "PREPARE "+name+" AS "+query); err != nil {
		t.Fatal(err)
	}
	nulls := strings.TrimSuffix(strings.Repeat("NULL,", n), ",")
	rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE "+name+"("+nulls+")", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
