package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// The numbers of SOCKS version 5 (RFC 1928) and of its names and passwords (RFC 1929) that are spoken here.
const (
	socksVersion  = 5
	socksConnect  = 1
	socksIPv4     = 1
	socksName     = 3
	socksIPv6     = 4
	socksOpen     = 0
	socksPassword = 2
	socksNone     = 0xff
	authVersion   = 1
)

// socksErrors are what a server can say to a request.
var socksErrors = []string{1: "it failed", 2: "its rules do not allow it", 3: "the network cannot be reached",
	4: "the host cannot be reached",
	5: "the connection was refused", 6: "the time to live is over", 7: "it does not do that", 8: "it does not take such addresses"}

// socksReply is a refusal of a request, by a server that speaks the protocol.
type socksReply byte

// Error says it in words.
func (r socksReply) Error() string {
	if int(r) < len(socksErrors) {
		return socksErrors[r]
	}
	return fmt.Sprintf("it answered %d", byte(r))
}

// elsewhere reports whether another address could do better.
func (r socksReply) elsewhere() bool { return r >= 3 && r <= 6 || r == 8 }

var (
	errNotSocks  = errors.New("it does not speak SOCKS5")
	errSocksAuth = errors.New("it does not take the name and password")
	errSocksOpen = errors.New("it wants a name and a password")
)

// socks asks a SOCKS5 server for a connection to an address. It reads what the server says to that and not a
// byte more, at most 266 of them: what comes next is of the connection. A name is offered when there is one. A
// deadline is the caller's to set.
func socks(rw io.ReadWriter, name, password string, to netip.AddrPort) error {
	method := byte(socksOpen)
	if name != "" {
		method = socksPassword
	}
	if _, err := rw.Write([]byte{socksVersion, 1, method}); err != nil {
		return err
	}
	var chosen [2]byte
	if _, err := io.ReadFull(rw, chosen[:]); err != nil {
		return err
	}
	switch {
	case chosen[0] != socksVersion:
		return errNotSocks
	case chosen[1] == socksNone && method == socksOpen:
		return errSocksOpen
	case chosen[1] == socksNone:
		return errSocksAuth
	case chosen[1] != method:
		return errNotSocks
	}
	if method == socksPassword {
		if err := socksAuth(rw, name, password); err != nil {
			return err
		}
	}
	request := []byte{socksVersion, socksConnect, 0, socksIPv6}
	if to.Addr().Is4() {
		request[3] = socksIPv4
	}
	request = append(request, to.Addr().AsSlice()...)
	if _, err := rw.Write(binary.BigEndian.AppendUint16(request, to.Port())); err != nil {
		return err
	}
	return socksAnswer(rw)
}

func socksAuth(rw io.ReadWriter, name, password string) error {
	if len(name) > 255 || len(password) > 255 {
		return errSocksAuth
	}
	b := append([]byte{authVersion, byte(len(name))}, name...)
	b = append(append(b, byte(len(password))), password...)
	if _, err := rw.Write(b); err != nil {
		return err
	}
	var status [2]byte
	if _, err := io.ReadFull(rw, status[:]); err != nil {
		return err
	}
	switch {
	case status[0] != authVersion:
		return errNotSocks
	case status[1] != 0:
		return errSocksAuth
	}
	return nil
}

// socksAnswer reads the answer to a request, with the address that it ends in: whose that is matters to nobody here.
func socksAnswer(r io.Reader) error {
	var head [5]byte // with the first byte of the address
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	if head[0] != socksVersion || head[2] != 0 {
		return errNotSocks
	}
	if head[1] != 0 {
		return socksReply(head[1])
	}
	rest := 2 // the port
	switch head[3] {
	case socksIPv4:
		rest += 3
	case socksIPv6:
		rest += 15
	case socksName:
		rest += int(head[4])
	default:
		return errNotSocks
	}
	_, err := io.CopyN(io.Discard, r, int64(rest))
	return err
}
