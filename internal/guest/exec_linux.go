package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// basePath is where commands are looked up inside.
const basePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// execInput is the input of op exec.
type execInput struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env"`
	Cwd  string            `json:"cwd"`
}

// attr is how every tool process starts: its own session, the tool's identity, the base environment. dir "" is
// where tools begin.
func (s *server) attr(dir string) *os.ProcAttr {
	if dir == "" {
		dir = s.base()
	}
	if !strings.HasPrefix(dir, "/") {
		dir = filepath.Join(s.base(), dir)
	}
	dir = s.cfg.real(dir)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && dir == s.cfg.real(s.base()) {
		dir = "/" // the tool removed where it begins; a shell must still come up
	}
	a := &os.ProcAttr{Dir: dir, Env: s.env(), Sys: &syscall.SysProcAttr{Setsid: true}}
	if !s.sameID {
		a.Sys.Credential = &syscall.Credential{Uid: uint32(s.cfg.ToolUID), Gid: uint32(s.cfg.ToolGID)}
	}
	return a
}

func (s *server) env() []string {
	return append([]string{
		"PATH=" + basePath, "HOME=" + s.cfg.real(s.cfg.Home), "USER=" + s.cfg.ToolName, "LOGNAME=" +
			s.cfg.ToolName, "SHELL=/bin/bash",
		"LANG=C.UTF-8", "TERM=dumb",
	}, s.cfg.Env...)
}

// lastOfEach keeps the last value of every name, where it stands. A program that is given two looks at the first
// or the last as it likes; only shells make one of them.
func lastOfEach(env []string) []string {
	last := make(map[string]int, len(env))
	for i, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		last[name] = i
	}
	out := make([]string, 0, len(last))
	for i, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); last[name] == i {
			out = append(out, kv)
		}
	}
	return out
}

// exec runs one process without a shell.
func (s *server) exec(ctx context.Context, durable <-chan struct{}, c Start, k *sink) outcome {
	in, err := readExec(c.Input)
	if err != nil {
		return refused(k, "exec: unreadable input: %v", err)
	}
	if len(in.Argv) == 0 || in.Argv[0] == "" {
		return refused(k, "exec: argv is required")
	}
	<-durable
	ctx, cancel, limit := lifetime(ctx, c, 0)
	defer cancel()
	if ctx.Err() != nil {
		return ended(ctx)
	}
	attr := s.attr(in.Cwd)
	for name, value := range in.Env {
		attr.Env = append(attr.Env, name+"="+value)
	}
	attr.Env = append(attr.Env, "OUTBOARD_CALL_KEY="+c.Key)
	run := s.runExec
	if s.children.gvisor && !s.children.plain.Load() {
		run = s.runGvisorExec
	}
	p, pump, err := run(in.Argv, attr, k)
	if err != nil {
		return refused(k, "exec: %v", err)
	}
	o := outcome{Cause: causeExited}
	select {
	case <-p.done:
		o.ExitCode = new(p.exitCode())
	case <-ctx.Done():
		o = ended(ctx)
		signalAll(append(members(p.pid, moment0), p.pid), syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(killPatience):
		}
		p.kill()
		<-p.done
		sweep(p.pid, moment0)
	}
	if pump != nil && pump.finish() {
		pump.r.Close()
	} else if pump != nil {
		s.pipes.drain(pump.r)
	}
	if err := p.failure(); err != nil {
		return refused(k, "exec: %v", err)
	}
	if o.Cause == causeTimeout {
		fmt.Fprintf(k, "\n[timed out after %s]\n", limit)
	}
	return o
}

// runExec starts a program and what reads its output.
func (s *server) runExec(argv []string, attr *os.ProcAttr, k *sink) (*process, *pump, error) {
	path, err := lookPath(argv[0], attr.Env)
	if err != nil {
		return nil, nil, err
	}
	r, w, err := pipe2(0)
	if err != nil {
		return nil, nil, err
	}
	defer w.Close()
	null, err := openNull(syscall.O_RDONLY)
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	defer null.Close()
	attr.Files = []*os.File{null, w, w}
	p, err := s.children.start(path, argv, attr, &s.wg)
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	return p, startPump(r, k, &s.wg), nil
}

// lookPath returns where a program is, looked up in the PATH that it will have, the last of env.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := basePath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for dir := range strings.SplitSeq(path, ":") {
		file := filepath.Join(dir, name)
		info, err := os.Stat(file)
		if dir == "" || err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			continue
		}
		return file, nil
	}
	return "", fmt.Errorf("%s: not found in PATH", name)
}
