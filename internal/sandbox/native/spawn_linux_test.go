package native

import (
	"encoding/binary"
	"io"
	"maps"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/guest/form"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// If this fails, a started sandbox whose variables are more than a socket takes at once is told a part of them,
// and ends or waits for ever.
func TestIdentifyMoreThanTheSocketTakes(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "control")
		conn, err := net.FileConn(f)
		if f.Close(); err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ends[i] = conn.(*net.UnixConn)
	}
	if err := ends[0].SetWriteBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	b := &birth{control: ends[0]}
	filler := make([]byte, 1<<20)
	if n := b.put(filler); n == 0 || n == len(filler) {
		t.Fatalf("the socket took %d bytes at once: this test shows nothing", n)
	} else if _, err := io.ReadFull(ends[1], filler[:n]); err != nil {
		t.Fatal(err)
	}
	spec := sandbox.Spec{Generation: "g", Env: map[string]string{"A": strings.Repeat("a", 200<<10), "B": "b"}}
	told := make(chan error, 1)
	go func() { told <- b.identify(spec, "") }()
	var head [4]byte
	if _, err := io.ReadFull(ends[1], head[:]); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(ends[1], body); err != nil {
		t.Fatal(err)
	}
	var id boot.Identity
	if err := form.Decode(body, &id); err != nil {
		t.Fatal(err)
	}
	if err := <-told; err != nil || id.Generation != "g" || !maps.Equal(id.Env, environment(spec, "")) {
		t.Errorf("told %v: generation %q and %d variables", err, id.Generation, len(id.Env))
	}
}
