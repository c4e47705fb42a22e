package image

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard"
)

// tool is a program that ends with its context, with all that it started, and has nothing of this process's
// environment but what programs that fetch need.
func tool(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
		"HOME=/nonexistent"}
	for _, v := range []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY"} {
		if value, ok := os.LookupEnv(v); ok {
			cmd.Env = append(cmd.Env, v+"="+value)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

// aptMirror is where this host's apt has packages of a suite from, or of any suite where it has none of that.
func aptMirror(ctx context.Context, suite string) (string, error) {
	none := outboard.Errorf(outboard.Unavailable, "there is no mirror to make a root file system of packages from: "+
		"this host's apt names none").
		WithHint("set images.mirrors.debootstrap in the server's configuration")
	out, err := tool(ctx, "apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)",
		"Created-By: Packages").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", none
	}
	if err != nil {
		return "", outboard.Errorf(outboard.Unavailable, "asking apt where packages are: %w", err)
	}
	found := ""
	for line := range strings.Lines(string(out)) {
		release, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		component, uri, _ := strings.Cut(rest, " ")
		switch {
		case component != "main" || uri == "":
		case release == suite:
			return uri, nil
		case found == "":
			found = uri
		}
	}
	if found == "" {
		return "", none
	}
	return found, nil
}

// debootstrap fetches, checks and unpacks the packages of a system into a directory. No program of theirs runs.
func debootstrap(ctx context.Context, b Base, mirror, tree string) error {
	if os.Geteuid() != 0 {
		return outboard.Errorf(outboard.Unavailable, "making a root file system with debootstrap takes a server "+
			"that runs as root").WithHint("use an image: config.outboard.image of the environment")
	}
	var said ending
	cmd := tool(ctx, "debootstrap", "--foreign", "--force-check-gpg", "--variant="+variants[b.Variant], b.Suite, tree,
		mirror)
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return outboard.Errorf(outboard.Unavailable, "making a root file system of %s: there is no debootstrap on "+
			"this host", b.Suite).WithHint("apt-get install debootstrap")
	case ctx.Err() != nil:
		return outboard.Errorf(outboard.Canceled, "making a root file system of %s: %w", b.Suite, context.Cause(ctx))
	case err != nil:
		return outboard.Errorf(outboard.Unavailable, "making a root file system of %s from %s: debootstrap failed: %s",
			b.Suite, mirror, said.String())
	}
	return nil
}

// archive reads a tree as a tar, but for what a sandbox has of its own: debootstrap leaves links to the host there.
func archive(ctx context.Context, tree string, read func(io.Reader) error) error {
	var said ending
	cmd := tool(ctx, "tar", "--numeric-owner", "--exclude=./proc", "--exclude=./sys", "--exclude=./dev", "-C",
		filepath.Clean(tree), "-cf", "-", ".")
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "reading a root file system: %w", err)
	}
	if err = read(out); err == nil {
		_, err = io.Copy(io.Discard, out) // the padding after the archive's end
	}
	if err != nil {
		_ = cmd.Cancel() // it has nobody to write to
		_ = cmd.Wait()
		return err
	}
	if err := cmd.Wait(); err != nil {
		return outboard.Errorf(outboard.Unavailable, "reading a root file system: %w: %s", err, said.String())
	}
	return nil
}
