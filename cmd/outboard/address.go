package main

import (
	"cmp"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard/internal/server"
)

// address says where a running server of a data directory answers. Each server writes one into servers/PID.json;
// server.json is that of the server that started last. It is a hint: a reader verifies that the process is still
// the one that wrote it before sending it a key.
type address struct {
	URL   string `json:"url"`
	PID   int    `json:"pid"`
	Start string `json:"start"` // see server.ProcessStart
	Kern  string `json:"kernel"`
	// Name and Certificate say whom to expect with https: a name in the certificate, and the certificate itself in PEM.
	Name        string    `json:"name,omitempty"`
	Certificate string    `json:"certificate,omitempty"`
	Since       time.Time `json:"since"`
	// a background server ends after so long without work; "" = it stays
	Idle    string `json:"idle,omitempty"`
	Problem string `json:"problem,omitempty"` // why no sandbox can be made
}

func addressPath(data string) string { return filepath.Join(data, "server.json") }
func serversDir(data string) string  { return filepath.Join(data, "servers") }

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
func publish(data string, at address) error {
	at.PID = os.Getpid()
	at.Start, at.Kern = server.ProcessStart(at.PID), server.KernelID()
	b, err := json.Marshal(at)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(serversDir(data), 0o700); err != nil {
		return err
	}
	if err := writePrivate(filepath.Join(serversDir(data), strconv.Itoa(at.PID)+".json"), string(b)+"\n"); err != nil {
		return err
	}
	return writePrivate(addressPath(data), string(b)+"\n")
}

// withdraw removes what publish wrote. When server.json was this process's, it becomes that of another server of
// the directory.
func withdraw(data string) error {
	err := os.Remove(filepath.Join(serversDir(data), strconv.Itoa(os.Getpid())+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if a, ok := readOne(addressPath(data)); !ok || a.PID != os.Getpid() {
		return err
	}
	for _, other := range servers(data) {
		if other.PID == os.Getpid() {
			continue
		}
		b, bad := json.Marshal(other)
		if bad == nil {
			bad = writePrivate(addressPath(data), string(b)+"\n")
		}
		return errors.Join(err, bad)
	}
	return errors.Join(err, os.Remove(addressPath(data)))
}

// readAddress returns the address of a server of the directory that is alive as far as this machine can tell.
func readAddress(data string) (address, bool) {
	if a, ok := readOne(addressPath(data)); ok {
		return a, true
	}
	if all := servers(data); len(all) > 0 {
		return all[0], true
	}
	return address{}, false
}

// servers returns the living servers of a data directory, the last one to start first.
func servers(data string) []address {
	files, _ := filepath.Glob(filepath.Join(serversDir(data), "*.json")) // the pattern is fine
	var out []address
	for _, f := range files {
		a, ok := readOne(f)
		if ok && strconv.Itoa(a.PID)+".json" == filepath.Base(f) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b address) int { return cmp.Or(b.Since.Compare(a.Since), b.PID-a.PID) })
	return out
}

// readOne reads one file, and reports whether its process lives.
func readOne(path string) (address, bool) {
	var a address
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &a) != nil || a.URL == "" {
		return a, false
	}
	return a, a.Kern == "" || a.alive()
}

// alive reports whether the process that wrote the address is there, for certain.
func (a *address) alive() bool {
	return a.Kern != "" && a.Kern == server.KernelID() && a.Start != "" && server.ProcessStart(a.PID) == a.Start
}

// pin returns the one certificate that the server may show, in DER; nil without https.
func (a *address) pin() []byte {
	block, _ := pem.Decode([]byte(a.Certificate))
	if block == nil || !strings.HasPrefix(a.URL, "https://") {
		return nil
	}
	return block.Bytes
}
