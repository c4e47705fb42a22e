package egress_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/egress"
)

// Broken if a secret of letters that mean something in a form or in JSON arrives as another one, or a short body
// with a placeholder is sent without a length, which not every server takes.
func TestPlaceholderInABody(t *testing.T) {
	const ph, value = "sk-outboard0123456789abcdef0123456789abcdef01234567", `a+b/c==&d=%41"e\f` + "\n<g>"
	r := newRig(t, rules(anyPort("a.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			Replace: []egress.Placeholder{{Placeholder: ph, Value: value, Header: true, Body: true}}}}))
	var body, kind string
	var length int64
	r.mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		body, length, kind = string(b), q.ContentLength, q.Header.Get("Content-Type")
	})
	form := func(s string) string {
		v, err := url.ParseQuery(s)
		if err != nil || v.Get("more") != "1" {
			t.Errorf("no form: %q, %v", s, err)
		}
		return v.Get("k")
	}
	object := func(s string) string {
		var v struct{ K, More string }
		if err := json.Unmarshal([]byte(s), &v); err != nil || v.More != "1" {
			t.Errorf("no JSON: %q, %v", s, err)
		}
		return v.K
	}
	raw := func(s string) string { return strings.TrimSuffix(s, " more") }
	const ofForm, ofJSON = "application/x-www-form-urlencoded", "application/json; charset=utf-8"
	long := strings.Repeat("x", 40<<10)
	for _, c := range []struct {
		kind, body string
		read       func(string) string
		size       bool // what is sent has a length
	}{
		{ofForm, "k=" + ph + "&more=1", form, true},
		{ofForm + ";charset=UTF-8", "more=1&k=" + ph, form, true},
		{ofForm, "more=1&k=" + ph + "&x=" + long, form, false},
		{ofJSON, `{"K":"` + ph + `","More":"1"}`, object, true},
		// what a client calls JSON that it does not name
		{ofForm, "\n" + `{"K":"` + ph + `","More":"1"}`, object, true},
		{ofJSON, `{"K":"` + ph + `","More":"1","x":"` + long + `"}`, object, false},
		{"text/plain", ph + " more", raw, true},
		{"", ph + " more", raw, true},
	} {
		for _, port := range []string{r.http("a.test", "/"), r.https("a.test", "/")} {
			q, err := http.NewRequestWithContext(t.Context(), "POST", port, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Content-Type", c.kind)
			resp, err := r.client(false).Do(q)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := c.read(body); resp.StatusCode != 200 || got != value || kind != c.kind {
				t.Errorf("%s of %d bytes: %d, the server read %q", c.kind, len(c.body), resp.StatusCode, got)
			}
			if c.size != (length == int64(len(body))) {
				t.Errorf("%s of %d bytes: sent as %d of %d", c.kind, len(c.body), length, len(body))
			}
		}
	}
}
