//go:build linux

package e2b

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
)

// If this fails, a program in a box gets a credential of the server that a client sends along, by any way to a
// port, or does not get its own.
func TestCredentialsStayOutside(t *testing.T) {
	r := newRig(t)
	var box sandboxOut
	if status := r.api("POST", "/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`,
		&box); status != http.StatusCreated {
		t.Fatalf("a private box: %d", status)
	}
	t.Cleanup(func() { r.api("DELETE", "/sandboxes/"+box.SandboxID, "", nil) })
	seen := make(chan http.Header, 1)
	program := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		req *http.Request) {
		seen <- req.Header
	}))
	program.Config.Protocols = new(http.Protocols)
	program.Config.Protocols.SetHTTP1(true)
	program.Config.Protocols.SetUnencryptedHTTP2(true)
	program.Start()
	t.Cleanup(program.Close)
	port := fmt.Sprint(program.Listener.Addr().(*net.TCPAddr).Port)
	http2 := &http.Transport{Protocols: new(http.Protocols)}
	http2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(http2.CloseIdleConnections)
	url := doors(t, r.srv)["http"]
	byHost := func(req *http.Request) { req.Host = port + "-" + box.SandboxID + ".localhost" }
	basic := func(name, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))
	}
	for way, c := range map[string]struct {
		transport http.RoundTripper
		change    func(*http.Request)
	}{
		"by the host's name": {http.DefaultTransport, byHost},
		"by headers": {http.DefaultTransport, func(req *http.Request) {
			req.Header.Set("E2b-Sandbox-Id", box.SandboxID)
			req.Header.Set("E2b-Sandbox-Port", port)
		}},
		"as a WebSocket": {http.DefaultTransport, func(req *http.Request) {
			byHost(req)
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "websocket")
		}},
		"as gRPC": {http2, func(req *http.Request) {
			byHost(req)
			req.Header.Set("Content-Type", "application/grpc")
		}},
	} {
		for _, h := range []struct {
			name, value string
			arrives     bool
		}{
			{"X-Api-Key", r.key, false},
			{"X-Api-Key", r.back.Key, false},
			{"X-Api-Key", "sk-the-program's", true},
			{"Authorization", "Bearer " + r.back.Key, false},
			{"Authorization", "bearer  " + r.key, false},
			{"Authorization", "Bearer e2b_00ff", true},
			{"Authorization", "Bearer obk_" + "of-another-server", true},
			{"Authorization", basic("x", r.back.Key), false},
			{"Authorization", basic(r.key, ""), false},
			{"Authorization", basic("x", "y"), true},
			{"X-Access-Token", box.EnvdAccessToken, false},
			{"X-Access-Token", "the program's", true},
			{"Authorization", "Bearer " + *box.TrafficAccessToken, false},
		} {
			req, err := http.NewRequestWithContext(t.Context(), "POST", url, nil)
			if err != nil {
				t.Fatal(err)
			}
			c.change(req)
			req.Header.Set(trafficHeader, *box.TrafficAccessToken)
			req.Header.Set(h.name, h.value)
			res, err := c.transport.RoundTrip(req)
			if err != nil {
				t.Fatalf("%s, %s: %v", way, h.name, err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Fatalf("%s, %s: %s", way, h.name, res.Status)
			}
			got := <-seen
			if arrived := slices.Equal(got[h.name], []string{h.value}); arrived != h.arrives || !h.arrives &&
				len(got[h.name]) != 0 {
				t.Errorf("%s, %s: %q: the program gets %q", way, h.name, h.value, got[h.name])
			}
			if len(got[trafficHeader])+len(got["E2b-Sandbox-Id"])+len(got["E2b-Sandbox-Port"]) != 0 {
				t.Errorf("%s: the program gets %v", way, got)
			}
		}
	}
}
