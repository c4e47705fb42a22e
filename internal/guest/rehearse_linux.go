package guest

import (
	"encoding/json"
	"os"
)

// rehearse does with nothing what every call does, while nobody waits, or the host is about to ask: encoding/json makes tables of a type
// when it first meets it, and package os starts a process to learn what this kernel's descriptors of processes can do. Both is a good part
// of what a sandbox's first call takes.
func rehearse() {
	var (
		h    requestHead
		call Start
		exec execInput
		bash bashInput
	)
	for _, v := range []any{&h, &call, &exec, &bash} {
		_ = json.Unmarshal([]byte("{}"), v) // cannot fail
	}
	for _, v := range []any{Result{}, record{}} {
		_, _ = json.Marshal(v) // likewise
	}
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		self.Release()
	}
}
