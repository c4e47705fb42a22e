package egress

import (
	"bytes"
	"net/netip"
	"testing"
)

// conversation is a connection to a server that says what it says, whatever it is told.
type conversation struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (c *conversation) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *conversation) Write(b []byte) (int, error) { return c.out.Write(b) }

// FuzzSocks: if it fails, the bytes of something that is no SOCKS5 server are taken for a connection, more of
// them are read than the protocol has, or what is sent is not what RFC 1928 and 1929 have.
func FuzzSocks(f *testing.F) {
	f.Add([]byte("\x05\x00\x05\x00\x00\x01\x01\x02\x03\x04\x05\x06more"), "", "", []byte{1, 2, 3, 4})
	f.Add([]byte("\x05\x02\x01\x00\x05\x00\x00\x03\x04name\x05\x06more"), "me", "word", []byte{1, 2, 3, 4})
	f.Add([]byte("\x05\x00\x05\x00\x00\x04aaaaaaaaaaaaaaaa\x05\x06"), "", "", bytes.Repeat([]byte{9}, 16))
	f.Add([]byte("\x05\x02\x01\x01"), "me", "", []byte{1, 2, 3, 4})
	f.Add([]byte("\x05\xff"), "", "", []byte{1, 2, 3, 4})
	f.Add([]byte("\x05\x00\x05\x05\x00\x01"), "", "", []byte{1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, says []byte, name, password string, to []byte) {
		addr, ok := netip.AddrFromSlice(to)
		if !ok {
			return
		}
		c := &conversation{in: bytes.NewReader(says)}
		err := socks(c, name, password, netip.AddrPortFrom(addr, 443))
		read := len(says) - c.in.Len()
		if read > 2+2+5+255+2 {
			t.Fatalf("%d bytes were read", read)
		}
		sent := c.out.Bytes()
		if len(sent) < 3 || sent[0] != 5 || sent[1] != 1 || (sent[2] == 2) != (name != "") {
			t.Fatalf("it began with %x", sent)
		}
		if err != nil {
			return
		}
		want := sent[:3]
		if name != "" {
			want = append(append(append(append(append([]byte{}, want...), 1, byte(len(name))), name...),
				byte(len(password))), password...)
		}
		kind := byte(4)
		if addr.Is4() {
			kind = 1
		}
		want = append(append(append([]byte{}, want...), 5, 1, 0, kind), append(addr.AsSlice(), 1, 187)...)
		if !bytes.Equal(sent, want) {
			t.Fatalf("sent %x, want %x", sent, want)
		}
		got := says[:read]
		if got[0] != 5 || (got[1] == 2) != (name != "") {
			t.Fatalf("%x is a connection", got)
		}
		if got = got[2:]; name != "" {
			if got[0] != 1 || got[1] != 0 {
				t.Fatalf("%x is a connection", says)
			}
			got = got[2:]
		}
		size := map[byte]int{1: 4, 3: 1 + int(got[4]), 4: 16}[got[3]]
		if got[0] != 5 || got[1] != 0 || got[2] != 0 || size == 0 || len(got) != 4+size+2 {
			t.Fatalf("%x is a connection", says)
		}
	})
}
