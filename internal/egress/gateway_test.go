package egress_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// anyPort lets in everything to a host.
func anyPort(host string) outboard.NetRule {
	return outboard.NetRule{Host: host, Port: -1, WebSocket: true}
}

// Broken if an allowed request does not arrive as it was sent, by either way out, or a denied one arrives at all.
func TestForward(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/echo", func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		w.Header().Set("X-Proto", q.Proto)
		fmt.Fprintf(w, "%s %s %s %s", q.Method, q.Host, q.URL.RawQuery, body)
	})
	for _, proxy := range []bool{true, false} {
		c := r.client(proxy)
		for _, url := range []string{r.https("a.test", "/echo?b=1;c&d=%zz"), r.http("a.test", "/echo?b=1;c&d=%zz")} {
			resp, err := c.Post(url, "text/plain", strings.NewReader("hello"))
			if err != nil {
				t.Fatalf("%s (proxy %v): %v", url, proxy, err)
			}
			got, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			want := "POST " + strings.TrimPrefix(strings.TrimPrefix(strings.Split(url, "/echo")[0], "https://"),
				"http://") + " b=1;c&d=%zz hello"
			if string(got) != want {
				t.Errorf("%s (proxy %v): %q, want %q", url, proxy, got, want)
			}
			if strings.HasPrefix(url, "https") && resp.ProtoMajor != 2 {
				t.Errorf("%s (proxy %v) is served over %s", url, proxy, resp.Proto)
			}
		}
		before := r.hits.Load()
		for _, url := range []string{r.http("b.test", "/echo"), r.https("b.test", "/echo")} {
			status, body := get(t, c, url)
			if status != 403 && !(proxy && strings.HasPrefix(url, "https") && strings.Contains(body, "Forbidden")) {
				t.Errorf("%s (proxy %v): %d %s", url, proxy, status, body)
			}
			if status == 403 && !strings.Contains(body, "outboard net allow "+string(r.session)+" b.test") {
				t.Errorf("the refusal does not say what to do: %s", body)
			}
		}
		if n := r.hits.Load() - before; n != 0 {
			t.Errorf("%d denied requests arrived", n)
		}
	}
	allowed, denied := 0, 0
	for _, a := range r.audit(t) {
		switch {
		case a.Decision == outboard.Allowed && a.Rule == "rules[0]" && strings.Contains(a.Resource, "a.test") &&
			!strings.Contains(a.Resource, "?"):
			allowed++
		case a.Decision == outboard.Refused && a.Rule == "default" && strings.Contains(a.Resource, "b.test"):
			denied++
		default:
			t.Errorf("odd record %+v", a)
		}
	}
	if allowed != 4 || denied != 4 {
		t.Errorf("%d allowed, %d denied", allowed, denied)
	}
}
