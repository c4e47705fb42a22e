package uplink_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/guest/uplink"
)

// query is a question of one name.
func query(name string, kind uint16) []byte {
	q := []byte{0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for l := range strings.SplitSeq(name, ".") {
		q = append(append(q, byte(len(l))), l...)
	}
	q = append(q, 0)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(q, kind), 1)
}

// Broken if a name has another address than the gateway's, or a kind of record that could lead elsewhere.
func TestAnswer(t *testing.T) {
	for name, want := range map[string]string{"a.test": "\xc6\x12\x00\x01", "LOCALHOST": "\x7f\x00\x00\x01",
		"x.localhost": "\x7f\x00\x00\x01",
		strings.Repeat("secret.", 30) + "evil.test": "\xc6\x12\x00\x01"} {
		a := uplink.Answer(query(name, 1))
		if len(a) < 16 || a[7] != 1 || string(a[len(a)-4:]) != want || a[3]&0xf != 0 {
			t.Errorf("%s: %x", name, a)
		}
	}
	// NS CNAME SOA PTR MX TXT AAAA SRV SVCB HTTPS ANY
	for _, kind := range []uint16{2, 5, 6, 12, 15, 16, 28, 33, 64, 65, 255} {
		if a := uplink.Answer(query("a.test", kind)); len(a) < 12 || a[7] != 0 || a[3]&0xf != 0 {
			t.Errorf("type %d: %x", kind, a)
		}
	}
}

// Broken if bytes that are no query end the first process of a sandbox, or draw an answer that is none.
func FuzzAnswer(f *testing.F) {
	f.Add(query("a.test", 1))
	f.Add(query("a.test", 28)[:20])
	f.Add([]byte{0, 0, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, q []byte) {
		a := uplink.Answer(q)
		if a != nil && (len(a) < 12 || string(a[:2]) != string(q[:2]) || a[2]&0x80 == 0 || len(a) > len(q)+32) {
			t.Fatalf("%x answers %x", q, a)
		}
	})
}
