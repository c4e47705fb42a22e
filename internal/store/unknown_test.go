package store_test

import (
	"bytes"
	"context"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// cutter stands between a store and PostgreSQL. When armed goes to the database, it breaks that connection before the
// answer comes back: the database has done it, and the store cannot know.
type cutter struct {
	armed atomic.Pointer[string]
}

// url returns the address of a database by way of the cutter.
func (c *cutter) url(t *testing.T, database string) string {
	t.Helper()
	cfg, err := pgconn.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go c.accept(l, cfg)
	host, port, _ := net.SplitHostPort(l.Addr().String())
	q := u.Query()
	q.Set("host", host)
	q.Set("port", port)
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	return u.String()
}

func (c *cutter) accept(l net.Listener, cfg *pgconn.Config) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
		server, err := net.Dial(network, address)
		if err != nil {
			client.Close()
			continue
		}
		cut := new(atomic.Bool)
		go c.requests(client, server, cut)
		go c.answers(client, server, cut)
	}
}

func (c *cutter) requests(client, server net.Conn, cut *atomic.Bool) {
	defer server.Close()
	buf := make([]byte, 1<<20)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if armed := c.armed.Load(); armed != nil && bytes.Contains(buf[:n], []byte(*armed)) {
			c.armed.Store(nil)
			cut.Store(true)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (c *cutter) answers(client, server net.Conn, cut *atomic.Bool) {
	defer client.Close()
	buf := make([]byte, 1<<20)
	for {
		n, err := server.Read(buf)
		if err != nil || cut.Load() {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// If this fails, a session whose claim was committed while the connection broke stays with a worker that does not know
// it: the worker's lease goes on, and the work is never done.
func TestClaimOfUnknownOutcomeIsGivenUp(t *testing.T) {
	var c cutter
	s := storetest.Open(t, store.Config{URL: c.url(t, storetest.Postgres(t))})
	w, other := newWorker(t, s), newWorker(t, s)
	id := newSession(t, s).ID
	mustAppend(t, s, id, message("go"))
	commit := "Q\x00\x00\x00\x0bcommit\x00" // as it is on the wire
	c.armed.Store(&commit)
	if got, err := s.Claim(t.Context(), w, 1); !store.Away(err) || len(got) != 0 {
		t.Fatalf("the claim: %v, %v; %+v", got, err, mustSession(t, s, id))
	}
	if h := mustSession(t, s, id); h.Epoch != 1 { // the control: the database has done it
		t.Fatalf("the session: %+v", h)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		got, err := s.Claim(ctx, other, 1)
		if err != nil {
			t.Fatalf("nobody gets it: %v", err)
		}
		if len(got) == 1 && got[0].ID == id && got[0].Epoch == 2 {
			return
		}
		if err := s.WaitRunnable(ctx); err != nil {
			t.Fatalf("nobody gets it: %v", err)
		}
	}
}

// If this fails, an append whose connection broke is made a second time, and everything is said twice.
func TestAppendOfUnknownOutcomeIsNotRepeated(t *testing.T) {
	var c cutter
	database := storetest.Postgres(t)
	s := storetest.Open(t, store.Config{URL: database})
	id := newSession(t, s).ID
	cold := storetest.Open(t, store.Config{URL: c.url(t, database)}) // knows no header: it needs a whole transaction
	text := "cut here"
	c.armed.Store(&text)
	if _, err := cold.Append(t.Context(), id, 0, store.Any, message(text)); !store.Away(err) {
		t.Errorf("the append: %v", err)
	}
	if h := mustSession(t, s, id); h.Inbox != 1 {
		t.Errorf("the session: %+v", h)
	}
}
