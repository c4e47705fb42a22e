package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// bounded is a server with small bounds and two organizations.
func bounded(t *testing.T, bounds control.Bounds) (first, second *bench) {
	t.Helper()
	b := newBench(t, func(cfg *control.Config) { cfg.Bounds = bounds })
	org := outboard.Organization{ID: outboard.NewID[outboard.OrgID](outboard.PrefixOrg), Name: "second",
		CreatedAt: time.Now()}
	if err := b.store.AddOrg(t.Context(), org); err != nil {
		t.Fatal(err)
	}
	putKey(b, outboard.Key{Name: "second", Org: org.ID, Role: outboard.RoleAdmin}, "obk_second")
	other := *b
	other.key = "obk_second"
	return b, &other
}

func alone(t *testing.T, bounds control.Bounds) *bench {
	t.Helper()
	return newBench(t, func(cfg *control.Config) { cfg.Bounds = bounds })
}

// Broken if one organization can take all streams of a server, a stream that has ended counts, an organization that is
// alone gets a part only, or the refusal does not name the settings.
func TestStreamsOfOrganizations(t *testing.T) {
	a, b := bounded(t, control.Bounds{Streams: 8})
	mine := a.session()
	path := "/v1/sessions/" + mine + "/events/stream"
	var feeds []*feed
	for range 2 { // a quarter of eight
		feeds = append(feeds, a.follow(mine, ""))
	}
	r := a.refused(429, "may have 2 (limits.organization_percent of limits.streams)", "GET", path, nil)
	if r.str("error.type") != "rate_limit_error" {
		t.Errorf("the refusal is %s", r.body)
	}
	b.follow(b.session(), "")

	feeds[0].close()
	for { // the server learns of it by the connection's end
		resp, err := http.DefaultClient.Do(a.request("GET", path))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == 200 {
			break
		}
	}

	only := alone(t, control.Bounds{Streams: 4})
	own := only.session()
	for range 4 {
		only.follow(own, "")
	}
	only.refused(429, "4 streams open, and may have 4 (limits.streams)", "GET", "/v1/sessions/"+own+"/events/stream",
		nil)
}

// request is one with the bench's key.
func (b *bench) request(method, path string) *http.Request {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", b.key)
	return req
}

// uploads stores a file, or expects a refusal of the limit with the words.
func (b *bench) uploads(name, content, refusal string) string {
	b.t.Helper()
	r := b.upload("file", name+":"+content)
	if refusal == "" {
		if r.status != 200 {
			b.t.Errorf("storing %s: %d %s", name, r.status, r.body)
		}
	} else if r.status != 429 || r.str("error.type") != "rate_limit_error" ||
		!strings.Contains(r.str("error.message"), refusal) {
		b.t.Errorf("storing %s: %d %s, want a refusal with %q", name, r.status, r.body, refusal)
	}
	return r.str("id")
}

// Broken if the files of one organization can take all the room there is, one that deletes gets none back, an
// organization that is alone gets a part only, or the refusal does not name the settings.
func TestFilesOfOrganizations(t *testing.T) {
	a, b := bounded(t, control.Bounds{Files: 8})
	ids := []string{a.uploads("one", "1", ""), a.uploads("two", "2", "")}
	a.uploads("three", "3", "has 2 files, and may have 2 (limits.organization_percent of limits.files)")
	b.uploads("one", "1", "")
	a.ok("DELETE", "/v1/files/"+ids[0], nil)
	a.uploads("three", "3", "")

	a, b = bounded(t, control.Bounds{FileBytes: 800})
	kept := a.uploads("some", strings.Repeat("x", 60), "")
	a.uploads("same", strings.Repeat("x", 60), "") // content that is there already counts once
	const full = "are 60 bytes, and may be 200 (limits.organization_percent of limits.file_bytes)"
	a.uploads("much", strings.Repeat("y", 141), full)
	a.uploads("more", strings.Repeat("y", 5000), full)
	a.uploads("fits", strings.Repeat("y", 140), "")
	a.uploads("none", "z", "are 200 bytes, and may be 200")
	a.ok("POST", "/v1/sessions", a.with(kept)) // a copy, of content that is there
	b.uploads("much", strings.Repeat("y", 200), "")

	only := alone(t, control.Bounds{FileBytes: 400, Files: 2})
	only.uploads("all", strings.Repeat("x", 400), "")
	only.uploads("more", "y", "are 400 bytes, and may be 400 (limits.file_bytes)")
}

// Broken if a file that is attached to many sessions takes more than one of its organization's files each, unbounded.
func TestFilesOfSessionsCount(t *testing.T) {
	a, _ := bounded(t, control.Bounds{Files: 8})
	id := a.uploads("one", "1", "")
	a.ok("POST", "/v1/sessions", a.with(id))
	a.refused(429, "has 2 files, and may have 2", "POST", "/v1/sessions", a.with(id))
}

// with is a session that a file is attached to.
func (b *bench) with(file string) map[string]any {
	return map[string]any{"agent": b.agent(), "environment_id": b.environment(),
		"resources": []any{map[string]any{"type": "file", "file_id": file}}}
}
