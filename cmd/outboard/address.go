package main

import (
	"encoding/json"
	"net"
	"net/url"
	"os"
	"path/filepath"
)

// address is the file server.json of a data directory: where a running server answers. It is a hint; whoever reads it verifies
// that the process is still the one that wrote it before sending it a key.
type address struct {
	URL   string `json:"url"`
	PID   int    `json:"pid"`
	Start string `json:"start"` // see processStart
	Kern  string `json:"kernel"`
}

func addressPath(data string) string { return filepath.Join(data, "server.json") }

// localURL is how this machine reaches a server that may listen on every address.
func localURL(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return server
	}
	ip := net.ParseIP(u.Hostname())
	switch {
	case ip == nil || !ip.IsUnspecified():
		return server
	case ip.To4() != nil:
		u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	default:
		u.Host = net.JoinHostPort("::1", u.Port())
	}
	return u.String()
}

// publish writes where this process answers.
func publish(data, url string) error {
	pid := os.Getpid()
	b, err := json.Marshal(address{URL: url, PID: pid, Start: processStart(pid), Kern: kernelID()})
	if err != nil {
		return err
	}
	return writePrivate(addressPath(data), string(b)+"\n")
}

// withdraw removes what publish wrote, unless another server has written since.
func withdraw(data string) error {
	if a, ok := readAddress(data); !ok || a.PID != os.Getpid() {
		return nil
	}
	return os.Remove(addressPath(data))
}

// readAddress returns the address of a server that is alive as far as this machine can tell.
func readAddress(data string) (address, bool) {
	var a address
	b, err := os.ReadFile(addressPath(data))
	if err != nil || json.Unmarshal(b, &a) != nil || a.URL == "" {
		return a, false
	}
	if a.Kern != "" && (a.Kern != kernelID() || processStart(a.PID) != a.Start) {
		return a, false
	}
	return a, true
}
