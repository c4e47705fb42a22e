package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/fleet"
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
	Plain   bool   `json:"plain,omitempty"` // GitDir is private: Root is in no repository
	Base    string `json:"base"`            // commit of what was sent
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
		return nil, outboard.Errorf(outboard.NotFound, "no work was sent to %s from this machine", sessionName(session)).
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

func (s *sent) tree() *worktree.Tree { return worktree.Reopen(s.Root, s.GitDir, s.Plain) }

// forget drops what is remembered of a session: the upload is the server's to delete.
func (s *sent) forget(ctx context.Context, data string) error {
	dir, err := runsDir(data)
	if err != nil {
		return err
	}
	if s.Plain {
		var shared bool
		if shared, err = s.sharedDir(dir); err == nil && !shared {
			err = os.RemoveAll(s.GitDir)
		}
	} else if _, serr := os.Stat(s.GitDir); serr == nil {
		err = s.tree().Forget(ctx, s.Session)
	}
	return errors.Join(err, os.Remove(sentPath(dir, s.Session)))
}

// sending is work on its way: taken and uploaded, not yet bound to a session.
type sending struct {
	tree *worktree.Tree
	snap worktree.Snapshot
	file client.File
}

// sendWork takes the work of a directory and uploads it.
func sendWork(ctx context.Context, c *conn, dir string, plain, clean bool) (*sending, error) {
	private := ""
	if plain {
		runs, err := runsDir(c.data)
		if err != nil {
			return nil, err
		}
		private = filepath.Join(runs, outboard.NewID[string]("dir")+".git")
	}
	tree, err := worktree.Open(ctx, dir, private)
	if err != nil {
		return nil, err
	}
	s := &sending{tree: tree}
	if s.snap, err = tree.Snapshot(ctx, clean); err != nil {
		return nil, err
	}
	s.file, err = uploadTar(ctx, c.Client, func(w io.Writer) error { return tree.Pack(ctx, &s.snap, workspacePrefix, w) })
	return s, err
}

// uploadTar uploads what write produces, as it is produced.
func uploadTar(ctx context.Context, c *client.Client, write func(io.Writer) error) (client.File, error) {
	pr, pw := io.Pipe()
	failed := make(chan error, 1)
	go func() {
		err := write(pw)
		pw.CloseWithError(err)
		failed <- err
	}()
	f, err := c.Upload(ctx, "workspace.tar", pr)
	pr.CloseWithError(io.ErrClosedPipe)
	if werr := <-failed; werr != nil && !errors.Is(werr, io.ErrClosedPipe) {
		return f, werr
	}
	return f, err
}

// bind remembers that the work went to a session.
func (s *sending) bind(ctx context.Context, data, session string) error {
	if err := s.tree.Keep(ctx, session, s.snap.Base); err != nil {
		return err
	}
	rec := sent{Session: session, Root: s.tree.Root, GitDir: s.tree.GitDir, Plain: s.tree.Plain, Base: s.snap.Base, File: s.file.ID,
		Files: s.snap.Files, Changed: s.snap.Changed}
	return rec.save(data)
}
