package native

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
)

// If this fails, a sandbox that another version of the server left running is asked again and again, and its
// session waits for good instead of going on from its checkpoint; or one that answers for another sandbox is
// taken for it.
func TestGuestOfAnotherVersion(t *testing.T) {
	for hello, want := range map[string]string{
		`{"version":1,"generation":"g"}`:                                      "was started by another version",
		fmt.Sprintf(`{"version":%d,"generation":"x"}`, guest.ProtocolVersion): "is of another generation",
		fmt.Sprintf(`{"version":%d,"generation":"g"}`, guest.ProtocolVersion): "",
	} {
		dir := t.TempDir()
		l, err := net.Listen("unix", filepath.Join(dir, socketFile))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go answerHello(l, hello)
		m := &machine{place: place{id: "sbx_x", dir: dir}, state: &state{Generation: "g"}}
		err = m.connect(t.Context())
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", hello, err)
			} else {
				m.client.Close()
			}
			continue
		}
		if outboard.KindOf(err) != outboard.NotFound || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", hello, err)
		}
	}
}

// answerHello is a guest that answers the first request with a head.
func answerHello(l net.Listener, head string) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return
	}
	if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(size[:]))); err != nil {
		return
	}
	const response, fixed = 2, 1 + 4 + 4
	b := binary.BigEndian.AppendUint32(nil, uint32(fixed+len(head)))
	b = binary.BigEndian.AppendUint32(append(b, response), 1)
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	conn.Write(append(b, head...))
	io.Copy(io.Discard, conn) // until the host is done
}
