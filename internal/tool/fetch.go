package tool

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/outboard-dev/outboard"
)

// FetcherConfig makes a Fetcher. The zero value is right for production.
type FetcherConfig struct {
	Resolve       func(ctx context.Context, host string) ([]netip.Addr, error) // nil = the system's resolver
	Ports         []int                                                        // allowed besides 80 and 443
	AllowLoopback bool                                                         // for tests and development only: loopback counts as public
	Logger        *slog.Logger                                                 // nil = discard
}

// Fetcher runs web_fetch calls. It is safe for concurrent use.
type Fetcher struct{ cfg FetcherConfig }

// NewFetcher returns a fetcher.
func NewFetcher(cfg FetcherConfig) *Fetcher { return &Fetcher{cfg} }

// Fetch runs one web_fetch call with valid input to its outcome. web is the tool's own configuration (WebOf), or nil.
func (f *Fetcher) Fetch(ctx context.Context, call outboard.CallID, input, web outboard.Raw) outboard.CallFinished {
	panic("later")
}

// WebOf returns the configuration of web_fetch in an agent's tools, or nil.
func WebOf(sets []outboard.Toolset) outboard.Raw {
	for _, set := range sets {
		if set.Kind != "builtin" {
			continue
		}
		for _, c := range set.Configs {
			if c.Name == "web_fetch" {
				return c.Web
			}
		}
	}
	return nil
}
