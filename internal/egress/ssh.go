package egress

import (
	"bytes"
	"encoding/binary"
	"io"
	"time"
)

// sshMark is how a client of SSH begins (RFC 4253, 4.2), before it has heard anything.
const sshMark = "SSH-"

// sshAdvice is what such a client is told. Most of them are git, which has another way.
const sshAdvice = "outboard: nothing leaves this sandbox by SSH, only by HTTP and HTTPS; for git use " +
	"https://HOST/PATH in the place of git@HOST:PATH"

// refuseSSH answers a client of SSH in its own terms, so that it says why, and puts it on record.
func (p *port) refuseSSH(c *conn) {
	defer c.Close()
	req := Request{Subject: p.subject, Scheme: "ssh", Method: "CONNECT", Host: c.flow.tunnel, Port: c.flow.to}
	p.refused(p.g.ctx, req, "form", detail{Reason: "SSH is not let through"})
	_ = c.SetDeadline(time.Now().Add(endWait)) // a dead socket fails below
	if _, err := c.Write(append([]byte("SSH-2.0-Outboard\r\n"), sshDisconnect(sshAdvice)...)); err != nil {
		return
	}
	_ = c.CloseWrite()
	_, _ = io.CopyN(io.Discard, c, maxHeader) // closing over what was not read would take the answer back
}

// sshDisconnect is the packet that ends an SSH connection before keys were exchanged (RFC 4253, 6 and 11.1).
func sshDisconnect(why string) []byte {
	const disconnect, notAvailable, least = 1, 7, 4
	payload := binary.BigEndian.AppendUint32([]byte{disconnect}, notAvailable)
	for _, text := range []string{why, "en"} {
		payload = append(binary.BigEndian.AppendUint32(payload, uint32(len(text))), text...)
	}
	padding := least + (8-(4+1+len(payload)+least)%8)%8
	packet := binary.BigEndian.AppendUint32(nil, uint32(1+len(payload)+padding))
	packet = append(append(packet, byte(padding)), payload...)
	return append(packet, bytes.Repeat([]byte{0}, padding)...)
}
