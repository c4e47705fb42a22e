package egress_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Broken if the HTTP library answers or tidies up a request before the gateway has judged and recorded what was sent.
func TestFormIsJudged(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	for _, tc := range []struct {
		port int
		text string
		want int
	}{
		{3128, "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n", 200},
		{3128, "CONNECT @a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n", 400},
		{3128, "CONNECT user:pw@a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n", 400},
		{80, "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n", 400},
	} {
		before := len(r.audit(t))
		conn, err := r.dial(tc.port)
		if err != nil {
			t.Fatal(err)
		}
		got, body := exchange(t, conn, tc.text)
		conn.Close()
		if !slices.Equal(got, []int{tc.want}) {
			t.Errorf("%q: %d %s", tc.text, got, body)
		}
		list := r.audit(t)[before:]
		if tc.want == 400 && (len(list) != 1 || list[0].Decision != outboard.Refused ||
			!strings.Contains(body, "outboard:")) {
			t.Errorf("%q: recorded as %+v, answered %q", tc.text, list, body)
		}
	}
}
