package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/fleet"
	"go.yaml.in/yaml/v3"
)

// checkModel runs exactly the steps it is given.
const checkModel = "script/steps"

// checkTitle is the title of the sessions that checks run in.
const checkTitle = "check of "

// checkKey is the metadata of a session that says how its newest check ended, and when the session had come to
// rest before it.
const checkKey = "outboard.check"

func checkMark(outcome string, rested time.Time) string {
	return outcome + " " + rested.UTC().Format(time.RFC3339Nano)
}

// checkFailed reports whether the check of what a session came to when it rested last has failed.
func checkFailed(s client.Session, rested time.Time) bool {
	return s.Metadata[checkKey] == checkMark("failed", rested)
}

// runCheck runs a command on a copy of a session's result and reports whether it exited with 0. It uses a fresh
// sandbox in which no process of the agent runs. The check is a separate session: its log stays, and the session is
// archived at the end.
func runCheck(ctx context.Context, a *app, c *conn, of client.Session, command string) (passed bool, err error) {
	n, file, err := checkSession(ctx, c, of, command)
	if err != nil {
		return false, err
	}
	if file != "" {
		defer func() { err = errors.Join(err, c.DeleteFile(context.WithoutCancel(ctx), file)) }()
	}
	s, err := c.CreateSession(ctx, n)
	if err != nil {
		return false, err
	}
	w := a.newWatch(c, s.ID)
	w.opt.Live = nil
	w.tl.output, w.tl.tools = true, true
	code, err := w.followCheck(ctx)
	if err != nil {
		return false, err
	}
	return code == 0, c.ArchiveSession(ctx, s.ID)
}

// checkSession describes the session that checks another one's result, and names the upload made for it, if one was.
func checkSession(ctx context.Context, c *conn, of client.Session,
	command string) (n client.NewSession, file string, err error) {
	steps, err := yaml.Marshal([]map[string]any{{"bash": map[string]string{"command": command}}, {"say": "checked"}})
	if err != nil {
		return n, "", fmt.Errorf("writing the check: %w", err)
	}
	agent, err := agentByName(ctx, c.Client, "outboard-check", map[string]any{"name": "outboard-check",
		"model":       checkModel,
		"description": "Runs the --check command of outboard run.", "tools": []any{map[string]any{"type": toolsetName}}})
	if err != nil {
		return n, "", err
	}
	n = client.NewSession{Agent: agent, EnvironmentID: of.EnvironmentID, Title: checkTitle + sessionName(of.ID),
		InitialEvents: []any{client.UserMessage(string(steps))}}
	body, err := c.Workspace(ctx, of.ID)
	if outboard.KindOf(err) == outboard.NotFound { // nothing was changed: what was sent is the result
		if v := of.Metadata[workspaceKey]; v != "" {
			n.Metadata = map[string]string{workspaceKey: v}
		}
		return n, "", nil
	}
	if err != nil {
		return n, "", err
	}
	defer body.Close()
	err = withSpool(func(f *os.File) error {
		if err := packWorkspace(f, body); err != nil {
			return err
		}
		up, err := sendSpool(ctx, c.Client, "workspace.tar.gz", "the result of "+sessionName(of.ID)+" to be checked", f,
			nil)
		file = up.ID
		return err
	})
	n.Metadata = map[string]string{workspaceKey: file + ":" + fleet.WorkspaceGzip}
	return n, file, err
}

// packWorkspace writes a workspace to a file, compressed.
func packWorkspace(f *os.File, body io.Reader) error {
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err == nil {
		_, err = io.Copy(z, body)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return fmt.Errorf("reading the result to be checked: %w", err)
	}
	return nil
}

// followCheck shows the check and returns its exit status.
func (w *watch) followCheck(ctx context.Context) (int, error) {
	code := -1
	defer w.keepLive(ctx)()
	for ev, err := range w.c.Follow(ctx, w.id, w.opt) {
		if err != nil {
			return code, err
		}
		if ev.Type == ownPrefix+"call.finished" {
			p, err := decodeOwn(ev)
			if err != nil {
				return code, err
			}
			if p.ExitCode != nil {
				code = *p.ExitCode
			}
		}
		if err := w.showRow(ev); err != nil {
			return code, err
		}
		rest, err := w.rested(ctx, ev)
		if err != nil {
			return code, err
		}
		if rest != "" && code < 0 {
			return code, outboard.Errorf(outboard.Unavailable, "the check did not run to an end (%s)", rest)
		}
		if rest != "" {
			return code, nil
		}
	}
	return code, errors.Join(context.Cause(ctx), errors.New("the check's session ended early"))
}
