package main

import (
	"strings"
	"testing"
)

// The list that ls -w draws must follow what happens, say what ls says, fit into the window with what waits on
// top, and end at Ctrl-C.
func TestConsoleWatchesTheList(t *testing.T) {
	t.Parallel()
	h := newSeat(t)
	c := h.console(100, 8, "ls", "-w")
	// the error of ls, not an empty screen
	if text, exit := c.end(); exit == 0 || !strings.Contains(text, "outboard: ") {
		t.Errorf("without data: exit %d:\n%s", exit, text)
	}
	if text, exit := h.run("run", "--from", "none", "-m", "script/steps", "--", "- say: hi"); exit != 0 {
		t.Fatal(text)
	}
	if text, exit := h.run("rm", "--all", "--yes"); exit != 0 {
		t.Fatal(text)
	}
	c = h.console(100, 8, "ls", "-w")
	c.wait("no sessions yet")
	text, _ := h.run("run", "--from", "none", "-m", "script/steps", "--json", "--", "- bash: echo hi\n- say: one")
	done := nameRE.FindString(text)
	c.wait(done + " +done")
	if text, exit := h.run("fork", done, "-n", "8"); exit != 0 {
		t.Fatal(text)
	}
	text, _ = h.run("run", "--from", "none", "-m", "script/steps", "--approve", "ask", "--json", "--",
		"- bash: echo two")
	waits := nameRE.FindString(text)
	c.wait(waits + ` +approval +bash echo two[^\x1b]*5 more; outboard ls shows all`)
	if text, exit := h.run("rm", waits); exit != 0 {
		t.Fatal(text)
	}
	c.wait("4 more; outboard ls")
	c.typed("\x03")
	text, exit := c.end()
	if exit != 0 {
		t.Errorf("exit %d", exit)
	}
	for page := range strings.SplitSeq(text, "\x1b[H\x1b[J") {
		if rows := strings.Count(page, "\n"); rows > 7 {
			t.Errorf("%d rows scroll away in a window of 8:\n%s", rows-7, page)
		}
	}
}

// rm --all must delete nothing without a yes, and say so.
func TestConsoleRemovesAll(t *testing.T) {
	t.Parallel()
	h := newSeat(t)
	for range 2 {
		if text, exit := h.run("run", "--from", "none", "-m", "script/steps", "--", "- say: hi"); exit != 0 {
			t.Fatal(text)
		}
	}
	for _, no := range []string{"\n", "n\n", "\x04"} {
		c := h.console(80, 24, "rm", "--all")
		c.wait(`delete 2 sessions with logs and files\? \[y/N\] `)
		c.typed(no)
		c.wait("nothing was deleted")
		if text, exit := c.end(); exit != 0 {
			t.Errorf("%q: exit %d:\n%s", no, exit, text)
		}
	}
	c := h.console(80, 24, "rm", "--all")
	c.wait(`delete 2 sessions`)
	c.typed("y\n")
	if text, exit := c.end(); exit != 0 || strings.Count(text, ": removed") != 2 {
		t.Errorf("exit %d:\n%s", exit, text)
	}
	if text, _ := h.run("ls", "-a"); !strings.Contains(text, "no sessions yet") {
		t.Errorf("they are still there:\n%s", text)
	}
}
