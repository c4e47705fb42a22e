package server

import (
	"io"
	"net/netip"
	"os"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/notify"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// maxSecretFile bounds the file of a webhook's secret.
const maxSecretFile = 4 << 10

// privateNets are what allow_private of the webhook adds to the public internet.
var privateNets = append([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fc00::/7")}, outbound.Loopback...)

// openWebhook makes the notifier, if one is configured.
func (s *Server) openWebhook() error {
	cfg := s.cfg.Config.Policy.Webhook
	if cfg.URL == "" {
		return nil
	}
	secret, err := readSecret(cfg.SecretFile)
	if err != nil {
		return err
	}
	guard := &outbound.Guard{}
	if cfg.AllowPrivate {
		guard.Private = privateNets
	}
	n, err := notify.New(notify.Config{Store: s.Store, URL: cfg.URL, Secret: secret, Guard: guard, Logger: s.log})
	if err != nil {
		return err
	}
	n.Start()
	s.later(n.Stop)
	return nil
}

// readSecret reads a file that nobody else on this machine may read.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", outboard.Errorf(outboard.Invalid, "configuring the webhook: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		return "", outboard.Errorf(outboard.Invalid, "configuring the webhook: others on this machine may read %s",
			path).WithHint("chmod 600 %s", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile))
	if err != nil {
		return "", outboard.Errorf(outboard.Invalid, "configuring the webhook: %w", err)
	}
	return string(b), nil
}
