// Package uplink is the sandbox's end of its network. The network namespace holds a loopback
// interface and nothing else: no packet leaves it, and nothing in it forwards any. Connections
// leave by descriptor. The first process of the sandbox listens and hands its listening sockets to
// the host over a unix socket; the host's gateway accepts from them. So the place where a
// connection was made says who makes it, and no byte that a tool sends can change that.
//
// Start reading at Prepare for the sandbox's half, and at Take for the host's.
//
// # What is set up
//
// Before any foreign code runs in the namespace, Prepare gives its loopback interface one more
// address (Synthetic). It redirects every TCP connection to that address, whatever the port, to the
// listener. The rules belong to the host's user namespace, or where that cannot be to the
// sandbox's, in which nobody has a capability once it stands: nobody inside can change them. Every
// other address is unreachable. A name server on loopback answers every name with Synthetic and
// asks nobody, so a name carries nothing out. Trust puts the certificate of the gateway beside the
// system's.
//
// # Handing over
//
// The host connects to the unix socket and sends the certificate that is to be trusted: length (4
// bytes, big endian), PEM. The answer is one byte, 0, with the listening sockets as descriptors, or
// 1 and a text. The connection stays open while the host accepts. When nobody accepts for longer
// than Grace, the guest itself answers each connection with status 503: a broken gateway is an
// error that says so, never a way around it.
package uplink

import (
	"net/netip"
	"time"
)

const (
	// Synthetic is the address of every name: of the range for benchmarks (RFC 2544), which no network routes.
	Synthetic = "198.18.0.1"
	// ProxyAddr is where clients that know of proxies find one.
	ProxyAddr = "127.0.0.1:3128"
	// DNSAddr is the name server.
	DNSAddr = "127.0.0.1:53"

	// TrustDir holds the certificates, on a file system of its own that only the guest can write, but for the
	// directories of NSS.
	TrustDir = "/run/trust"
	// Bundle is the file of all certificates that are trusted inside.
	Bundle = TrustDir + "/ca-bundle.pem"
	// Truststore holds the gateway's certificate in Java's own form.
	Truststore = TrustDir + "/java.jks"

	// Grace is how long a connection waits for a gateway that is being started again.
	Grace = 3 * time.Second
	// MaxCA bounds a certificate sent for trust.
	MaxCA = 16 << 10
	// MaxSockets bounds the descriptors of one hand-over.
	MaxSockets = 4
)

// Owns reports whether a port inside is one of these listeners. Who reached one from outside would speak as the
// sandbox, with its rules and its credentials.
func Owns(port uint16) bool {
	for _, addr := range []string{ProxyAddr, DNSAddr} {
		if port == netip.MustParseAddrPort(addr).Port() {
			return true
		}
	}
	return false
}

// noProxy names what is the sandbox's own, under which servers inside are reached: as people and programs write
// it, and as an address with the length of a network for those that understand it (curl from 7.86 on, Go, Ruby).
// Its host name is one of them.
const noProxy = "localhost,.localhost,127.0.0.1,127.0.1.1,127.0.0.2,127.0.0.0/8,::1,[::1],0.0.0.0,ip6-localhost,ip6-loopback,outboard"

// Env is what tells programs inside about the proxy and the certificates, as KEY=value. java says that Java
// finds the gateway's certificate by itself. Else it is told by a variable, of which each of its programs speaks
// on its standard error.
func Env(java bool) []string {
	env := []string{
		"NODE_USE_ENV_PROXY=1",
		"SSL_CERT_DIR=" + TrustDir,
	}
	if !java {
		env = append(env, "JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore="+Truststore)
	}
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		env = append(env, name+"=http://"+ProxyAddr)
	}
	for _, name := range []string{"no_proxy", "NO_PROXY"} {
		env = append(env, name+"="+noProxy)
	}
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT",
		"NODE_EXTRA_CA_CERTS", "npm_config_cafile",
		"GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "DENO_CERT", "AWS_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"} {
		env = append(env, name+"="+Bundle)
	}
	return env
}
