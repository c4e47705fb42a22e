package doors

import (
	"context"
	"net"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/sshd"
	"golang.org/x/crypto/ssh"
)

// SSHDoor is where SSH connections are taken; the zero value is nowhere.
type SSHDoor struct {
	Address     string
	Fingerprint string // of the host's key
	NewKey      bool   // this start made it
}

// listenSSH starts taking SSH connections.
func (d *Doors) listenSSH(ctx context.Context) error {
	if d.cfg.SSH == "" {
		return nil
	}
	key, made, err := sshd.HostKey(server.HostKeyPath(d.cfg.Data))
	if err != nil {
		return err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", d.cfg.SSH)
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "listening on %s for SSH: %w", d.cfg.SSH, err).
			WithHint("choose another address with --ssh, or leave it out")
	}
	d.SSH = SSHDoor{Address: ln.Addr().String(), Fingerprint: ssh.FingerprintSHA256(key.PublicKey()), NewKey: made}
	d.server.Control.SetSSH(control.SSHDoor{Address: d.SSH.Address,
		HostKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.PublicKey())))})
	d.sshd = sshd.New(sshd.Config{Control: d.server.Control, HostKey: key, Logger: d.log})
	d.serving.Go(func() {
		if err := d.sshd.Serve(ln); err != nil {
			d.fail(err)
		}
	})
	return nil
}

// stopSSH ends SSH connections.
func (d *Doors) stopSSH() {
	if d.sshd != nil {
		d.sshd.Close()
	}
}
