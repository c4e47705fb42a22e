package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/text"
)

// workspace is the directory that the protocol is about.
const workspace = "/workspace"

// maxSaid bounds what is kept of a tar's complaints.
const maxSaid = 2 << 10

// ref is the file that the path names. Only the workspace is reachable; a link in it is followed with the rights
// of the box's user.
func (r *request) ref() (control.FileRef, error) {
	p := "/" + r.PathValue("path")
	if p != path.Clean(p) || !strings.HasPrefix(p, workspace+"/") || strings.ContainsRune(p, 0) {
		return control.FileRef{}, outboard.Errorf(outboard.Denied, "the path %q is not one below %s", p, workspace)
	}
	return control.FileRef{Path: control.Name(p)}, nil
}

func (s *Server) read(r *request) error {
	ref, err := r.ref()
	if err != nil {
		return err
	}
	m, err := s.machine(r)
	if err != nil {
		return err
	}
	e, err := m.Stat(r.Context(), ref)
	if err != nil {
		return control.BoxError(err)
	}
	if e.Kind != "file" {
		return outboard.Errorf(outboard.Invalid, "%s is not a regular file", ref.Path)
	}
	binary(r.w)
	r.w.Header().Set("Content-Length", strconv.FormatInt(e.Size, 10))
	if e.Size == 0 {
		return nil
	}
	if err := m.ReadFile(r.Context(), ref, 0, e.Size, r.w); err != nil {
		s.log.Warn("a file broke off", "box", r.id(), "err", err)
		panic(http.ErrAbortHandler) // less than was promised
	}
	return nil
}

// binary describes an answer of bytes. None is shown as a page.
func binary(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment")
	h.Set("X-Content-Type-Options", "nosniff")
}

func (s *Server) write(r *request) error {
	ref, err := r.ref()
	if err != nil {
		return err
	}
	m, err := s.machine(r)
	if err != nil {
		return err
	}
	ref.Whole = true
	_, err = m.WriteFile(r.Context(), ref, nil, http.MaxBytesReader(r.w, r.Body, outboard.MaxFile))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return outboard.Errorf(outboard.TooLarge, "the file is larger than %d bytes", int64(outboard.MaxFile))
	}
	if err != nil {
		return control.BoxError(err)
	}
	reply(r.w, http.StatusOK, map[string]bool{"ok": true})
	return nil
}

// persist answers with the workspace as a tar, without some paths of it. It is made inside, by the box's user.
func (s *Server) persist(r *request) error {
	excludes, err := excluded(r.URL.Query().Get("excludes"))
	if err != nil {
		return err
	}
	argv := []string{"tar", "-C", workspace, "--no-wildcards", "--anchored"}
	for _, p := range excludes {
		argv = append(argv, "--exclude="+p)
	}
	m, err := s.machine(r)
	if err != nil {
		return err
	}
	// said now: once the archive has begun it can only break off
	if file := unreadable(r.Context(), m, excludes); file != "" {
		return outboard.Errorf(outboard.Denied, "%q cannot be read by the sandbox's user, so the archive would lack "+
			"it: chmod it, or exclude it", file)
	}
	said, begun := "", false
	exit, err := run(r.Context(), m, control.ProcessStart{Argv: append(argv, "-cf", "-", "."), Cwd: workspace},
		func(e control.ProcessEvent) error {
			switch e.Kind {
			case control.Stdout:
				if !begun {
					binary(r.w)
					begun = true
				}
				_, err := r.w.Write(e.Data)
				return err
			case control.Stderr:
				said = clip(said + string(e.Data))
			case control.Lost:
				return errors.New("a part of the archive is lost")
			}
			return nil
		})
	if err == nil && code(exit) != 0 {
		err = outboard.Errorf(outboard.Unavailable, "tar ended with %d: %s", code(exit), said)
	}
	if err != nil && begun {
		s.log.Warn("an archive broke off", "box", r.id(), "err", err)
		panic(http.ErrAbortHandler) // what has gone out is not a whole archive
	}
	return control.BoxError(err)
}

// excluded reads the paths to leave out, and returns them as tar and find name them.
func excluded(list string) ([]string, error) {
	var out []string
	for p := range strings.SplitSeq(list, ",") {
		p = strings.TrimPrefix(p, "./")
		if p == "" {
			continue
		}
		if p != path.Clean(p) || path.IsAbs(p) || p == ".." || strings.HasPrefix(p, "../") ||
			strings.ContainsRune(p, 0) {
			return nil, outboard.Errorf(outboard.Invalid, "excludes: %q is not a path below %s", p, workspace)
		}
		out = append(out, "./"+p)
	}
	return out, nil
}

// literal makes a path a pattern of find's that matches itself alone.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// unreadable returns a file or directory of the workspace that the box's user may not read, "" where there is
// none. It is a look ahead: where it cannot be had, for want of GNU find for one, tar says what it meets.
func unreadable(ctx context.Context, m control.Sandbox, excludes []string) string {
	argv := []string{"find", "."}
	for _, p := range excludes {
		argv = append(argv, "-path", literal.Replace(p), "-prune", "-o")
	}
	argv = append(argv, "(", "-type", "f", "!", "-readable", "-o", "-type", "d", "!", "(", "-readable", "-executable",
		")", ")", "-print", "-quit")
	found := ""
	_, err := run(ctx, m, control.ProcessStart{Argv: argv, Cwd: workspace}, func(e control.ProcessEvent) error {
		if e.Kind == control.Stdout {
			found = clip(found + string(e.Data))
		}
		return nil
	})
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(strings.TrimSuffix(found, "\n"), "./")
}

// hydrate unpacks a tar into the workspace. It is read inside, by the box's user.
func (s *Server) hydrate(r *request) error {
	m, err := s.machine(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	var feeding sync.WaitGroup
	defer feeding.Wait()
	defer cancel(nil)
	body := http.MaxBytesReader(r.w, r.Body, outboard.MaxFile)
	said := ""
	exit, err := run(ctx, m, control.ProcessStart{Argv: []string{"tar", "-C", workspace, "-xpf", "-"}, Cwd: workspace,
		Stdin: true}, func(e control.ProcessEvent) error {
		switch e.Kind {
		case control.Started:
			feeding.Go(func() {
				// also when tar has all it wants before its input ends
				if err := feed(ctx, m, e.Pid, body, cancel); err != nil {
					s.log.Debug("the rest of an archive was not read", "box", r.id(), "err", err)
				}
			})
		case control.Stderr:
			said = clip(said + string(e.Data))
		}
		return nil
	})
	if cause := context.Cause(ctx); err != nil && cause != nil && r.Context().Err() == nil {
		err = cause
	}
	if err == nil && code(exit) != 0 {
		err = outboard.Errorf(outboard.Invalid, "the archive was not taken: tar ended with %d: %s", code(exit), said)
	}
	if err != nil {
		// nobody wants the rest of the body, and the next request would stand behind it
		r.w.Header().Set("Connection", "close")
		_ = http.NewResponseController(r.w).SetReadDeadline(time.Now())
		return control.BoxError(err)
	}
	reply(r.w, http.StatusOK, map[string]bool{"ok": true})
	return nil
}

// feed writes a body to a process's input. A body that breaks off, or is too long, ends the process: half an
// archive is none.
func feed(ctx context.Context, m control.Sandbox, pid int, body io.Reader, end context.CancelCauseFunc) error {
	ref := control.ProcessRef{Pid: pid}
	from := &failing{r: body}
	err := m.InputProcess(ctx, ref, from)
	switch {
	case from.err != nil:
		err = fmt.Errorf("reading the archive: %w", from.err)
		if _, ok := errors.AsType[*http.MaxBytesError](from.err); ok {
			err = outboard.Errorf(outboard.TooLarge, "the archive is larger than %d bytes", int64(outboard.MaxFile))
		}
		end(err)
		return err
	case err != nil:
		return err
	}
	return m.CloseInput(ctx, ref)
}

// failing remembers what went wrong with a reader.
type failing struct {
	r   io.Reader
	err error
}

// Read notes every error but the end.
func (f *failing) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// clip bounds what is kept of a program's words.
func clip(s string) string { return text.Clip(s, maxSaid) }
