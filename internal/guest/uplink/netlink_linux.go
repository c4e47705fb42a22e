package uplink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// The little of netlink that Prepare needs, by hand: the guest has no dependencies. Numbers are from
// linux/netlink.h, rtnetlink.h and netfilter/nf_tables.h.
const (
	netlinkNetfilter = 12

	flagCreate = 0x401 // NLM_F_REQUEST | NLM_F_CREATE
	flagAppend = 0xc01 // and NLM_F_APPEND
	flagAck    = 0x4
	nested     = 0x8000

	batchBegin = 0x10
	batchEnd   = 0x11
	subsystem  = 10 // NFNL_SUBSYS_NFTABLES
	newTable   = subsystem << 8
	newChain   = subsystem<<8 | 3
	newRule    = subsystem<<8 | 6

	familyIP      = 2
	hookOutput    = 3
	prioDstNAT    = -100
	reg1          = 8
	baseNetwork   = 1  // payload: network header
	offDaddr      = 16 // of an IPv4 header
	metaL4Proto   = 16
	policyAccept  = 1
	loopbackIndex = 1
)

func attr(kind uint16, data ...[]byte) []byte {
	b := make([]byte, 4, 64)
	for _, d := range data {
		b = append(b, d...)
	}
	binary.NativeEndian.PutUint16(b, uint16(len(b)))
	binary.NativeEndian.PutUint16(b[2:], kind)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func nest(kind uint16, data ...[]byte) []byte { return attr(kind|nested, data...) }

func text(kind uint16, s string) []byte { return attr(kind, append([]byte(s), 0)) }

func number(kind uint16, v int32) []byte {
	return attr(kind, binary.BigEndian.AppendUint32(nil, uint32(v)))
}

func message(kind, flags uint16, body ...[]byte) []byte {
	b := make([]byte, 16, 128)
	for _, d := range body {
		b = append(b, d...)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint16(b[6:], flags)
	return b
}

// addAddress gives an IPv4 address, with nothing behind it, to an interface.
func addAddress(index uint32, ip [4]byte) error {
	const ifaLocal, ifaAddress = 2, 1
	head := []byte{syscall.AF_INET, 32, 0, syscall.RT_SCOPE_HOST}
	head = binary.NativeEndian.AppendUint32(head, index)
	return talk(syscall.NETLINK_ROUTE, message(syscall.RTM_NEWADDR, flagCreate|flagAck, head, attr(ifaLocal, ip[:]),
		attr(ifaAddress, ip[:])))
}

// redirect sends every TCP connection made here to an address to a port of loopback.
func redirect(ip [4]byte, port uint16) error {
	const table, chain = "outboard", "out"
	gen := func(family byte, res uint16) []byte { return []byte{family, 0, byte(res >> 8), byte(res)} }
	expr := func(name string, data ...[]byte) []byte { return nest(1, text(1, name), nest(2, data...)) }
	value := func(d []byte) []byte { return nest(3, attr(1, d)) }
	equal := func(d []byte) []byte { return expr("cmp", number(1, reg1), number(2, 0), value(d)) }
	rule := nest(4,
		expr("payload", number(1, reg1), number(2, baseNetwork), number(3, offDaddr), number(4, 4)),
		equal(ip[:]),
		expr("meta", number(2, metaL4Proto), number(1, reg1)),
		equal([]byte{syscall.IPPROTO_TCP}),
		expr("immediate", number(1, reg1), nest(2, attr(1, binary.BigEndian.AppendUint16(nil, port)))),
		expr("redir", number(1, reg1), number(3, 2)), // with a port: NF_NAT_RANGE_PROTO_SPECIFIED
	)
	var b []byte
	b = append(b, message(batchBegin, 1, gen(0, subsystem))...)
	b = append(b, message(newTable, flagCreate, gen(familyIP, 0), text(1, table))...)
	b = append(b, message(newChain, flagCreate, gen(familyIP, 0), text(1, table), text(3, chain),
		nest(4, number(1, hookOutput), number(2, prioDstNAT)), number(5, policyAccept), text(7, "nat"))...)
	b = append(b, message(newRule, flagAppend|flagAck, gen(familyIP, 0), text(1, table), text(2, chain), rule)...)
	b = append(b, message(batchEnd, 1, gen(0, subsystem))...)
	return talk(netlinkNetfilter, b)
}

// talk sends a request and reads its acknowledgement. The kernel has answered when the send returns.
func talk(protocol int, request []byte) error {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, protocol)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer syscall.Close(fd)
	if err := syscall.Sendto(fd, request, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 8<<10)
	n, _, err := syscall.Recvfrom(fd, buf, syscall.MSG_DONTWAIT)
	if err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	answers, err := syscall.ParseNetlinkMessage(buf[:n])
	if err != nil {
		return fmt.Errorf("reading netlink's answer: %w", err)
	}
	for _, a := range answers {
		if a.Header.Type != syscall.NLMSG_ERROR || len(a.Data) < 4 {
			continue
		}
		if code := int32(binary.NativeEndian.Uint32(a.Data)); code != 0 {
			return syscall.Errno(-code)
		}
		return nil
	}
	return errors.New("netlink did not acknowledge")
}
