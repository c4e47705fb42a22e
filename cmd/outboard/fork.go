package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/spf13/cobra"
)

// point splits SESSION@SEQ. seq is 0 when there is none.
func point(ref string) (session string, seq int64, err error) {
	session, at, ok := strings.Cut(ref, "@")
	if !ok {
		return ref, 0, nil
	}
	if session == "" {
		return "", 0, usagef("%q names no session: SESSION@SEQ", ref).WithHint("outboard ls -a lists them")
	}
	if seq, err = strconv.ParseInt(at, 10, 64); err != nil || seq < 1 {
		return "", 0, usagef("%q is not a position: it is a number from 1", at).
			WithHint("outboard logs --seq %s shows them", session)
	}
	return session, seq, nil
}

func newFork(a *app) *cobra.Command {
	var n client.NewFork
	cmd := &cobra.Command{Use: "fork SESSION[@SEQ] [MESSAGE|-]", Short: "Start sessions from where another one stood",
		Args:              rangeArgs(1, 2, "a session", "a message"),
		ValidArgsFunction: a.completeSessions,
		Long: "Start new sessions that share the conversation of one up to a position (by default: now) and whose " +
			"machines start with the\n" +
			"files it had there. The session itself is left alone. A position in the middle of a model's response and its calls means\n" +
			"the one before the response. Forks get no secrets, no approvals and nothing that waits. A MESSAGE " +
			"starts each of them.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				text, err := readTask(a.in, args[1], "message", "outboard fork "+args[0]+` "try it the other way"`)
				if err != nil {
					return err
				}
				n.Prompt = text
			}
			return runFork(cmd.Context(), a, n, args[0])
		}}
	f := cmd.Flags()
	f.IntVarP(&n.Count, "number", "n", 1, "how many to start")
	f.StringVar(&n.Title, "title", "", "their title (default: the session's)")
	return cmd
}

type forkLine struct {
	Type   string `json:"type"`
	ID     string `json:"session_id"`
	Name   string `json:"name"`
	Parent string `json:"parent_id"`
	Seq    int64  `json:"forked_at_seq"`
}

func runFork(ctx context.Context, a *app, n client.NewFork, ref string) error {
	ref, seq, err := point(ref)
	if err != nil {
		return err
	}
	if n.Count < 1 || n.Count > outboard.MaxForks {
		return usagef("-n must be 1 to %d", outboard.MaxForks)
	}
	n.Seq = seq
	want := needThere
	if n.Prompt != "" {
		want |= needWork
	}
	c, err := a.connect(ctx, want)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	forks, at, err := c.Fork(ctx, s.ID, n)
	if err != nil {
		return err
	}
	for _, f := range forks {
		if err := inherit(c.data, s.ID, f.ID); err != nil {
			return err
		}
		if a.json {
			err = a.object(forkLine{"fork", f.ID, sessionName(f.ID), s.ID, at})
		} else {
			_, err = fmt.Fprintln(a.out, sessionName(f.ID))
		}
		if err != nil {
			return err
		}
	}
	a.say("%s of %s at %d", count(len(forks), "fork"), sessionName(s.ID), at)
	if n.Prompt != "" && c.private != nil {
		a.say("no server runs on %s, so they wait until one does: outboard attach %s, or outboard serve", c.data,
			sessionName(forks[0].ID))
	}
	return nil
}

// inherit lets diff and apply bring a fork's result home to where its parent's work came from.
func inherit(data, parent, fork string) error {
	rec, err := loadSent(data, parent)
	if outboard.KindOf(err) == outboard.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	rec.Session, rec.File = fork, ""
	return rec.save(data)
}

// sharedStore reports whether another session's record names the same private repository.
func (s *sent) sharedStore(dir string) (bool, error) {
	names, err := filepath.Glob(filepath.Join(dir, "sesn_*.json"))
	if err != nil {
		return false, fmt.Errorf("listing %s: %w", dir, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return false, fmt.Errorf("reading what was sent: %w", err)
		}
		if name != sentPath(dir, s.Session) && strings.Contains(string(b), filepath.Base(s.Store)) {
			return true, nil
		}
	}
	return false, nil
}

func newRewind(a *app) *cobra.Command {
	var r client.Rewinding
	cmd := &cobra.Command{Use: "rewind SESSION@SEQ", Short: "Take a session back to where it stood",
		Args: exactArgs("SESSION@SEQ"), ValidArgsFunction: a.completeSessions,
		Long: "Take a session back: what the model remembers, the files of its machine, or (by default) both. What " +
			"it is doing is\n" +
			"interrupted first. Nothing is deleted: its log keeps what came after, and another rewind brings it back. Messages that\n" +
			"were sent and not yet read start it again from there.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.Conversation && r.Machine {
				return usagef("--conversation and --machine exclude each other; without either both are taken back")
			}
			if !r.Conversation && !r.Machine {
				r.Conversation, r.Machine = true, true
			}
			ref, seq, err := point(args[0])
			if err == nil && seq == 0 {
				err = usagef("rewind needs a position: SESSION@SEQ").
					WithHint("outboard logs --seq %s, or outboard checkpoint ls %s, shows them", ref, ref)
			}
			if err != nil {
				return err
			}
			r.Seq = seq
			return runRewind(cmd.Context(), a, r, ref)
		}}
	cmd.Flags().BoolVar(&r.Conversation, "conversation", false, "only what the model remembers")
	cmd.Flags().BoolVar(&r.Machine, "machine", false, "only the files of the machine")
	return cmd
}

type rewindLine struct {
	Type         string `json:"type"`
	ID           string `json:"session_id"`
	Name         string `json:"name"`
	Seq          int64  `json:"seq"`
	Conversation bool   `json:"conversation"`
	Machine      bool   `json:"machine"`
}

func runRewind(ctx context.Context, a *app, r client.Rewinding, ref string) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	return rewind(ctx, a, c, s, r)
}

// rewind brings a session to rest and takes it back.
func rewind(ctx context.Context, a *app, c *conn, s client.Session, r client.Rewinding) error {
	if calls, err := waitingCalls(ctx, c.Client, s.ID); err != nil {
		return err
	} else if len(calls) > 0 { // it rests, but in the middle of a turn
		if err := c.work(ctx); err != nil {
			return err
		}
		from, _, err := restingSince(ctx, c.Client, s.ID)
		if err != nil {
			return err
		}
		if _, err := c.Send(ctx, s.ID, client.Interrupt()); err != nil {
			return err
		}
		if err := awaitRest(ctx, c.Client, s.ID, from); err != nil {
			return err
		}
	}
	var at int64
	err := endSession(ctx, c, s, func(ctx context.Context, c *conn, s client.Session) (err error) {
		at, err = c.Rewind(ctx, s.ID, r)
		return err
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.object(rewindLine{"rewound", s.ID, sessionName(s.ID), at, r.Conversation, r.Machine})
	}
	a.say("%s: %s back at %d", sessionName(s.ID), whatIsBack(r.Conversation, r.Machine), at)
	return nil
}

func whatIsBack(conversation, machine bool) string {
	switch {
	case conversation && machine:
		return "conversation and machine"
	case machine:
		return "machine"
	}
	return "conversation"
}
