package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/image"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// built is what is noted of a built layer.
type built struct {
	Env map[string]string `json:"env,omitempty"` // for what runs over it
}

// layerKey is everything that can change what comes of building a layer. Who else reaches the same key gets the
// same layer, so it begins with whose it is: what an organization's build may fetch, and what it does with that,
// is no other's.
type layerKey struct {
	Org       outboard.OrgID      `json:"org"` // "" for what the server alone decides
	Work      string              `json:"work"`
	Rootfs    string              `json:"rootfs"`
	Layers    []string            `json:"layers"`
	Settings  image.Settings      `json:"settings"`
	Network   outboard.Networking `json:"network"` // as it holds, not as it was wished for
	Isolation string              `json:"isolation"`
}

// build adds a layer of an organization to a stack: what work does in a machine that begins with the stack. key
// says what work is; a layer of the same layerKey is used again. The machine has a row, no session and the
// network of env.
func (f *Fleet) build(ctx context.Context, org outboard.OrgID, st *stack, key string, env outboard.EnvConfig,
	work func(ctx context.Context, m *machine) (built, error)) error {
	b, ok := f.cfg.Provider.(sandbox.Builder)
	if !ok {
		return outboard.Errorf(outboard.Unavailable, "provider %s builds no layers", f.cfg.Provider.Name()).
			WithHint("outboard doctor")
	}
	whole, err := json.Marshal(layerKey{Org: org, Work: key, Rootfs: st.rootfs, Layers: st.layers,
		Settings: st.settings, Network: env.Networking, Isolation: env.Isolation})
	if err != nil {
		return fmt.Errorf("naming a layer: %w", err)
	}
	layer := image.Built(string(whole))
	raw, err := f.cfg.Images.Build(ctx, layer, func(ctx context.Context, dir string) (any, error) {
		return f.buildIn(ctx, b, *st, env, dir, work)
	})
	if err != nil {
		return err
	}
	note, err := image.Note[built](raw)
	if err != nil {
		return err
	}
	st.layers = append([]string{layer}, st.layers...)
	st.add(note.Env)
	return nil
}

// orDefault is an organization; rows of before there were any are the default one's.
func orDefault(org outboard.OrgID) outboard.OrgID { return cmp.Or(org, outboard.DefaultOrg) }

// buildIn runs work in a new machine and takes what it wrote. The machine is gone afterwards, whatever happened.
func (f *Fleet) buildIn(ctx context.Context, b sandbox.Builder, st stack, env outboard.EnvConfig, dir string,
	work func(ctx context.Context, m *machine) (built, error)) (note built, err error) {
	st.build = true
	env.Limits.DiskBytes = 0
	err = f.temporary(ctx, env, st, func(ctx context.Context, m *machine, id outboard.SandboxID) error {
		if note, err = work(ctx, m); err != nil {
			return err
		}
		if err := b.Commit(ctx, id, dir); err != nil {
			return fmt.Errorf("making a layer: %w", err)
		}
		return nil
	})
	return note, err
}

// temporary does something in a machine that is of no session and no box. The machine has a row and is gone
// afterwards, whatever happened. Where the stack has an owner, it counts among theirs and ends with them.
func (f *Fleet) temporary(ctx context.Context, env outboard.EnvConfig, st stack,
	work func(context.Context, *machine, outboard.SandboxID) error) (err error) {
	row := outboard.Sandbox{ID: outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox), Provider: f.maker(env),
		Owner: st.owner, Person: st.person,
		Host: f.cfg.Host, Generation: rand.Text(), CreatedAt: f.now()}
	h, err := f.hold(ctx, row.ID)
	if err != nil {
		return err
	}
	defer f.letGo(h)
	var sb sandbox.Sandbox
	defer func() { err = f.unmake(ctx, row, sb, err) }() // also after success: what it made is all that stays
	if err := f.add(ctx, &row, st.org, env); err != nil {
		return err
	}
	if st.owner != "" {
		f.own(row.ID, outboard.KillSubject{Owner: st.owner, Person: st.person})
	}
	// whose policies hold
	cfg := outboard.SessionConfig{Env: env, Owner: outboard.Owner{Org: st.org, User: st.person, Key: st.owner}}
	if sb, err = f.create(ctx, row, cfg, st, nil, origin{}); err != nil {
		return err
	}
	if err := f.put(ctx, &row, stateLive); err != nil {
		return err
	}
	return work(ctx, newMachine(sb), row.ID)
}

// maxTail bounds what is kept of a command's output to explain its failure.
const maxTail = 2 << 10

// tail keeps the end of what is written to it.
type tail struct{ b []byte }

func (t *tail) add(b []byte) {
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-maxTail):]
}

// String is what can be shown: without the part of a line that was cut off where there are others, and on few lines.
func (t *tail) String() string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.b), ""))
	if _, whole, ok := strings.Cut(text, "\n"); ok && len(t.b) == maxTail {
		return whole
	}
	return text
}

// command runs a program in a machine and returns the end of what it said when it failed.
func command(ctx context.Context, m *machine, p ProcessStart) (code int, said string, err error) {
	var t tail
	_, exit, err := m.StartProcess(ctx, p, func(e ProcessEvent) error {
		if e.Kind == Stdout || e.Kind == Stderr {
			t.add(e.Data)
		}
		return nil
	})
	if exit.Signal != 0 {
		return -1, t.String(), err
	}
	return exit.Code, t.String(), err
}
