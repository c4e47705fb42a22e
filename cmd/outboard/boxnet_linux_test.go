package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/e2b"
	"github.com/outboard-dev/outboard/internal/server"
)

// online is a server that lets boxes reach loopback, with a server there to reach.
type online struct {
	t    *testing.T
	data string
	cfg  *config.Config
	s    *process
	c    *client.Client
	port string
	log  *slog.Logger // nil = none is kept
	// resolve looks up the names that the server dials; nil = as ever.
	resolve func(context.Context, string) ([]netip.Addr, error)
}

func startOnline(t *testing.T, most config.Boxes) *online {
	t.Helper()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprintln(w, "up", r.URL.Path)
	}))
	t.Cleanup(up.Close)
	at, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := &online{t: t, data: t.TempDir(), port: at.Port(),
		cfg: &config.Config{Egress: config.Egress{PrivateNetworks: []string{"127.0.0.0/8"}, Boxes: most}}}
	o.start()
	t.Cleanup(func() {
		o.s.Stop()
		removeSandboxes(t, filepath.Join(o.data, "sandboxes"))
	})
	if o.s.Problem != nil {
		noSandbox(t, o.s.Problem)
	}
	return o
}

func (o *online) start() {
	o.t.Helper()
	var err error
	o.s, err = startServer(context.Background(), server.Config{Data: o.data, Config: o.cfg,
		Env: func(name string) string {
			return map[string]string{"OUTBOARD_GUEST": guestPath}[name]
		}, Logger: o.log, Serve: true, Work: true, Listen: "127.0.0.1:0", E2B: "127.0.0.1:0", Grace: time.Second, Resolve: o.resolve})
	if err != nil {
		o.t.Fatal(err)
	}
	key, err := readKey(o.data)
	if err != nil {
		o.t.Fatal(err)
	}
	if o.c, err = client.New(client.Config{URL: o.s.URL, Key: key}); err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(o.c.Close)
}

// call asks the E2B API.
func (o *online) call(method, path, body string, out any) int {
	o.t.Helper()
	key, err := readKey(o.data)
	if err != nil {
		o.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(o.t.Context(), method, o.s.E2BURL+path, strings.NewReader(body))
	if err != nil {
		o.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", e2b.APIKey(key))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		o.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	if out != nil && res.StatusCode < 300 {
		if err := json.Unmarshal(text, out); err != nil {
			o.t.Fatalf("%s %s: %s", method, path, text)
		}
	}
	return res.StatusCode
}

func (o *online) box(body string) string {
	o.t.Helper()
	var out struct {
		SandboxID string `json:"sandboxID"`
	}
	if status := o.call("POST", "/v2/sandboxes", body, &out); status != http.StatusCreated {
		o.t.Fatalf("making a sandbox of %s: %d", body, status)
	}
	return out.SandboxID
}

// status is what a program inside gets from a host: an HTTP status, or 000 for none.
func (o *online) status(box, host string) string { return o.request(box, "GET", host, "/x") }

func (o *online) request(box, method, host, path string) string {
	o.t.Helper()
	argv := []string{"curl", "-s", "-X", method, "--noproxy", "", // else it asks its own loopback
		"-o", "/dev/null", "-m", "20", "-w", "%{http_code}", "http://" + host + ":" + o.port + path}
	var out strings.Builder
	for e, err := range o.c.StartProcess(o.t.Context(), box, map[string]any{"argv": argv}) {
		if err != nil {
			o.t.Fatal(err)
		}
		out.WriteString(string(e.Data))
	}
	return out.String()
}

func (o *online) want(box, host, status string) {
	o.t.Helper()
	if got := o.status(box, host); got != status {
		o.t.Errorf("%s gets %s from %s, want %s", box, got, host, status)
	}
}

// If this fails, a box of the E2B API reaches what nobody allowed, or does not reach what its settings and the
// server's bound allow; a change of the settings does not hold at once; or they are lost by a pause, a fork or a
// restart of the server.
func TestBoxNetwork(t *testing.T) {
	o := startOnline(t, config.Boxes{Networking: "unrestricted"})
	const only = `"network":{"denyOut":["0.0.0.0/0"],"allowOut":["127.0.0.1"]}`
	open, some, none := o.box(`{"templateID":"base"}`), o.box(`{"templateID":"base",`+only+`}`), o.box(`{"templateID":"base","allow_internet_access":false}`)
	o.want(open, "127.0.0.1", "200")
	o.want(some, "127.0.0.1", "200")
	o.want(some, "127.0.0.2", "403")
	o.want(none, "127.0.0.1", "000")
	if status := o.call("PUT", "/sandboxes/"+none+"/network", `{}`, nil); status != http.StatusConflict {
		t.Errorf("opening a box without a network: %d", status)
	}

	if status := o.call("PUT", "/sandboxes/"+open+"/network", `{"denyOut":["127.0.0.2"]}`,
		nil); status != http.StatusNoContent {
		t.Errorf("denying an address: %d", status)
	}
	o.want(open, "127.0.0.1", "200")
	o.want(open, "127.0.0.2", "403")
	for body, want := range map[string][2]string{
		`{"denyOut":["127.0.0.0/8"],"allowOut":["127.0.0.2"]}`:    {"403", "502"}, // nobody listens there
		`{"denyOut":["0.0.0.0/0"],"allowOut":["127.0.0.0/31"]}`:   {"200", "403"},
		`{"denyOut":["127.0.0.0/24"],"allowOut":["127.0.0.0/8"]}`: {"200", "502"},
	} {
		if status := o.call("PUT", "/sandboxes/"+open+"/network", body, nil); status != http.StatusNoContent {
			t.Errorf("%s: %d", body, status)
		}
		o.want(open, "127.0.0.1", want[0])
		o.want(open, "127.0.0.2", want[1])
	}
	if status := o.call("PUT", "/sandboxes/"+open+"/network", `{"allow_internet_access":false}`,
		nil); status != http.StatusNoContent {
		t.Errorf("closing a box: %d", status)
	}
	o.want(open, "127.0.0.1", "403")

	for _, memory := range []string{"true", "false"} { // frozen, and as files that get a new machine
		if status := o.call("POST", "/sandboxes/"+some+"/pause", `{"memory":`+memory+`}`,
			nil); status != http.StatusNoContent {
			t.Fatalf("pausing: %d", status)
		}
		if status := o.call("POST", "/v2/sandboxes/"+some+"/connect", `{}`, nil); status != http.StatusCreated {
			t.Fatalf("resuming: %d", status)
		}
		o.want(some, "127.0.0.1", "200")
		o.want(some, "127.0.0.2", "403")
	}
	var forks []struct {
		Sandbox struct {
			SandboxID string `json:"sandboxID"`
		} `json:"sandbox"`
	}
	if status := o.call("POST", "/sandboxes/"+some+"/fork", `{"timeout":300}`, &forks); status != http.StatusCreated ||
		len(forks) != 1 {
		t.Fatalf("forking: %d %+v", status, forks)
	}
	o.want(forks[0].Sandbox.SandboxID, "127.0.0.1", "200")
	o.want(forks[0].Sandbox.SandboxID, "127.0.0.2", "403")

	o.s.Stop()
	o.cfg.Egress.Boxes = config.Boxes{AllowedHosts: []string{"127.0.0.2"}} // the operator's mind has changed
	o.start()
	o.want(some, "127.0.0.1", "403")
	o.want(some, "127.0.0.2", "403")
	o.want(none, "127.0.0.1", "000")
	if status := o.call("POST", "/v2/sandboxes", `{"templateID":"base",`+only+`}`,
		nil); status != http.StatusForbidden {
		t.Errorf("a box that wants more than there is: %d", status)
	}
	o.s.Stop()
	o.cfg.Egress.Boxes = config.Boxes{Networking: "unrestricted"}
	o.start()
	o.want(some, "127.0.0.1", "200")
	o.want(some, "127.0.0.2", "403")
}

// If this fails, boxes reach the network on a server whose operator never said so.
func TestBoxNetworkDefault(t *testing.T) {
	o := startOnline(t, config.Boxes{})
	box := o.box(`{"templateID":"base","allow_internet_access":true}`)
	o.want(box, "away.example", "403") // loopback is the sandbox's own, and no question of rules
	log, err := o.c.BoxNetworkLog(t.Context(), box, 10)
	if err != nil || len(log) != 1 || log[0].Decision != outboard.Refused || log[0].Rule != "default" ||
		!strings.Contains(string(log[0].Detail), "egress.boxes") {
		t.Errorf("what was recorded: %+v, %v", log, err)
	}
	n, err := o.c.BoxNetwork(t.Context(), box)
	if err != nil || n.Mode != "limited" || len(n.Allow) != 0 {
		t.Errorf("what it may reach: %+v, %v", n, err)
	}
}

// If this fails, the rules of egress.boxes let a box reach another host, port, method or path than they say, or
// not what they say.
func TestBoxNetworkRules(t *testing.T) {
	o := startOnline(t, config.Boxes{})
	port, err := strconv.Atoi(o.port)
	if err != nil {
		t.Fatal(err)
	}
	o.s.Stop()
	o.cfg.Egress.Boxes = config.Boxes{Rules: []config.BoxRule{{Host: "127.0.0.1", Port: port, Methods: []string{"GET"},
		Path: "/open/**"}, {Host: "127.0.0.1", Port: port, Path: "/open/shut", Deny: true},
		{Host: "127.0.0.3"}}} // which is not for that port
	o.start()
	box := o.box(`{"templateID":"base"}`)
	for _, c := range []struct{ method, host, path, want string }{{"GET", "127.0.0.1", "/open/a/b", "200"},
		{"POST", "127.0.0.1", "/open/a", "403"}, {"GET", "127.0.0.1", "/x", "403"},
		{"GET", "127.0.0.1", "/open/shut", "403"}, {"GET", "127.0.0.2", "/open/a", "403"}, {"GET", "127.0.0.3",
			"/open/a", "403"}} {
		if got := o.request(box, c.method, c.host, c.path); got != c.want {
			t.Errorf("%s %s%s: %s, want %s", c.method, c.host, c.path, got, c.want)
		}
	}
	n, err := o.c.BoxNetwork(t.Context(), box)
	if err != nil || len(n.Allow) != 3 || n.Allow[0].Port != port || n.Allow[0].Path != "/open/**" {
		t.Errorf("what it may reach: %+v, %v", n, err)
	}
}

// If this fails, a build of a template reaches what the organization's policy forbids.
func TestPolicyHoldsForBuilds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("layers are built as root only")
	}
	o := startOnline(t, config.Boxes{Networking: "unrestricted"})
	const host = "127.78.65.2"
	l, err := net.Listen("tcp", host+":80") // a build names hosts, not ports
	if err != nil {
		t.Fatal(err)
	}
	up := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go func() { _ = up.Serve(l) }() // until it is closed
	defer up.Close()
	build := func(name string) string {
		step := map[string]any{"type": "run", "command": `echo "` + name +
			`=$(curl -s --noproxy '' -o /dev/null -m 20 -w '%{http_code}' http://` + host + `/x)"`}
		b, err := o.c.BuildTemplate(t.Context(), map[string]any{"name": name, "allowed_hosts": []string{host},
			"steps": []any{step}})
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		for tick := time.NewTicker(50 * time.Millisecond); !b.Over(); <-tick.C {
			if b, err = o.c.TemplateBuild(t.Context(), name, b.ID); err != nil {
				t.Fatal(err)
			}
		}
		l, err := o.c.TemplateLog(t.Context(), name, b.ID, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range l.Data {
			log.WriteString(line.Message + "\n")
		}
		return log.String()
	}
	if log := build("free"); !strings.Contains(log, "free=200") { // the control
		t.Errorf("without a policy:\n%s", log)
	}
	if _, err := o.c.SavePolicy(t.Context(), "organization", "",
		`@id("no-loopback") forbid (principal, action == Action::"http.request", resource) when { context.host == "`+host+`" };`); err != nil {
		t.Fatal(err)
	}
	if log := build("bound"); !strings.Contains(log, "bound=403") {
		t.Errorf("against the policy:\n%s", log)
	}
}

// If this fails, the kill switch leaves connections of boxes open.
func TestKillCutsBoxNetwork(t *testing.T) {
	o := startOnline(t, config.Boxes{Networking: "unrestricted"})
	begun, ended := make(chan struct{}), make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-r.Context().Done()
		close(ended)
	}))
	defer func() { up.CloseClientConnections(); up.Close() }()
	box := o.box(`{"templateID":"base"}`)
	for e, err := range o.c.StartProcess(t.Context(), box,
		map[string]any{"argv": []string{"curl", "-sN", "--noproxy", "", up.URL}}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "process.started" {
			break // leaving does not end it
		}
	}
	<-begun
	select {
	case <-ended:
		t.Fatal("the stream ended by itself")
	default:
	}
	k, err := o.c.Kill(t.Context(), client.NewKill{Scope: "all", Level: "pause", Reason: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	<-ended
	if k.Flows != 0 {
		t.Errorf("%d connections are left", k.Flows)
	}
	if err := o.c.LiftKill(t.Context(), k.Kill.ID); err != nil {
		t.Fatal(err)
	}
	o.want(box, "127.0.0.1", "200")
}
