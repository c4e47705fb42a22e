package control_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Broken if an address that this server lets no sandbox reach is allowed all the same: nothing would come of it,
// and nobody would know why.
func TestAllowOfWhatIsOutOfReach(t *testing.T) {
	c, _, _ := partsWith(t, t.TempDir(), control.Config{Reachable: func(_ context.Context, address string) error {
		if address == "93.184.216.34" {
			return nil
		}
		return errors.New("host " + address + " is not on the public internet")
	}})
	s := session(t, c)
	for host, why := range map[string]string{"a.test": "", "93.184.216.34": "", "10.0.0.1": "public internet",
		"::1":             "public internet",
		"169.254.169.254": "metadata", "metadata.google.internal": "metadata"} {
		_, err := c.AllowNetwork(t.Context(), admin, s.ID, outboard.NetRule{Host: host}, control.AllowSession)
		if refused := outboard.KindOf(err) == outboard.Invalid && strings.Contains(err.Error(),
			why); refused != (why != "") || err != nil && !refused {
			t.Errorf("%s: %v", host, err)
		}
	}
	n, err := c.SessionNetwork(t.Context(), admin, s.ID)
	if err != nil || len(n.Grants) != 2 {
		t.Errorf("%+v, %v: not the two hosts that can be reached", n.Grants, err)
	}
}
