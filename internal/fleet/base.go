package fleet

import (
	"context"
	"encoding/json"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/image"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// CheckBase says what is wrong with a root file system that debootstrap is to make, as an Invalid error.
func CheckBase(rootfs string) error {
	_, err := image.ParseBase(rootfs)
	return err
}

// IsBase reports whether a root file system is one that debootstrap makes.
func IsBase(rootfs string) bool { return image.IsBase(rootfs) }

// setUp is debootstrap's own second stage, where it is in the system that it makes: it is told that it is in a
// container, where it makes no devices. The accounts are the system's own to begin with: there is only the
// sandbox's user yet. What is left for installing more is removed.
const setUp = `set -e; export DEBIAN_FRONTEND=noninteractive container=lxc
rm -f /etc/passwd /etc/group /etc/shadow /etc/gshadow
/debootstrap/debootstrap --second-stage || { tail -n 5 /debootstrap/debootstrap.log; exit 1; }
rm -rf /debootstrap /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb`

// system makes a stack a system of Debian's, by two layers: the packages as the server unpacks them, and what
// they make of themselves, in a machine that is isolated like any other and has no network. All organizations
// share them: nothing but the server's configuration and the script decides what is in them, not even an
// environment's limits.
func (f *Fleet) system(ctx context.Context, st *stack, env outboard.EnvConfig) error {
	b, err := image.ParseBase(env.Rootfs)
	if err != nil {
		return err
	}
	layer, err := f.cfg.Images.Unpack(ctx, b, f.cfg.Mirrors["debootstrap"])
	if err != nil {
		return err
	}
	st.rootfs, st.layers = sandbox.Bare, []string{layer}
	key, err := json.Marshal(map[string]any{"set up": layer, "script": setUp})
	if err != nil {
		return outboard.Errorf(outboard.Internal, "describing a layer: %w", err)
	}
	where := outboard.EnvConfig{Kind: env.Kind, Isolation: env.Isolation, Networking: outboard.Networking{Mode: "none"}}
	return f.build(ctx, "", st, string(key), where, func(ctx context.Context, m *machine) (built, error) {
		code, said, err := command(ctx, m, ProcessStart{Argv: []string{"/bin/sh", "-c", setUp}, User: "0", Cwd: "/"})
		if err == nil && code != 0 {
			err = outboard.Errorf(outboard.Unavailable, "setting up a root file system of %s: debootstrap ended "+
				"with status %d%s", b.Suite, code, andSaid(said))
		}
		return built{}, err
	})
}
