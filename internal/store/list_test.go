package store_test

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// day is a creation time; rows of the same day are told apart by id.
func day(n int) time.Time { return time.Date(2026, 3, n, 0, 0, 0, 0, time.UTC) }

// walk turns pages until there are no more rows, and returns the ids in order.
func walk[T any, ID ~string](t *testing.T, id func(T) ID, next func(cursor ID) ([]T, error)) []ID {
	t.Helper()
	var out []ID
	var cursor ID
	for range 100 {
		rows, err := next(cursor)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			return out
		}
		for _, r := range rows {
			cursor = id(r)
			out = append(out, cursor)
		}
	}
	t.Fatal("the pages never end")
	return nil
}

// A page that skips or repeats a row hides a session from its owner; a filter that leaks one shows it to the
// wrong query.
func TestSessionPages(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		var all []outboard.SessionID
		for i := range 9 {
			h := blank()
			h.ID, h.CreatedAt = outboard.SessionID(fmt.Sprintf("sesn_%d", i)), day(1+i/2)
			h.AgentID, h.AgentVersion = outboard.AgentID(fmt.Sprintf("agent_%d", i%2)), i%3
			if _, err := s.CreateSession(t.Context(), h, outboard.SessionConfig{}); err != nil {
				t.Fatal(err)
			}
			all = append(all, h.ID)
		}
		mustAppend(t, s, "sesn_3", outboard.NewEvent("", &outboard.SessionArchived{}))
		mustAppend(t, s, "sesn_4", started(1))
		if err := s.DeleteSession(t.Context(), "sesn_5"); err != nil {
			t.Fatal(err)
		}
		list := func(f store.SessionFilter) []outboard.SessionID {
			f.Limit = 2
			return walk(t, func(h outboard.Header) outboard.SessionID { return h.ID },
				func(c outboard.SessionID) ([]outboard.Header, error) {
					f.Cursor = c
					return s.Sessions(t.Context(), f)
				})
		}
		down := func(ids ...int) (out []outboard.SessionID) {
			for _, i := range ids {
				out = append(out, all[i])
			}
			return out
		}
		for name, c := range map[string]struct {
			f    store.SessionFilter
			want []outboard.SessionID
		}{
			"default":  {store.SessionFilter{}, down(8, 7, 6, 4, 2, 1, 0)},
			"archived": {store.SessionFilter{IncludeArchived: true}, down(8, 7, 6, 4, 3, 2, 1, 0)},
			"asc":      {store.SessionFilter{Asc: true}, down(0, 1, 2, 4, 6, 7, 8)},
			"agent":    {store.SessionFilter{Agent: "agent_0"}, down(8, 6, 4, 2, 0)},
			"version":  {store.SessionFilter{Agent: "agent_0", AgentVersion: 2}, down(8, 2)},
			"running":  {store.SessionFilter{Phases: []outboard.Phase{outboard.PhaseRunning}}, down(4)},
			"phases": {store.SessionFilter{Phases: []outboard.Phase{outboard.PhaseRunning, outboard.PhaseTerminated},
				IncludeArchived: true},
				down(4, 3)},
			"times": {store.SessionFilter{From: day(2), Until: day(4)}, down(4, 2)},
		} {
			if got := list(c.f); !slices.Equal(got, c.want) {
				t.Errorf("%s: got %v, want %v", name, got, c.want)
			}
		}
		_, err := s.Sessions(t.Context(), store.SessionFilter{Cursor: "sesn_none"})
		mustKind(t, err, outboard.Invalid, "sesn_none")
		_, err = s.Session(t.Context(), "sesn_5")
		mustKind(t, err, outboard.NotFound, "sesn_5")
		mustKind(t, s.DeleteSession(t.Context(), "sesn_5"), outboard.NotFound)
		_, err = s.CreateSession(t.Context(), outboard.Header{ID: "sesn_1"}, outboard.SessionConfig{})
		mustBe(t, err, store.ErrDuplicate)
	})
}

// Filters of events must combine, in both directions, else a client's history has holes.
func TestEventPages(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		c := newClock()
		cfg.Now = c.now
		s := storetest.Open(t, cfg)
		newSession(t, s) // its events are next to those of the other two, which no position reaches
		id := newSession(t, s).ID
		newSession(t, s)
		in := message("a")
		var evs []outboard.Event
		for _, e := range []outboard.Event{in, said("b"), processed(in), said("c"),
			outboard.NewEvent("", &outboard.CallStarted{Call: in.ID})} {
			c.advance(time.Minute)
			evs = append(evs, mustAppend(t, s, id, e)...)
		}
		for name, q := range map[string]struct {
			q    store.EventQuery
			want []int64
		}{
			"all":     {store.EventQuery{}, []int64{1, 2, 3, 4, 5, 6}},
			"between": {store.EventQuery{After: 2, Before: 5}, []int64{3, 4}},
			"desc":    {store.EventQuery{Desc: true, Limit: 2}, []int64{6, 5}},
			"types": {store.EventQuery{Types: []outboard.EventType{outboard.TypeAgentMessage,
				outboard.TypeInputMessage}}, []int64{2, 3, 5}},
			"inputs":  {store.EventQuery{Types: []outboard.EventType{outboard.TypeInputMessage}}, []int64{2}},
			"times":   {store.EventQuery{Since: evs[1].Time, Until: evs[3].Time}, []int64{3, 4, 5}},
			"none":    {store.EventQuery{After: 6}, nil},
			"beyond":  {store.EventQuery{After: 1 << 32}, nil},
			"outside": {store.EventQuery{After: -1 << 40, Before: math.MaxInt64}, []int64{1, 2, 3, 4, 5, 6}},
		} {
			got, err := s.Events(t.Context(), id, q.q)
			var seqs []int64
			for _, e := range got {
				seqs = append(seqs, e.Seq)
			}
			if err != nil || !slices.Equal(seqs, q.want) {
				t.Errorf("%s: got %v, %v, want %v", name, seqs, err, q.want)
			}
		}
		about, err := s.EventsAbout(t.Context(), id, in.ID)
		if err != nil || len(about) != 2 || about[0].Seq != 4 || about[1].Seq != 6 {
			t.Errorf("about the input: %v, %v", about, err)
		}
		one, err := s.Event(t.Context(), id, in.ID)
		if got, want := jsonOf(t, one), jsonOf(t, evs[0]); err != nil || got != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
		_, err = s.Event(t.Context(), newSession(t, s).ID, in.ID)
		mustKind(t, err, outboard.NotFound)
	})
}

// An agent's versions must be kept apart and in order, and two updates of the same version must not both win.
func TestAgents(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		for i := range 5 {
			a := outboard.Agent{ID: outboard.AgentID(fmt.Sprintf("agent_%d", i)), Version: 1, Name: "n",
				CreatedAt: day(1 + i/2), UpdatedAt: day(1)}
			if err := s.PutAgent(t.Context(), a); err != nil {
				t.Fatal(err)
			}
			mustKind(t, s.PutAgent(t.Context(), a), outboard.Conflict, "agent_")
		}
		want := outboard.Agent{ID: "agent_2", Version: 2, Name: "two",
			Tools:    []outboard.Toolset{{Kind: "custom", InputSchema: outboard.Raw(`{"a": 1}`)}},
			Metadata: map[string]string{"k": "v"}, CreatedAt: day(2), UpdatedAt: day(9), Org: outboard.DefaultOrg}
		if err := s.PutAgent(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		mustKind(t, s.PutAgent(t.Context(), want), outboard.Conflict)
		mustKind(t, s.PutAgent(t.Context(), outboard.Agent{ID: "agent_2", Version: 9}), outboard.Conflict)
		got, err := s.Agent(t.Context(), "agent_2", 0)
		want.Tools[0].InputSchema = outboard.Raw(`{"a":1}`)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
		if v1, err := s.Agent(t.Context(), "agent_2", 1); err != nil || v1.Name != "n" {
			t.Fatalf("got %+v, %v", v1, err)
		}
		_, err = s.Agent(t.Context(), "agent_2", 3)
		mustKind(t, err, outboard.NotFound, "agent_2 version 3")
		first, err := s.ArchiveAgent(t.Context(), "agent_3", day(5))
		if err != nil || !first.ArchivedAt.Equal(day(5)) {
			t.Fatalf("archived %+v, %v", first, err)
		}
		if again, err := s.ArchiveAgent(t.Context(), "agent_3", day(6)); err != nil || !again.ArchivedAt.Equal(day(5)) {
			t.Fatalf("archived again %+v, %v", again, err)
		}
		_, err = s.ArchiveAgent(t.Context(), "agent_none", day(6))
		mustKind(t, err, outboard.NotFound)
		list := func(p store.Page) []outboard.AgentID {
			p.Limit = 2
			return walk(t, func(a outboard.Agent) outboard.AgentID { return a.ID },
				func(c outboard.AgentID) ([]outboard.Agent, error) {
					p.Cursor = string(c)
					return s.Agents(t.Context(), p)
				})
		}
		if got := list(store.Page{}); !slices.Equal(got, []outboard.AgentID{"agent_4", "agent_2", "agent_1",
			"agent_0"}) {
			t.Errorf("agents: %v", got)
		}
		if got := list(store.Page{IncludeArchived: true, From: day(2), To: day(2)}); !slices.Equal(got,
			[]outboard.AgentID{"agent_3", "agent_2"}) {
			t.Errorf("agents of the second: %v", got)
		}
		vs, err := s.AgentVersions(t.Context(), "agent_2", store.Page{Limit: 1})
		if err != nil || len(vs) != 1 || vs[0].Version != 2 {
			t.Fatalf("versions: %v, %v", vs, err)
		}
		vs, err = s.AgentVersions(t.Context(), "agent_2", store.Page{Cursor: "2"})
		if err != nil || len(vs) != 1 || vs[0].Version != 1 {
			t.Fatalf("versions after 2: %v, %v", vs, err)
		}
		_, err = s.AgentVersions(t.Context(), "agent_2", store.Page{Cursor: "x"})
		mustKind(t, err, outboard.Invalid)
		_, err = s.AgentVersions(t.Context(), "agent_none", store.Page{})
		mustKind(t, err, outboard.NotFound)
	})
}

// Environments, files, keys, sandboxes and checkpoints must come back as they were put, and go when they are deleted.
func TestRows(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		t.Run("environments", func(t *testing.T) { environments(t, s) })
		t.Run("files", func(t *testing.T) { files(t, s) })
		t.Run("keys", func(t *testing.T) { keys(t, s) })
		t.Run("sandboxes", func(t *testing.T) { sandboxes(t, s) })
	})
}

func environments(t *testing.T, s *store.Store) {
	e := outboard.Environment{ID: "env_1", Name: "a", Config: outboard.EnvConfig{Kind: "cloud",
		Packages: map[string][]string{"pip": {"x"}}},
		CreatedAt: day(1), UpdatedAt: day(1), Org: "org_1"}
	for range 2 {
		if err := s.PutEnvironment(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Environment(t.Context(), "env_1"); err != nil || !reflect.DeepEqual(got, e) {
			t.Fatalf("got %+v, %v, want %+v", got, err, e)
		}
		e.Name, e.ArchivedAt = "b", day(3)
	}
	if err := s.PutEnvironment(t.Context(), outboard.Environment{ID: "env_2", CreatedAt: day(2)}); err != nil {
		t.Fatal(err)
	}
	for all, want := range map[bool]int{false: 1, true: 2} {
		if got, err := s.Environments(t.Context(), store.Page{IncludeArchived: all}); err != nil || len(got) != want ||
			got[0].ID != "env_2" {
			t.Fatalf("got %v, %v", got, err)
		}
	}
	if err := s.DeleteEnvironment(t.Context(), "env_1"); err != nil {
		t.Fatal(err)
	}
	mustKind(t, s.DeleteEnvironment(t.Context(), "env_1"), outboard.NotFound, "env_1")
	_, err := s.Environment(t.Context(), "env_1")
	mustKind(t, err, outboard.NotFound, "env_1")
}

func files(t *testing.T, s *store.Store) {
	session := newSession(t, s).ID
	for i := range 4 {
		f := outboard.File{ID: outboard.FileID(fmt.Sprintf("file_%d", i)), Filename: "f", MediaType: "text/plain",
			Blob: outboard.BlobRef{Digest: "d", Size: 3}, CreatedAt: day(1 + i), Org: outboard.DefaultOrg}
		if i%2 == 1 {
			f.Session, f.Path, f.Downloadable, f.ExpiresAt = session, "p", true, day(20)
		}
		if err := s.PutFile(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if got, err := s.File(t.Context(), f.ID); err != nil || got != f {
			t.Fatalf("got %+v, %v, want %+v", got, err, f)
		}
		mustBe(t, s.PutFile(t.Context(), f), store.ErrDuplicate)
	}
	list := func(session outboard.SessionID, ids ...outboard.FileID) []outboard.FileID {
		return walk(t, func(f outboard.File) outboard.FileID { return f.ID },
			func(c outboard.FileID) ([]outboard.File, error) {
				return s.Files(t.Context(), session, ids, store.Page{Cursor: string(c), Limit: 1})
			})
	}
	if got := list(""); !slices.Equal(got, []outboard.FileID{"file_3", "file_2", "file_1", "file_0"}) {
		t.Errorf("files: %v", got)
	}
	if got := list(session); !slices.Equal(got, []outboard.FileID{"file_3", "file_1"}) {
		t.Errorf("files of the session: %v", got)
	}
	if got := list("", "file_0", "file_1", "file_x"); !slices.Equal(got, []outboard.FileID{"file_1", "file_0"}) {
		t.Errorf("files by id: %v", got)
	}
	if err := s.DeleteFile(t.Context(), "file_0"); err != nil {
		t.Fatal(err)
	}
	mustKind(t, s.DeleteFile(t.Context(), "file_0"), outboard.NotFound)
	if err := s.DeleteSession(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	if got := list(""); !slices.Equal(got, []outboard.FileID{"file_2"}) {
		t.Errorf("files after the session is gone: %v", got)
	}
}

func keys(t *testing.T, s *store.Store) {
	k := outboard.Key{ID: "apikey_1", Name: "n", Hash: "h1", Role: "admin", CreatedAt: day(1), Org: "org_1",
		Kind: outboard.KeyLogin, User: "user_1",
		Scopes: []string{"read"}, Environment: "env_1", ExpiresAt: day(9)}
	gone := outboard.Key{ID: "apikey_2", Hash: "h2", CreatedAt: day(2), RevokedAt: day(3), Org: outboard.DefaultOrg,
		Kind: outboard.KeyAPI}
	for _, k := range []outboard.Key{k, gone} {
		if err := s.PutKey(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		mustBe(t, s.PutKey(t.Context(), k), store.ErrDuplicate)
	}
	if got, err := s.KeyByHash(t.Context(), "h1"); err != nil || !reflect.DeepEqual(got, k) {
		t.Fatalf("got %+v, %v", got, err)
	}
	for _, hash := range []string{"h2", "h3", ""} {
		_, err := s.KeyByHash(t.Context(), hash)
		mustKind(t, err, outboard.NotFound)
	}
	for p, want := range map[store.Page][]outboard.Key{{IncludeArchived: true}: {gone, k}, {}: {k}, {Org: "org_1"}: {k},
		{Org: "org_2"}: nil} {
		if all, err := s.Keys(t.Context(), p); err != nil || !reflect.DeepEqual(all, want) {
			t.Errorf("%+v: got %v, %v", p, all, err)
		}
	}
	if got, err := s.RevokeKey(t.Context(), "apikey_1", day(4)); err != nil || !got.RevokedAt.Equal(day(4)) {
		t.Errorf("revoked: %+v, %v", got, err)
	}
}

func sandboxes(t *testing.T, s *store.Store) {
	for i := range 4 {
		b := outboard.Sandbox{ID: outboard.SandboxID(fmt.Sprintf("sbx_%d", i)),
			Session:  outboard.SessionID(fmt.Sprintf("sesn_%d", i/2)),
			Provider: "native", Host: fmt.Sprintf("host%d", i%2), Generation: "g", State: "creating", CreatedAt: day(1 +
				i), UpdatedAt: day(1)}
		for _, state := range []string{"creating", "live"} {
			b.State = state
			if err := s.PutSandbox(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Sandbox(t.Context(), b.ID); err != nil || got != b {
				t.Fatalf("got %+v, %v, want %+v", got, err, b)
			}
		}
		if i == 3 {
			b.State = "destroyed"
			if err := s.PutSandbox(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		host    string
		session outboard.SessionID
		want    []outboard.SandboxID
	}{
		{"", "", []outboard.SandboxID{"sbx_0", "sbx_1", "sbx_2"}},
		{"host0", "", []outboard.SandboxID{"sbx_0", "sbx_2"}},
		{"host1", "sesn_1", nil},
		{"", "sesn_0", []outboard.SandboxID{"sbx_0", "sbx_1"}},
	} {
		rows, err := s.Sandboxes(t.Context(), c.host, c.session)
		var got []outboard.SandboxID
		for _, b := range rows {
			got = append(got, b.ID)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("sandboxes of %q %q: %v, %v, want %v", c.host, c.session, got, err, c.want)
		}
	}
	_, err := s.Sandbox(t.Context(), "sbx_none")
	mustKind(t, err, outboard.NotFound)
	_, err = s.Checkpoint(t.Context(), "ckpt_none")
	mustKind(t, err, outboard.NotFound)
	_, err = s.Checkpoints(t.Context(), "sesn_0") // a sandbox of it is no session
	mustKind(t, err, outboard.NotFound)
	if ks, err := s.Checkpoints(t.Context(), newSession(t, s).ID); err != nil || len(ks) != 0 {
		t.Fatalf("got %v, %v", ks, err)
	}
}
