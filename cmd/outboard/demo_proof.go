package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/worktree"
)

// claim is something the demo says happened, with what the log and the files show.
type claim struct {
	Claim string `json:"claim"`
	OK    bool   `json:"ok"`
	Found string `json:"found"`
}

// record is what the proof needs of a session's log.
type record struct {
	started  map[string][]recorded // call.started by call
	finished map[string][]recorded
	lost     []recorded
	ready    []recorded
	ordered  bool
	events   int
}

type recorded struct {
	at      time.Time
	Call    string `json:"call"`
	Epoch   int64  `json:"epoch"`
	Outcome string `json:"outcome"`
	Exit    *int   `json:"exit_code"`
	Sandbox string `json:"sandbox"`
	From    string `json:"from"`
}

// readRecord reads the log again, from the start and from the server that took over.
func readRecord(ctx context.Context, c *client.Client, id string) (*record, error) {
	r := &record{started: map[string][]recorded{}, finished: map[string][]recorded{}, ordered: true}
	var last time.Time
	for ev, err := range c.Events(ctx, id, client.EventQuery{Own: true}) {
		if err != nil {
			return nil, err
		}
		r.ordered = r.ordered && ev.ProcessedAt.After(last)
		last = ev.ProcessedAt
		r.events++
		var body struct {
			Payload recorded `json:"payload"`
		}
		if !strings.HasPrefix(ev.Type, ownPrefix) {
			continue
		}
		if err := ev.Decode(&body); err != nil {
			return nil, fmt.Errorf("reading event %s: %w", ev.ID, err)
		}
		p := body.Payload
		p.at = ev.ProcessedAt
		switch strings.TrimPrefix(ev.Type, ownPrefix) {
		case "call.started":
			r.started[p.Call] = append(r.started[p.Call], p)
		case "call.finished":
			r.finished[p.Call] = append(r.finished[p.Call], p)
		case "sandbox.lost":
			r.lost = append(r.lost, p)
		case "sandbox.ready":
			r.ready = append(r.ready, p)
		}
	}
	return r, nil
}

// prove checks every claim against the log and the workspace.
func (d *demo) prove(r *record, runs []byte) []claim {
	var out []claim
	add := func(text string, ok bool, format string, args ...any) {
		out = append(out, claim{text, ok, fmt.Sprintf(format, args...)})
	}
	once := 0
	for call, s := range r.started {
		if len(s) == 1 && len(r.finished[call]) == 1 {
			once++
		}
	}
	add("every call was started once and has one outcome", once > 0 && once == len(r.started) &&
		len(r.finished) == once,
		"%s, %d of them exactly once", count(len(r.started), "call"), once)
	known := 0
	for _, f := range r.finished {
		if f[0].Outcome == "ok" {
			known++
		}
	}
	add("every outcome is known", known == len(r.finished), "%d of %d", known, len(r.finished))
	add("the log is in order", r.ordered && r.events > 0, "%d events, each later than the one before", r.events)
	d.proveTakeover(r, add)
	n := bytes.Count(runs, []byte("\n"))
	add("the command that was running ran once", n == 1, "runs.log in the workspace has %d line(s)", n)
	d.proveRestore(r, add)
	return out
}

type adder func(text string, ok bool, format string, args ...any)

func (d *demo) proveTakeover(r *record, add adder) {
	const text = "another server finished the command, and did not start it again"
	s, f := r.started[d.slow], r.finished[d.slow]
	if len(s) != 1 || len(f) != 1 {
		add(text, false, "%d starts, %d outcomes", len(s), len(f))
		return
	}
	var later int64
	for _, all := range r.started {
		for _, one := range all {
			later = max(later, one.Epoch)
		}
	}
	ok := s[0].at.Before(d.killed) && f[0].at.After(d.killed) && f[0].Outcome == "ok" && f[0].Exit != nil &&
		*f[0].Exit == 0 && later > s[0].Epoch
	add(text, ok, "started under lease %d, %.1fs before the kill; finished with exit 0 under a later lease, %.1fs "+
		"after it",
		s[0].Epoch, d.killed.Sub(s[0].at).Seconds(), f[0].at.Sub(d.killed).Seconds())
}

func (d *demo) proveRestore(r *record, add adder) {
	const text = "the session went on in a new sandbox, restored from a checkpoint"
	if len(r.lost) != 1 || len(r.ready) != 2 {
		add(text, false, "%d sandboxes lost, %d made", len(r.lost), len(r.ready))
		return
	}
	last := r.ready[1]
	add(text, r.lost[0].Sandbox == d.lost && last.Sandbox != d.lost && last.From != "",
		"%s was lost; %s was restored from %s", d.lost, last.Sandbox, last.From)
}

// demoLine is the demo's last line with --json.
type demoLine struct {
	Type      string   `json:"type"`
	OK        bool     `json:"ok"`
	Seconds   float64  `json:"seconds"`
	Takeover  float64  `json:"takeover_seconds"`
	Isolation string   `json:"isolation"`
	Gaps      []string `json:"not_protected"`
	Claims    []claim  `json:"claims"`
	Patch     string   `json:"patch"`
}

// finale reads the result home, proves the claims, and says what was seen.
func (d *demo) finale(ctx context.Context) error {
	r, err := readRecord(ctx, d.c.Client, d.session.ID)
	if err != nil {
		return err
	}
	patch, runs, err := d.bringHome(ctx)
	if err != nil {
		return err
	}
	claims := d.prove(r, runs)
	claims = append(claims, claim{"the patch has the work of both sandboxes",
		bytes.Contains(patch, []byte("tr -cs")) &&
			bytes.Contains(patch, []byte("- Slugs have")), "lib/text.sh from the first, CHANGELOG.md from the second"})
	failed := 0
	for _, c := range claims {
		if !c.OK {
			failed++
		}
	}
	line := demoLine{Type: "demo_result", OK: failed == 0, Seconds: time.Since(d.begun).Seconds(),
		Takeover:  d.took.Seconds(),
		Isolation: d.caps.Isolation, Gaps: d.caps.Gaps, Claims: claims, Patch: string(patch)}
	if d.a.json {
		err = d.a.object(line)
	} else {
		err = d.print(line, patch)
	}
	if err == nil && failed > 0 {
		err = errDemo(failed)
	}
	return err
}

// bringHome returns the patch and the file in which the slow command counted its runs.
func (d *demo) bringHome(ctx context.Context) (patch, runs []byte, err error) {
	body, err := d.c.Workspace(ctx, d.session.ID)
	if err != nil {
		return nil, nil, err
	}
	defer body.Close()
	res, err := d.work.tree.Import(ctx, d.work.snap.Sent(), workspacePrefix, body, false)
	if err != nil {
		return nil, nil, err
	}
	defer res.Close()
	if patch, err = res.Diff(ctx, worktree.Patch); err != nil {
		return nil, nil, err
	}
	if _, err = res.Apply(ctx, false); err != nil {
		return nil, nil, err
	}
	runs, err = os.ReadFile(filepath.Join(d.dir, "project", "runs.log"))
	return patch, runs, err
}

// print is the closing page.
func (d *demo) print(l demoLine, patch []byte) error {
	st, out := d.a.style(), d.a.out
	fmt.Fprintf(out, "%s\n\n%s\n", st.Good("✓ ")+fmt.Sprintf("done in %.1fs", l.Seconds),
		st.Bold("Proof, from the session's log and files"))
	for _, c := range l.Claims {
		mark := st.Good("ok")
		if !c.OK {
			mark = st.Bad("NO")
		}
		fmt.Fprintf(out, "  %s  %s\n      %s\n", mark, c.Claim, st.Dim(c.Found))
	}
	fmt.Fprintf(out, "\n%s\n", st.Bold("The patch, as outboard diff shows it"))
	if err := showPatch(out, st, patch); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s  %s\n", st.Bold("Isolation"), l.Isolation)
	for _, g := range l.Gaps {
		fmt.Fprintf(out, "  does not protect: %s\n", g)
	}
	_, err := fmt.Fprintf(out, "\n%s\n  outboard doctor                        what this host can isolate\n"+
		"  outboard run -m MODEL \"your task\"      the same in your repository, with a model of yours\n"+
		"  outboard serve                         a server for many sessions, and for the official SDKs\n", st.Bold("Next"))
	return err
}
