package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/server"
	"golang.org/x/sys/unix"
)

// tryTimeout bounds doctor's look at one isolation: a user-space kernel on a busy machine takes seconds.
const tryTimeout = 30 * time.Second

// tryIsolations makes a sandbox of each and says what came of it.
func tryIsolations(ctx context.Context, cfg config.Sandbox, guest string) []native.Check {
	var out []native.Check
	for _, i := range server.Isolations(cfg) {
		at, detail, err := try(ctx, i, guest)
		out = append(out, check(i.Name, detail, err))
		out = append(out, versionCheck(i.Name, at.Program, at.Version)...)
	}
	return out
}

// kernelCheck says what is known of the kernel that sandboxes share.
func kernelCheck() []native.Check {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return nil
	}
	return versionCheck("kernel", "kernel", unix.ByteSliceToString(u.Release[:]))
}

// try makes a sandbox in a temporary directory and says what it lacks.
func try(ctx context.Context, i server.Isolation, guest string) (at server.Found, detail string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	if at, err = i.Find(); err != nil {
		return at, "", err
	}
	dir, err := os.MkdirTemp("", "outboard-doctor-")
	if err != nil {
		return at, "", fmt.Errorf("making a temporary directory: %w", err)
	}
	defer os.RemoveAll(dir)
	p, err := i.Open(dir, guest, nil)
	if err != nil {
		return at, "", err
	}
	spec := sandbox.Spec{ID: outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox), Generation: "doctor",
		Network: &sandbox.Network{}}
	sb, err := p.Create(ctx, spec)
	if err != nil {
		return at, "", fmt.Errorf("%s: %w", at, err)
	}
	if err := errors.Join(sb.Close(), p.Destroy(context.WithoutCancel(ctx), spec.ID)); err != nil {
		return at, "", fmt.Errorf("%s: %w", at, err)
	}
	c := p.Capabilities()
	return at, fmt.Sprintf("%s; %s; without %s", at, strings.Join(holds(c), ", "), strings.Join(lacks(c), ", ")), nil
}

// holds is what protects a sandbox of a technology on this host.
func holds(c sandbox.Capabilities) []string {
	var out []string
	for _, l := range c.Limits {
		out = append(out, l+" limit")
	}
	for _, l := range c.Whole {
		if !slices.Contains(c.Limits, l) {
			out = append(out, l+" limit of the whole")
		}
	}
	if c.Freeze {
		out = append(out, "freezes")
	}
	if c.SeparateID {
		out = append(out, "tools have a uid of their own")
	}
	return out
}

// lacks is what a technology cannot do that others can.
func lacks(c sandbox.Capabilities) []string {
	var out []string
	for _, l := range []string{"memory", "pids", "cpu", "disk"} {
		if !slices.Contains(c.Limits, l) && !slices.Contains(c.Whole, l) {
			out = append(out, "a "+l+" limit")
		}
	}
	if !c.Freeze {
		out = append(out, "freezing")
	}
	if !c.Layers {
		out = append(out, "checkpoints by layers")
	}
	if !c.DeepTrees {
		out = append(out, "very deep directories")
	}
	if !c.Builds {
		out = append(out, "packages")
	}
	return out
}
