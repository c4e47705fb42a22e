package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/store"
)

// heard is what a server was sent under a header, the last time.
type heard struct {
	mu    sync.Mutex
	value string
}

func (h *heard) last() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.value
}

// curl is what a program inside gets from an address.
func (o *online) curl(box, address string) string {
	o.t.Helper()
	var out strings.Builder
	for e, err := range o.c.StartProcess(o.t.Context(), box,
		map[string]any{"argv": []string{"curl", "-s", "--noproxy", "", "-m", "20", "-H", "X-Key: of-the-client",
			address}}) {
		if err != nil {
			o.t.Fatal(err)
		}
		out.WriteString(string(e.Data))
	}
	return out.String()
}

// If this fails, a rule of the E2B API to set a header is not kept on the wire, its value gets into the sandbox,
// the database, the log or an answer, another box or a fork gets it, or it stays when the box was killed or has
// other rules.
func TestBoxHeaders(t *testing.T) {
	const key = "the-value-of-a-header-that-is-secret"
	o := startOnline(t, config.Boxes{Networking: "unrestricted"})
	var got heard
	up := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.mu.Lock()
		got.value = r.Header.Get("X-Key")
		got.mu.Unlock()
		fmt.Fprintln(w, "you said", r.Header.Get("X-Key"))
	}))
	t.Cleanup(up.Close)
	at, _ := url.Parse(up.URL)
	o.s.Stop()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: up.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	o.cfg.Egress.CAFiles, o.log = []string{ca}, slog.New(slog.NewJSONHandler(&log,
		&slog.HandlerOptions{Level: slog.LevelDebug}))
	o.start()
	address := "https://127.0.0.1:" + at.Port() + "/x"
	const rules = `"rules":{"127.0.0.1":[{"transform":{"headers":{"x-key":"` + key + `"}}}]}`
	box, plain := o.box(`{"templateID":"base","network":{`+rules+`}}`), o.box(`{"templateID":"base"}`)

	for id, want := range map[string]string{box: `{"template":"base","headers":{"127.0.0.1":["X-Key"]}}`,
		plain: `{"template":"base"}`} {
		said, err := o.s.Store.AuditRecords(t.Context(), store.AuditQuery{Action: "box.create", Text: id, Limit: 2})
		if err != nil || len(said) != 1 || string(said[0].Detail) != want {
			t.Errorf("of a new box the audit says %v, %v; want %s", said, err, want)
		}
	}
	if text := o.curl(plain, address); got.last() != "of-the-client" || !strings.Contains(text, "of-the-client") {
		t.Fatalf("the control: the server was sent %q, the client %q", got.last(), text)
	}
	if text := o.curl(box, address); got.last() != key || strings.Contains(text, key) ||
		!strings.Contains(text, "you said") {
		t.Errorf("the server was sent %q, the client %q", got.last(), text)
	}
	if text := o.curl(box, "http://127.0.0.1:"+o.port+"/x"); !strings.Contains(text, "over https only") {
		t.Errorf("in the clear: %q", text)
	}
	// the same again, sealed anew
	if status := o.call("PUT", "/sandboxes/"+box+"/network", `{`+rules+`}`, nil); status != http.StatusNoContent {
		t.Errorf("setting the rules again: %d", status)
	}
	var detail map[string]any
	o.call("GET", "/sandboxes/"+box, "", &detail)
	if text := fmt.Sprint(detail); strings.Contains(text, key) || !strings.Contains(text, "X-Key:[secret]") {
		t.Errorf("the box is shown as %s", text)
	}
	var forks []struct {
		Sandbox struct {
			SandboxID string `json:"sandboxID"`
		} `json:"sandbox"`
	}
	if status := o.call("POST", "/sandboxes/"+box+"/fork", `{"timeout":300}`, &forks); status != http.StatusCreated ||
		len(forks) != 1 {
		t.Fatalf("forking: %d %+v", status, forks)
	}
	if o.curl(forks[0].Sandbox.SandboxID, address); got.last() != "of-the-client" {
		t.Errorf("a fork sends %q", got.last())
	}

	o.s.Stop()
	o.start()
	if o.curl(box, address); got.last() != key {
		t.Errorf("after a restart the server was sent %q", got.last())
	}
	o.wantSealed(1, "while the box lives")
	if status := o.call("PUT", "/sandboxes/"+box+"/network", `{}`, nil); status != http.StatusNoContent {
		t.Errorf("taking the rules away: %d", status)
	}
	o.wantSealed(0, "without rules")
	if o.curl(box, address); got.last() != "of-the-client" {
		t.Errorf("without rules the server was sent %q", got.last())
	}
	for _, end := range []func(string){
		func(id string) {
			if status := o.call("DELETE", "/sandboxes/"+id, "", nil); status != http.StatusNoContent {
				t.Errorf("killing: %d", status)
			}
		},
		func(id string) {
			o.call("POST", "/sandboxes/"+id+"/timeout", `{"timeout":0}`, nil)
			for until := time.Now().Add(time.Minute); o.call("GET", "/sandboxes/"+id, "", nil) != http.StatusNotFound &&
				time.Now().Before(until); {
				time.Sleep(20 * time.Millisecond) // its time is over; the server looks every second
			}
		},
	} {
		ending := o.box(`{"templateID":"base","network":{` + rules + `}}`)
		o.wantSealed(1, "of a new box")
		end(ending)
		o.wantSealed(0, "of a box that is gone")
	}
	o.s.Stop()
	o.noText(key)
	if bytes.Contains(log.Bytes(), []byte(key)) || !bytes.Contains(log.Bytes(), []byte("127.0.0.1")) {
		t.Error("the log has the value, or nothing of what was asked for")
	}
}

// wantSealed counts the sealed headers of boxes.
func (o *online) wantSealed(want int, when string) {
	o.t.Helper()
	list, err := o.s.Store.BoxCredentials(o.t.Context(), time.Now().Add(time.Hour))
	// the row of a box whose time is over goes first
	for until := time.Now().Add(time.Minute); err == nil && len(list) > want && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
		list, err = o.s.Store.BoxCredentials(o.t.Context(), time.Now().Add(time.Hour))
	}
	if err != nil || len(list) != want {
		o.t.Errorf("%s there are %d sealed headers, want %d: %v", when, len(list), want, err)
	}
}

// noText looks for a text in every file of the server's directory, after one that is there was found.
func (o *online) noText(text string) {
	o.t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(o.data, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // what a sandbox leaves behind may go while it is looked at
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for _, s := range []string{text, "box.network"} {
			found[s] = found[s] || bytes.Contains(b, []byte(s))
		}
		return nil
	})
	if err != nil || found[text] || !found["box.network"] {
		o.t.Errorf("in the files of the server: %v, %v", found, err)
	}
}
