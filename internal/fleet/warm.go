package fleet

import (
	"context"
	"fmt"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Bounds on sandboxes that wait for templates. Each has some 3 MiB of memory on the host, and nobody pays for it yet.
const (
	// MaxTemplateWarm bounds those of one template.
	MaxTemplateWarm = 8
	// maxOrgWarm bounds those of all templates of an organization, and maxHostWarm those of a host.
	maxOrgWarm, maxHostWarm = 16, 64
)

// shares hands out what a host has, so that no template or organization has all of it.
type shares struct {
	total int
	of    map[outboard.OrgID]int
}

// take returns how many of those that are wanted there are.
func (s *shares) take(org outboard.OrgID, want int) int {
	n := max(0, min(want, MaxTemplateWarm, maxOrgWarm-s.of[org], maxHostWarm-s.total))
	s.of[org] += n
	s.total += n
	return n
}

// poolTemplates has as many sandboxes wait as templates ask for: of the newest meaning of each tag, with the
// template's limits, and with a network where there is one. It is called when that may have changed, and now and
// then.
func (f *Fleet) poolTemplates(ctx context.Context) error {
	s, ok := f.cfg.Provider.(sandbox.Pooler)
	if !ok || f.cfg.Images == nil {
		return nil
	}
	tagged, err := f.cfg.Store.TaggedBuilds(ctx)
	if err != nil {
		return err
	}
	var pool []sandbox.PoolSpec
	share := shares{of: map[outboard.OrgID]int{}}
	for _, b := range tagged {
		if b.Spec.Warm <= 0 || b.Spec.Isolation != "" {
			continue
		}
		if here, err := f.cfg.Images.Use(b.Result.Layers); err != nil || !here {
			continue // the next sandbox of it has them built again
		}
		spec := sandbox.Spec{Limits: b.Spec.Limits}
		if f.networked(outboard.Networking{Mode: "limited"}) {
			spec.Network = &sandbox.Network{}
		}
		f.fill(&spec, stackOf(&b))
		if n := share.take(b.Org, b.Spec.Warm); n > 0 {
			pool = append(pool, sandbox.PoolSpec{Spec: spec, Count: n})
		}
	}
	if err := s.Keep(pool); err != nil {
		return fmt.Errorf("having sandboxes of templates wait: %w", err)
	}
	return nil
}
