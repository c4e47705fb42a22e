package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/store"
)

// socksServer is a SOCKS5 proxy that takes one name and password, and is the server behind it as well.
func socksServer(t *testing.T, name, password string) (address string, asked func() []string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var mu sync.Mutex
	var list []string
	login := fmt.Sprintf("\x01%c%s%c%s", len(name), name, len(password), password)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				said := make([]byte, 3+len(login)+10)
				io.ReadFull(c, said[:3])
				io.WriteString(c, "\x05\x02")
				io.ReadFull(c, said[3:3+len(login)])
				if string(said[:3+len(login)]) != "\x05\x01\x02"+login {
					io.WriteString(c, "\x01\x01")
					return
				}
				io.WriteString(c, "\x01\x00")
				io.ReadFull(c, said[3+len(login):])
				mu.Lock()
				list = append(list, fmt.Sprintf("%x", said[3+len(login):]))
				mu.Unlock()
				io.WriteString(c, "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nby a proxy")
				}
			}()
		}
	}()
	return l.Addr().String(), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), list...)
	}
}

// If this fails, egressProxy of the E2B API is not kept on the wire, its password gets into the database, the
// log or an answer, a fork has it, or it outlives the box.
func TestBoxProxy(t *testing.T) {
	const password = "the-password-for-a-proxy"
	address, asked := socksServer(t, "client", password)
	o := startOnline(t, config.Boxes{Networking: "unrestricted", Proxies: []string{address}})
	o.s.Stop()
	var log lockedBuffer
	o.log = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o.start()
	network := `"egressProxy":{"address":"` + address + `","username":"client","password":"` + password + `"}`
	box := o.box(`{"templateID":"base","network":{` + network + `}}`)
	if text := o.curl(box, "http://93.184.216.34/x"); text != "by a proxy" {
		t.Errorf("through the proxy: %q", text)
	}
	if got := asked(); len(got) != 1 || got[0] != "050100015db8d8220050" {
		t.Errorf("the proxy was asked for %v", got)
	}
	if text := o.curl(box, "http://127.0.0.1:"+o.port+"/x"); !strings.Contains(text, "not on the public internet") {
		t.Errorf("the operator's network: %q", text)
	}
	var detail struct {
		Network struct {
			EgressProxy map[string]string `json:"egressProxy"`
		} `json:"network"`
	}
	o.call("GET", "/sandboxes/"+box, "", &detail)
	if p := detail.Network.EgressProxy; len(p) != 2 || p["address"] != address || p["username"] != "client" {
		t.Errorf("the box is shown with %v", p)
	}
	if n, err := o.c.BoxNetwork(t.Context(), box); err != nil || n.Proxy != address {
		t.Errorf("its network is shown with %q, %v", n.Proxy, err)
	}
	rows, err := o.s.Store.AuditRecords(t.Context(), store.AuditQuery{Actor: box, Action: "http.request", Text: address,
		Limit: 10})
	if err != nil || len(rows) == 0 {
		t.Errorf("on record: %v, %v", rows, err)
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
	if text := o.curl(forks[0].Sandbox.SandboxID, "http://93.184.216.34/x"); !strings.Contains(text,
		"set the sandbox's network again") {
		t.Errorf("a fork: %q", text)
	}
	o.wantSealed(1, "while the box lives")
	if status := o.call("PUT", "/sandboxes/"+box+"/network", `{}`, nil); status != http.StatusNoContent {
		t.Errorf("taking it away: %d", status)
	}
	o.wantSealed(0, "without a proxy")
	if text := o.curl(box, "http://127.0.0.1:"+o.port+"/x"); !strings.Contains(text, "up /x") {
		t.Errorf("without a proxy: %q", text)
	}
	if got := asked(); len(got) != 1 {
		t.Errorf("the proxy was asked for %v", got)
	}
	if status := o.call("PUT", "/sandboxes/"+box+"/network", `{`+network+`}`, nil); status != http.StatusNoContent {
		t.Errorf("setting it again: %d", status)
	}
	o.wantSealed(1, "set again")
	o.call("DELETE", "/sandboxes/"+box, "", nil)
	o.wantSealed(0, "of a box that is gone")
	o.s.Stop()
	o.noText(password)
	if bytes.Contains(log.Bytes(), []byte(password)) || len(log.Bytes()) == 0 {
		t.Error("the log has the password, or nothing")
	}
}
