package egress_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"golang.org/x/crypto/ssh"
)

// Broken if who tries SSH, as git does for git@HOST:PATH, is not told why it fails and what works, or nobody
// sees that it was tried.
func TestSSHIsRefusedInItsOwnTerms(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	for name, w := range map[string]*wire{"straight": r.wire(t, 22, false), "tunnel": r.wire(t, 3128, false)} {
		where := "CONNECT (no host)"
		if name == "tunnel" {
			where = "CONNECT ssh://a.test"
			fmt.Fprint(w, "CONNECT a.test:22 HTTP/1.1\r\nHost: a.test:22\r\n\r\n")
			if resp, err := http.ReadResponse(w.in, nil); err != nil || resp.StatusCode != 200 {
				t.Fatalf("%s: %v, %v", name, resp, err)
			}
		}
		before := len(r.audit(t))
		_, _, _, err := ssh.NewClientConn(w.Conn, "a.test:22", &ssh.ClientConfig{User: "git",
			HostKeyCallback: ssh.InsecureIgnoreHostKey()})
		if err == nil || !strings.Contains(err.Error(), `reason 7: "outboard: nothing leaves this sandbox by SSH`) ||
			!strings.Contains(err.Error(), "use https://") {
			t.Errorf("%s: the client says %v", name, err)
		}
		if rows := r.audit(t)[before:]; len(rows) != 1 || rows[0].Resource != where ||
			rows[0].Decision != outboard.Refused {
			t.Errorf("%s: the records are %+v", name, rows)
		}
	}
	r.mux.HandleFunc("SSH /", func(http.ResponseWriter, *http.Request) {})
	w := r.wire(t, portOf(r.plain), false) // the control: a method may begin like that
	w.say("SSH /", "\r\n")
	if resp, body := w.hear("GET"); resp.StatusCode != 200 {
		t.Errorf("a method with that beginning: %d %s", resp.StatusCode, body)
	}
}
