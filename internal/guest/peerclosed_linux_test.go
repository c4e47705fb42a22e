package guest

import (
	"net"
	"path/filepath"
	"testing"
)

// pair returns the ends of a connection over a unix socket.
func pair(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if here, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if there, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close(); there.Close() })
	return here, there
}

// If this fails, a call is promised to a sandbox whose end could have been known, and what became of the call is
// unknown.
func TestPeerClosed(t *testing.T) {
	here, there := pair(t)
	for _, c := range []struct {
		what string
		do   func()
		want bool
	}{
		{"a new connection", func() {}, false},
		{"with something to read", func() { there.Write([]byte{1}) }, false},
		{"closed, with something to read", func() { there.Close() }, false},
		{"closed, with all read", func() { here.Read(make([]byte, 1)) }, true},
		{"closed here", func() { here.Close() }, true},
	} {
		if c.do(); peerClosed(here) != c.want {
			t.Errorf("%s: hung up is %v", c.what, !c.want)
		}
	}

	here, there = pair(t)
	c := NewClient(here)
	defer c.Close()
	if !c.Connected() {
		t.Error("a new client is not connected")
	}
	if there.Close(); c.Connected() {
		t.Error("a client whose guest has gone is connected")
	}
}
