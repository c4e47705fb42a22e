package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// The large workspace: 1 GB in 20,000 files.
const (
	bigParts = 20
	bigFiles = 1000 // per part
	bigFile  = 52_500
)

// layerRows checkpoints a small change in an empty workspace and in a large one, and forks from the large one.
func layerRows(ctx context.Context, h *hands) ([]Row, error) {
	if !h.native.Capabilities().Layers {
		return []Row{{Name: "sandbox/checkpoint", Note: "this host has no layers"}}, nil
	}
	box, _, err := h.make(ctx)
	if err != nil {
		return nil, err
	}
	defer h.native.Destroy(context.WithoutCancel(ctx), box.ID())
	defer box.Close()
	n := min(h.N, 30) // each leaves a layer
	empty, _, err := pushes(ctx, box, "empty", n, true)
	if err != nil {
		return nil, err
	}
	after, _, err := pushes(ctx, box, "after", n, false)
	if err != nil {
		return nil, err
	}
	for i := range bigParts {
		command := fmt.Sprintf("mkdir /workspace/%d; cd /workspace/%d; head -c %d /dev/zero | split -b %d -a 3 -", i, i,
			bigFiles*bigFile, bigFile)
		if _, err := bashOnce(ctx, box, command, fmt.Sprint("fill/", i)); err != nil {
			return nil, err
		}
	}
	if _, _, err := pushes(ctx, box, "first", 1, true); err != nil { // which takes in the gigabyte
		return nil, err
	}
	big, last, err := pushes(ctx, box, "big", n, true)
	if err != nil {
		return nil, err
	}
	forks, err := forks(ctx, h, last)
	if err != nil {
		return nil, err
	}
	to := ratio(micros(quantile(big, 0.5)), micros(quantile(empty, 0.5)))
	one, next := latency("checkpoint-empty", empty, 2), latency("checkpoint-at-once", after, 0)
	one.Note = "floor is F, the spawn of " + h.kind + "; what is made ahead is there"
	fork := latency("fork-1gb-first", forks, 16)
	fork.Note = "a started sandbox waits, as by default"
	next.Note = "one straight after the other: each waits for what the last began to make"
	return []Row{
		one, next,
		latency("checkpoint-1gb", big, 2),
		Row{Name: "sandbox/checkpoint-1gb-to-empty", Unit: "x", N: n, P50: to, Floor: 1, Ratio: to,
			Note: "1 GB in 20,000 files"}.AtMost(1.5),
		fork,
	}, nil
}

// bashOnce runs a command in the persistent shell.
func bashOnce(ctx context.Context, box sandbox.Sandbox, command, key string) (time.Duration, error) {
	input, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		return 0, err
	}
	return execOnce(ctx, box, "bash", input, key)
}

// pushes times checkpoints, each after a command that changed a file, and, settled, when nothing is being made
// for the sandbox.
func pushes(ctx context.Context, box sandbox.Sandbox, name string, n int,
	settled bool) (took []time.Duration, last outboard.CheckpointID, err error) {
	for i := range n {
		if _, err := bashOnce(ctx, box, "cd /workspace; echo >> changed", fmt.Sprint(name, "/", i)); err != nil {
			return nil, "", err
		}
		if s, ok := box.(interface{ Settled() }); ok && settled {
			s.Settled()
		}
		id := outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint)
		begin := time.Now()
		pushed, err := box.(sandbox.Layered).Push(ctx, id, last)
		took = append(took, time.Since(begin))
		if err == nil && (!pushed.Changed || pushed.Copied) {
			err = fmt.Errorf("checkpoint %d: %+v", i, pushed)
		}
		if err != nil {
			return nil, "", err
		}
		last = id
	}
	return took, last, nil
}

// forks times new sandboxes from a checkpoint, with their first command.
func forks(ctx context.Context, h *hands, from outboard.CheckpointID) (took []time.Duration, err error) {
	for range 20 {
		h.native.PoolFilled()
		id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
		begin := time.Now()
		box, err := h.native.Create(ctx, sandbox.Spec{ID: id, Generation: string(id), From: from})
		if err != nil {
			return nil, err
		}
		_, err = execOnce(ctx, box, "exec", processTrue, string(id)+"/1")
		took = append(took, time.Since(begin))
		if err := errors.Join(err, box.Close(), h.native.Destroy(ctx, id)); err != nil {
			return nil, err
		}
		h.native.TrashEmpty()
	}
	return slices.Clip(took), nil
}
