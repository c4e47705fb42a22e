//go:build linux

package native_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/uplink"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

const testCA = `-----BEGIN CERTIFICATE-----
MIIBhzCCAS2gAwIBAgIURRG/ZJrZYnCDJl0xj4o4Gd/eI1wwCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNT3V0Ym9hcmQgdGVzdDAgFw0yNjExMjkxNjUwNDhaGA8yMTI2
MTEwNTE2NTA0OFowGDEWMBQGA1UEAwwNT3V0Ym9hcmQgdGVzdDBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABOqxeCy/lw5PLkUVAIx7Qjey/DayIkkUWrlpnn1pX6e9
ISv2H9Oo59wN18lxOKaFdVypkDTrlWjXifZ69wNxbbSjUzBRMB0GA1UdDgQWBBSI
kHbJICO36HoC0nc3PPOzrSISNDAfBgNVHSMEGDAWgBSIkHbJICO36HoC0nc3PPOz
rSISNDAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIAwu92Lbi8IJ
5nTd4nRUQvLLoUN1xqVCjMsw//WMsSjDAiEAlp4VsPnucUm2ZdLfDJ3LdOMKJKX+
TUEyfkgTt1kEJV0=
-----END CERTIFICATE-----
`

const renewedCA = `-----BEGIN CERTIFICATE-----
MIIBmTCCAT+gAwIBAgIUHHkXB705cHoehRQ5LwXhzr03lwYwCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWT3V0Ym9hcmQgdGVzdCwgcmVuZXdlZDAgFw0yNjExMjkxNjUw
NDhaGA8yMTI2MTEwNTE2NTA0OFowITEfMB0GA1UEAwwWT3V0Ym9hcmQgdGVzdCwg
cmVuZXdlZDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABLYPgFoUZLVUo7hKo2z9
VrvwNDZG2AvOmKJdlAXaK/+O8duoIZ8D4GeAllsBLDp3bsrhaAKC7pwrfhXtdB5+
rmijUzBRMB0GA1UdDgQWBBQO3MfxAbH2PtPMFY3hHG5cI8w76zAfBgNVHSMEGDAW
gBQO3MfxAbH2PtPMFY3hHG5cI8w76zAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49
BAMCA0gAMEUCIQCBnFDLQScuxCffOCIxtg/BwYBlqGhjv+jnpLs5ooEdyQIgCGVA
Ej31smVxpCK8+nD9AXggWHbo3TMzBwAr/6sogcE=
-----END CERTIFICATE-----
`

// echo answers every connection with the address it was meant for, and returns a function that stops.
func echo(t *testing.T, p *native.Provider, id outboard.SandboxID, ca string) net.Listener {
	t.Helper()
	l, err := p.Listen(t.Context(), id, []byte(ca))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				line, _ := bufio.NewReader(conn).ReadString('\n')
				fmt.Fprintf(conn, "%s says %s", conn.LocalAddr(), line)
			}()
		}
	}()
	return l
}

const say = `say() { exec 3<>/dev/tcp/$1/$2 && echo hello >&3 && cat <&3; }; `

func (b *testSandbox) bash(t *testing.T, script string) string {
	t.Helper()
	out, _ := b.run(t, "/bin/bash", "-c", script)
	return out
}

// TestNetwork: a sandbox with a network would reach something other than its gateway, or not the gateway.
func TestNetwork(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{Network: &sandbox.Network{CA: []byte(testCA)}})
	echo(t, p, b.ID(), testCA)
	for script, want := range map[string]string{
		say + "say api.example.test 443":                                      "198.18.0.1:443 says hello\n",
		say + "say api.example.test 9418":                                     "198.18.0.1:9418 says hello\n",
		say + "say 127.0.0.1 3128":                                            "127.0.0.1:3128 says hello\n",
		"getent ahosts a.b | awk '{print $1}' | sort -u":                      uplink.Synthetic + "\n",
		"getent ahostsv6 a.b || echo none":                                    "none\n",
		"getent hosts localhost | awk '{print $1}'":                           "::1\n",
		"cat /etc/resolv.conf":                                                "nameserver 127.0.0.1\n",
		"echo $HTTPS_PROXY $https_proxy $SSL_CERT_FILE":                       "http://127.0.0.1:3128 http://127.0.0.1:3128 " + uplink.Bundle + "\n",
		fmt.Sprintf("tail -n %d $SSL_CERT_FILE", strings.Count(testCA, "\n")): testCA,
	} {
		if got := b.bash(t, script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	for _, script := range []string{say + "say 1.1.1.1 443", say + "say 198.18.0.2 443", say + "say 169.254.169.254 80",
		say + "say 10.0.0.1 80",
		say + "say ::ffff:1.1.1.1 443", "exec 3<>/dev/udp/1.1.1.1/53", "exec 3<>/dev/udp/224.0.0.251/5353"} {
		if out, code := b.run(t, "/bin/bash", "-c", script); code == 0 || !strings.Contains(out, "nreachable") {
			t.Errorf("%s: %d %s", script, code, out)
		}
	}
	for script, want := range map[string]string{
		"readlink ~/.pki/nssdb":                        uplink.NSSDir + "\n",
		"cd ~/.pki/nssdb && stat -c '%u %a' . *.db":    fmt.Sprintf("%d 700\n%[1]d 600\n%[1]d 600\n", native.ToolUID),
		"echo own > ~/.pki/nssdb/f && ls ~/.pki/nssdb": "cert9.db\nf\nkey4.db\n",
		"cat " + uplink.Certificate:                    testCA,
	} {
		if got := b.bash(t, script); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	if isRoot() {
		if out, code := b.run(t, "/bin/sh", "-c", "echo x >> "+uplink.Bundle); code == 0 {
			t.Errorf("a tool can change what is trusted: %s", out)
		}
	}
	plain := create(t, p, sandbox.Spec{})
	if out, code := plain.run(t, "/bin/bash", "-c", say+"say 198.18.0.1 443"); code == 0 {
		t.Errorf("a sandbox without a network has one: %s", out)
	}
	if _, err := p.Listen(t.Context(), plain.ID(), nil); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("listening to a sandbox without a network: %v", err)
	}
	if _, err := p.Listen(t.Context(), newID(), nil); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("listening to no sandbox: %v", err)
	}
}

// TestNetworkHandedOver: a server that is started again would find the sandboxes of the one before without
// network, or a sandbox without any server would hang instead of being told.
func TestNetworkHandedOver(t *testing.T) {
	p, dir := newProvider(t)
	b := create(t, p, sandbox.Spec{Network: &sandbox.Network{CA: []byte(testCA)}})
	first := echo(t, p, b.ID(), testCA)
	if got := b.bash(t, say+"say a.test 80"); got != "198.18.0.1:80 says hello\n" {
		t.Fatalf("control: %q", got)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Accept(); err == nil {
		t.Error("a closed listener accepts")
	}
	if got := b.bash(t, say+"say a.test 80"); !strings.HasPrefix(got, "HTTP/1.1 503 ") ||
		!strings.Contains(got, "gateway of this sandbox is not running") {
		t.Errorf("without a gateway: %q", got)
	}
	again := openProvider(t, native.Config{Dir: dir})
	l := echo(t, again, b.ID(), renewedCA)
	if got := b.bash(t, say+"say a.test 80"); got != "198.18.0.1:80 says hello\n" {
		t.Errorf("with the next gateway: %q", got)
	}
	both := testCA + renewedCA
	if got := b.bash(t, fmt.Sprintf("tail -n %d %s", strings.Count(both, "\n"), uplink.Bundle)); got != both {
		t.Errorf("trusted after the certificate was renewed: %s", got)
	}
	if p.Capabilities().Freeze {
		if err := b.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Thaw(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := b.bash(t, say+"say a.test 81"); got != "198.18.0.1:81 says hello\n" {
			t.Errorf("after freeze and thaw: %q", got)
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	if err := p.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a connection from a sandbox that is gone")
		}
	case <-time.After(20 * time.Second):
		t.Error("the listener of a sandbox that is gone still accepts")
	}
}
