package egress_test

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
)

// Broken if a server can bring a secret back in the header of an interim answer, by whichever way requests take
// through the gateway.
func TestInterimAnswersAreCovered(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")), scrubbing())
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Link", "<"+q.Header.Get("Authorization")+">")
		w.WriteHeader(http.StatusEarlyHints)
		fmt.Fprint(w, "ok")
	})
	want := "<Bearer " + strings.Repeat("*", len(streamSecret)) + ">"
	for _, proxy := range []bool{false, true} {
		client := r.client(proxy)
		for _, url := range []string{r.http("a.test", "/"), r.https("a.test", "/")} {
			var early []string
			q, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
					early = append(early, h.Get("Link"))
					return nil
				}}), "GET", url, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if len(early) != 1 || early[0] != want || resp.Header.Get("Link") != want {
				t.Errorf("proxy %v, %s: early %q, then %q, want %q", proxy, url, early, resp.Header.Get("Link"), want)
			}
		}
	}
}
