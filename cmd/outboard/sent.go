package main

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/outboard-dev/outboard/internal/worktree"
)

// workspaceKey is the session metadata that names the uploaded tar its first sandbox starts with: "<file id>:tar".
const workspaceKey = fleet.WorkspaceKey

// workspacePrefix begins the names of workspace files in the tars that go to and come from a server.
const workspacePrefix = "workspace/"

// sent is what this machine remembers of the work it sent to a session, so that the result can be brought home.
type sent struct {
	Session string `json:"session"`
	Root    string `json:"root"`
	GitDir  string `json:"git_dir"`
	Store   string `json:"store"`           // private repository that holds Base
	Plain   bool   `json:"plain,omitempty"` // Root is in no repository
	Base    string `json:"base"`            // commit of what was sent
	Head    string `json:"head"`            // HEAD there, "" when there was none
	Start   string `json:"start"`           // commit that the workspace's repository was at
	File    string `json:"file"`            // the upload
	Files   int    `json:"files"`
	Changed int    `json:"uncommitted"`
}

func sentPath(dir, session string) string { return filepath.Join(dir, session+".json") }

func (s *sent) save(data string) error {
	dir, err := runsDir(data)
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding what was sent: %w", err)
	}
	if err := writePrivate(sentPath(dir, s.Session), string(b)+"\n"); err != nil {
		return fmt.Errorf("remembering what was sent: %w", err)
	}
	return nil
}

// loadSent returns what was sent to a session from this machine.
func loadSent(data, session string) (*sent, error) {
	dir, err := runsDir(data)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(sentPath(dir, session))
	if errors.Is(err, os.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "no work was sent to %s from this machine",
			sessionName(session)).
			WithHint("outboard pull %s . -o DIR brings its files into a directory", sessionName(session))
	}
	if err != nil {
		return nil, fmt.Errorf("reading what was sent: %w", err)
	}
	s := new(sent)
	if err := json.Unmarshal(b, s); err != nil || s.Session != session {
		return nil, fmt.Errorf("reading %s: not what this program wrote", sentPath(dir, session))
	}
	return s, nil
}

func (s *sent) tree() *worktree.Tree {
	return &worktree.Tree{Root: s.Root, GitDir: s.GitDir, Store: s.Store, Plain: s.Plain}
}

// forget drops what is remembered of a session: the upload is the server's to delete.
func (s *sent) forget(data string) error {
	dir, err := runsDir(data)
	if err != nil {
		return err
	}
	shared, err := s.sharedStore(dir)
	if err == nil && !shared {
		err = os.RemoveAll(s.Store)
	}
	return errors.Join(err, os.Remove(sentPath(dir, s.Session)))
}

// sending is work on its way: taken and uploaded, not yet bound to a session.
type sending struct {
	tree *worktree.Tree
	snap worktree.Snapshot
	file client.File
}

// discard takes back work that no session will have.
func (s *sending) discard(ctx context.Context, c *conn) error {
	if s == nil {
		return nil
	}
	return errors.Join(c.DeleteFile(context.WithoutCancel(ctx), s.file.ID), os.RemoveAll(s.tree.Store))
}

// sendOptions say what of a directory is sent.
type sendOptions struct {
	worktree.Options
	plain bool // also when it is in no repository
}

// sendWork takes the work of a directory and uploads it.
func sendWork(ctx context.Context, a *app, c *conn, dir string, o sendOptions) (_ *sending, err error) {
	runs, err := runsDir(c.data)
	if err != nil {
		return nil, err
	}
	store := filepath.Join(runs, outboard.NewID[string]("dir")+".git")
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(store))
		}
	}()
	tree, err := worktree.Open(ctx, dir, store, o.plain)
	if err != nil {
		return nil, err
	}
	p := a.newProgress()
	defer p.clear()
	s := &sending{tree: tree}
	p.show("collecting the work in %s", tree.Root)
	if s.snap, err = tree.Snapshot(ctx, o.Options); err != nil {
		return nil, err
	}
	if err := tree.Fits(ctx, &s.snap, outboard.MaxFile); err != nil {
		return nil, err
	}
	p.show("packing %s", count(s.snap.Files, "file"))
	err = withSpool(func(f *os.File) error {
		if err := packWork(ctx, s, f); err != nil {
			return err
		}
		s.file, err = sendSpool(ctx, c.Client, "workspace.tar.gz", "the work in "+tree.Root, f, p)
		return err
	})
	return s, err
}

// packWork writes the work to a file, compressed. It stops when that is more than a server takes.
func packWork(ctx context.Context, s *sending, f *os.File) error {
	over := errors.New("over the limit")
	limit := &limitWriter{w: f, left: outboard.MaxFile, over: over}
	z, err := gzip.NewWriterLevel(limit, gzip.BestSpeed)
	if err == nil {
		err = s.tree.Pack(ctx, &s.snap, workspacePrefix, z)
	}
	if err == nil {
		err = z.Close()
	}
	if errors.Is(err, over) {
		return s.snap.TooLarge(outboard.MaxFile, outboard.MaxFile, " compressed, or more")
	}
	if err != nil {
		return fmt.Errorf("packing the work in %s: %w", s.tree.Root, err)
	}
	return nil
}

// limitWriter fails with over beyond so many bytes.
type limitWriter struct {
	w    io.Writer
	left int64
	over error
}

// Write implements io.Writer.
func (l *limitWriter) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, l.over
	}
	return l.w.Write(p)
}

// withSpool lends a temporary file. What is sent lies in one before the request begins: a server gives up on a
// body that pauses.
func withSpool(use func(f *os.File) error) error {
	f, err := os.CreateTemp("", "outboard-send-")
	if err != nil {
		return fmt.Errorf("making a temporary file: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	return use(f)
}

// sendSpool uploads what was written to a file.
func sendSpool(ctx context.Context, c *client.Client, name, what string, f *os.File, p *progress) (client.File, error) {
	size, err := f.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return client.File{}, fmt.Errorf("reading a temporary file: %w", err)
	}
	file, err := c.Upload(ctx, name, &sendingReader{r: f, size: size, p: p})
	if err != nil {
		return file, fmt.Errorf("sending %s (%s): %w", what, formatBytes(size), err)
	}
	return file, nil
}

// sendingReader shows how much of a file was read.
type sendingReader struct {
	r          io.Reader
	size, done int64
	p          *progress
}

// Read implements io.Reader.
func (s *sendingReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.done += int64(n)
	s.p.show("sending %s of %s", formatBytes(s.done), formatBytes(s.size))
	return n, err
}

// progress is a line on a terminal that says what takes its time.
type progress struct {
	w     io.Writer // nil: nobody looks
	width int
	shown time.Time
	last  string
}

// progressEvery is how often a line whose numbers move is drawn.
const progressEvery = 100 * time.Millisecond

func (a *app) newProgress() *progress {
	if a.json || !term.IsTerminal(a.errs) {
		return &progress{}
	}
	return &progress{w: a.errs, width: term.Width(a.errs, 80)}
}

// show replaces the line. Its first word is what is done.
func (p *progress) show(format string, args ...any) {
	verb, _, _ := strings.Cut(format, " ")
	if p == nil || p.w == nil || verb == p.last && time.Since(p.shown) < progressEvery {
		return
	}
	p.last, p.shown = verb, time.Now()
	fmt.Fprintf(p.w, "\r\x1b[K%s", term.Line("outboard: "+fmt.Sprintf(format, args...), p.width-1))
}

// clear takes the line away.
func (p *progress) clear() {
	if p != nil && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// bind remembers that the work went to a session.
func (s *sending) bind(data, session string) error {
	rec := sent{Session: session, Root: s.tree.Root, GitDir: s.tree.GitDir, Store: s.tree.Store, Plain: s.tree.Plain,
		Base: s.snap.Base, Head: s.snap.Head, Start: s.snap.Start,
		File: s.file.ID, Files: s.snap.Files, Changed: s.snap.Changed}
	return rec.save(data)
}
