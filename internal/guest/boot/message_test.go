package boot

import (
	"testing"

	"github.com/outboard-dev/outboard/internal/guest/form/formtest"
)

// If this fails, a sandbox starts with a part of its configuration missing: a limit, a filter, a path that is to
// be hidden.
func TestMessagesAreWhole(t *testing.T) {
	formtest.Whole(t, new(Config), new(Identity))
}
