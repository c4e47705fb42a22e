package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/sshd"
	"golang.org/x/crypto/ssh"
)

func hostKeyPath(data string) string { return filepath.Join(data, "ssh_host_ed25519_key") }

// listenSSH starts taking SSH connections.
func (s *server) listenSSH(ctx context.Context) error {
	if s.cfg.SSH == "" {
		return nil
	}
	key, made, err := sshd.HostKey(hostKeyPath(s.cfg.Data))
	if err != nil {
		return err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.SSH)
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "listening on %s for SSH: %w", s.cfg.SSH, err).WithHint("choose another address with --ssh, or leave it out")
	}
	s.sshAddr, s.sshPrint, s.newHostKey = ln.Addr().String(), ssh.FingerprintSHA256(key.PublicKey()), made
	s.control.SetSSH(control.SSHDoor{Address: s.sshAddr, HostKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.PublicKey())))})
	s.sshd = sshd.New(sshd.Config{Control: s.control, HostKey: key, Logger: s.log})
	s.serving.Go(func() {
		if err := s.sshd.Serve(ln); err != nil {
			s.fail(err)
		}
	})
	return nil
}

// stopSSH ends SSH connections.
func (s *server) stopSSH() {
	if s.sshd != nil {
		s.sshd.Close()
	}
}
