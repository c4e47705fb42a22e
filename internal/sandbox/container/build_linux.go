package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/guest/uplink"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

var _ sandbox.Builder = (*Provider)(nil)

// maxAccounts bounds a file of accounts.
const maxAccounts = 1 << 20

// Commit implements sandbox.Builder.
func (p *Provider) Commit(ctx context.Context, id outboard.SandboxID, dir string) error {
	tech, ok := p.tech.(Layering)
	if !ok {
		return outboard.Errorf(outboard.Unavailable, "sandboxes of %s make no layers", p.Name())
	}
	at, err := p.path(id)
	if err != nil {
		return err
	}
	unlock, err := native.Lock(ctx, at)
	if errors.Is(err, fs.ErrNotExist) {
		return outboard.Errorf(outboard.NotFound, "sandbox %s does not exist on this host", id)
	}
	if err != nil {
		return err
	}
	defer unlock()
	s, err := load(at)
	if err != nil {
		return outboard.Errorf(outboard.NotFound, "sandbox %s is damaged: %w", id, err)
	}
	if !s.Build || s.ToolUID < native.ToolUID {
		return outboard.Errorf(outboard.Invalid, "sandbox %s was not made to build a layer", id)
	}
	if err := p.end(ctx, s, id); err != nil {
		return outboard.Errorf(outboard.Unavailable, "ending sandbox %s: %w", id, err)
	}
	if err := forget(tech.Written(at), int(s.ToolUID)); err != nil {
		return fmt.Errorf("taking what is sandbox %s's own out of its layer: %w", id, err)
	}
	return native.MakeLayer(ctx, id, tech.Written(at), dir, s.ToolUID)
}

// forget takes back what a guest does to the root of its own sandbox, where native ones have mounts: the layer
// is for others. Nothing runs any more that could change what is looked at; what was written may be anything, so
// nothing outside dir is reached.
func forget(dir string, tool int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, mount := range []string{boot.HostDir, boot.Program, uplink.TrustDir} {
		if err := root.RemoveAll(mount[1:]); err != nil {
			return err
		}
	}
	for _, file := range slices.Concat(uplink.SystemBundles, uplink.JavaSystemStores) {
		target, err := root.Readlink(file[1:])
		if err == nil && (target == uplink.Bundle || target == uplink.Truststore) {
			if err := root.Remove(file[1:]); err != nil {
				return err
			}
		}
	}
	if text, err := small(root, "etc/resolv.conf"); err == nil && string(text) == boot.Resolver {
		if err := root.Remove("etc/resolv.conf"); err != nil {
			return err
		}
	}
	for _, name := range []string{"etc/passwd", "etc/group"} {
		text, err := small(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = root.WriteFile(name, renumber(text, strconv.Itoa(tool), strconv.Itoa(native.ToolUID)), 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// small reads a regular file of a bounded size.
func small(root *os.Root, name string) ([]byte, error) {
	if fi, err := root.Lstat(name); err != nil {
		return nil, err
	} else if !fi.Mode().IsRegular() || fi.Size() > maxAccounts {
		return nil, outboard.Errorf(outboard.Invalid, "/%s is no file of the usual kind", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxAccounts))
}

// renumber gives the tool's name its identity of layers back.
func renumber(text []byte, from, to string) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(text) {
		f := strings.Split(string(line), ":")
		for i := 2; i < min(len(f), 4); i++ {
			if strings.TrimSpace(f[i]) == from {
				f[i] = strings.Replace(f[i], from, to, 1)
			}
		}
		out.WriteString(strings.Join(f, ":"))
	}
	return out.Bytes()
}
