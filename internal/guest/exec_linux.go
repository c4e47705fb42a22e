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

// attr is how every tool process starts: its own session, the tool's identity, the base environment. dir "" is where tools begin.
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
	if !s.sameID() {
		a.Sys.Credential = &syscall.Credential{Uid: uint32(s.cfg.ToolUID), Gid: uint32(s.cfg.ToolGID)}
	}
	return a
}

// sameID reports whether tools run as the guest itself.
func (s *server) sameID() bool {
	return s.cfg.ToolUID == os.Geteuid() && s.cfg.ToolGID == os.Getegid()
}

func (s *server) env() []string {
	return append([]string{
		"PATH=" + basePath, "HOME=" + s.cfg.real(s.cfg.Home), "USER=" + s.cfg.ToolName, "LOGNAME=" + s.cfg.ToolName, "SHELL=/bin/bash",
		"LANG=C.UTF-8", "TERM=dumb",
	}, s.cfg.Env...)
}

// lastOfEach keeps the last value of every name, where it stands. A program that is given two looks at the first or the last as it likes;
// only shells make one of them.
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
	r, w, err := pipe2(0)
	if err != nil {
		return refused(k, "exec: %v", err)
	}
	null, err := openNull(syscall.O_RDONLY)
	if err != nil {
		return refused(k, "exec: %v", errors.Join(err, r.Close(), w.Close()))
	}
	attr := s.attr(in.Cwd)
	attr.Files = []*os.File{null, w, w}
	for name, value := range in.Env {
		attr.Env = append(attr.Env, name+"="+value)
	}
	attr.Env = append(attr.Env, "OUTBOARD_CALL_KEY="+c.Key)
	p, err := s.lookStart(in.Argv, attr)
	w.Close()
	null.Close()
	if err != nil {
		r.Close()
		return refused(k, "exec: %v", err)
	}
	pump := startPump(r, k, &s.wg)
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
	if pump.finish() {
		r.Close()
	} else {
		s.pipes.linger(r)
	}
	if o.Cause == causeTimeout {
		fmt.Fprintf(k, "\n[timed out after %s]\n", limit)
	}
	return o
}

// lookStart starts argv, looking its first element up in the PATH that the process will have.
func (s *server) lookStart(argv []string, attr *os.ProcAttr) (*process, error) {
	if strings.Contains(argv[0], "/") {
		return s.children.start(argv[0], argv, attr, &s.wg)
	}
	path := basePath
	for _, kv := range attr.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	for dir := range strings.SplitSeq(path, ":") {
		file := filepath.Join(dir, argv[0])
		info, err := os.Stat(file)
		if dir == "" || err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			continue
		}
		return s.children.start(file, argv, attr, &s.wg)
	}
	return nil, fmt.Errorf("%s: not found in PATH", argv[0])
}
