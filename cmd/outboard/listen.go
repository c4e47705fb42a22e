package main

import (
	"net"
	"strconv"

	"github.com/outboard-dev/outboard/internal/server"
)

// splitListen completes a listen address: without a host it means this machine only. It reports whether the
// address is loopback.
func splitListen(addr string) (full string, loopback bool, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", false, usagef("%q is not an address to listen on", addr).
			WithHint("use host:port, for example 127.0.0.1:7070 or :0")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", false, usagef("%q is not an address to listen on: its port is no number from 0 to 65535", addr).
			WithHint("use host:port, for example 127.0.0.1:7070 or :0")
	}
	if host == "" {
		host = "127.0.0.1"
	}
	full = net.JoinHostPort(host, port)
	return full, server.Local(full), nil
}

// sshAddress completes the address of the SSH listener; "" is none. It may lie beyond this machine without a
// certificate: SSH brings its own encryption and its own proof of who both ends are.
func sshAddress(asked string) (string, error) {
	if asked == "" || asked == e2bOff {
		return "", nil
	}
	addr, _, err := splitListen(asked)
	return addr, err
}

// e2bOff as an address means no E2B API.
const e2bOff = "off"

// e2bBeside is how far above the API's port the E2B API listens when nobody says where.
const e2bBeside = 100

// e2bAddress returns where the E2B API listens: what was asked for, or a loopback port that follows from the API's.
func (o *serveOptions) e2bAddress(listen, asked string, secure bool) (string, error) {
	switch asked {
	case e2bOff:
		return "", nil
	case "":
		_, port, err := net.SplitHostPort(listen)
		n, perr := strconv.Atoi(port)
		if err != nil || perr != nil {
			return "", usagef("%q has no port to put the E2B API beside", listen).
				WithHint("give --e2b an address, or off")
		}
		if n != 0 {
			n += e2bBeside
		}
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(n)), nil
	}
	addr, loopback, err := splitListen(asked)
	if err != nil {
		return "", err
	}
	if !loopback && !secure && !o.insecure {
		return "", usagef("refusing to serve the E2B API on %s without TLS: keys would travel in clear text", addr).
			WithHint("give --tls-cert and --tls-key, or --insecure-listen behind a proxy that has them")
	}
	return addr, nil
}
