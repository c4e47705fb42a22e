package uplink

import (
	"encoding/binary"
	"net/netip"
	"strings"
)

// Numbers of DNS, RFC 1035.
const (
	dnsHeader    = 12
	dnsMaxName   = 255
	typeA        = 1
	classIN      = 1
	bitResponse  = 0x8000
	bitAuthority = 0x0400
	bitDesired   = 0x0100 // recursion desired, copied from the question
	bitAvailable = 0x0080 // recursion available
	maskOpcode   = 0x7800
	rcodeFormat  = 1
	rcodeNotImpl = 4
	dnsTTL       = 60
)

// Answer returns the answer to one DNS query, or nil for what is none. Every name has one IPv4 address and
// nothing else: a program that asks for a name learns nothing about it, and nobody learns that it asked.
func Answer(query []byte) []byte {
	if len(query) < dnsHeader {
		return nil
	}
	flags := binary.BigEndian.Uint16(query[2:])
	if flags&bitResponse != 0 {
		return nil
	}
	out := append(make([]byte, 0, 512), query[:2]...)
	status := uint16(bitResponse|bitAvailable|bitAuthority) | flags&(maskOpcode|bitDesired)
	head := func(rcode, questions, answers uint16) []byte {
		for _, v := range []uint16{status | rcode, questions, answers, 0, 0} {
			out = binary.BigEndian.AppendUint16(out, v)
		}
		return out
	}
	if flags&maskOpcode != 0 {
		return head(rcodeNotImpl, 0, 0)
	}
	name, end := dnsName(query)
	if binary.BigEndian.Uint16(query[4:]) != 1 || end == 0 {
		return head(rcodeFormat, 0, 0)
	}
	kind, class := binary.BigEndian.Uint16(query[end:]), binary.BigEndian.Uint16(query[end+2:])
	if kind != typeA || class != classIN {
		return append(head(0, 1, 0), query[dnsHeader:end+4]...)
	}
	ip := netip.MustParseAddr(Synthetic).As4()
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		ip = [4]byte{127, 0, 0, 1}
	}
	out = append(head(0, 1, 1), query[dnsHeader:end+4]...)
	out = append(out, 0xc0, dnsHeader) // the question's name
	for _, v := range []uint16{typeA, classIN, 0, dnsTTL, 4} {
		out = binary.BigEndian.AppendUint16(out, v)
	}
	return append(out, ip[:]...)
}

// dnsName reads the name of the question, lower-case. end is where its type begins, or 0 when the question does
// not fit.
func dnsName(query []byte) (name string, end int) {
	var labels []string
	for i := dnsHeader; i < len(query) && i < dnsHeader+dnsMaxName; {
		n := int(query[i])
		i++
		if n == 0 {
			if i+4 > len(query) {
				return "", 0
			}
			return strings.ToLower(strings.Join(labels, ".")), i
		}
		if n > 63 || i+n > len(query) { // a pointer cannot be in a question
			return "", 0
		}
		labels = append(labels, string(query[i:i+n]))
		i += n
	}
	return "", 0
}
