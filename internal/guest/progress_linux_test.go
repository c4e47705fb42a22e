package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// If this fails, a person who watches is shown another line than the last one that was written, or half a letter.
func TestProgressLine(t *testing.T) {
	long := strings.Repeat("x", lineSize)
	for _, c := range []struct {
		writes []string
		want   string
	}{
		{nil, ""}, {[]string{"\n \n"}, ""}, {[]string{"one\n"}, "one"}, {[]string{"one\ntwo\n\n  \n"},
			"two"}, {[]string{"one\ntw"}, "tw"},
		{[]string{"one\nt", "w", "o"}, "two"}, {[]string{"one\nt", "wo\n"}, "two"}, {[]string{"t", "wo\r\n", "\r\n"},
			"two"},
		{[]string{"on", "e\n\ntwo\nthree"}, "three"}, {[]string{"one", "\n", "  "},
			"one"}, {[]string{"one\n", "  \t\n"}, "one"},
		{[]string{"\r 10%", "\r 20%"}, " 20%"}, {[]string{"10%\r20%\r"}, "20%"},
		{[]string{long + "yz"}, long}, {[]string{long[:199], "é"}, long[:199]}, {[]string{"é\n\xc3"}, ""},
		{[]string{strings.Repeat("y", lookedAt) + "\nlast\n"}, "last"}, {[]string{"a", strings.Repeat("y", 2*lookedAt)},
			strings.Repeat("y", lineSize)},
		{[]string{"raw \xff bytes\n"}, "raw \xff bytes"},
	} {
		var p progress
		for _, w := range c.writes {
			p.add([]byte(w))
		}
		if got, _ := p.now(); got != c.want {
			t.Errorf("after %q: %q, want %q", c.writes, got, c.want)
		}
	}
}

// If this fails, lines are told as fast as a command writes them, one is told twice, or what could not be sent is
// sent late.
func TestProgressPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p progress
		done := make(chan struct{})
		var told []string
		busy := true
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.tell(t.Context(), done, func(line string) bool {
				if !busy {
					told = append(told, line)
				}
				return !busy
			})
		}()
		step := func(n int, line string) {
			for range n {
				p.add([]byte(line))
				time.Sleep(10 * time.Millisecond)
			}
			synctest.Wait()
		}
		step(10, "dropped\n")
		busy = false
		for i := range 1000 { // ten seconds
			step(1, fmt.Sprintf("line %d\n", i))
		}
		time.Sleep(lineEvery)
		synctest.Wait()
		if n := len(told); n < 38 || n > 42 || told[n-1] != "line 999" || told[0] == "dropped" {
			t.Errorf("%d lines were told in ten seconds, from %q to %q", n, told[0], told[n-1])
		}
		before := len(told)
		step(100, "line 999\n")
		if len(told) != before {
			t.Errorf("what was told before is told again: %q", told[before:])
		}
		close(done)
		<-ended
	})
}

// If this fails, the output of a command is hidden until its end from a person who watches it, in a shell that goes
// on, in one for
// one call, or without one.
func TestFollowTellsLinesWhileCallsRun(t *testing.T) {
	c, dir := newGuest(t)
	fifo := filepath.Join(dir, "gate")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	const script = "echo first; printf 'asks [y/N] '; read x < "
	once := bashStart("once", script+fifo+"; echo $x")
	once.Shell = OncePrefix + "once"
	argv := Start{Key: "exec", Epoch: 1, Generation: testGen, Digest: "d", Op: "exec",
		Input: fmt.Appendf(nil, `{"argv":["/bin/sh","-c",%q]}`, script+fifo+"; echo $x")}
	for _, s := range []Start{bashStart("shell", script+fifo+"; echo $x"), once, argv} {
		if _, err := c.Start(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var lines []string
		r, err := c.Follow(ctx, s.Key, 1, func(line string) {
			if lines = append(lines, line); line == "asks [y/N] " { // the command waits for this
				if err := os.WriteFile(fifo, []byte("go on\n"), 0); err != nil {
					t.Error(err)
				}
			}
		})
		cancel()
		if err != nil || string(r.Output) != "first\nasks [y/N] go on\n" {
			t.Errorf("%s: %q, %v after the lines %q", s.Key, r.Output, err, lines)
		}
	}
}

// If this fails, a call that nobody watches pays for lines, or one that ended tells some.
func TestLinesAreForWhoAsks(t *testing.T) {
	c, _ := newGuest(t)
	runCall(t, c, bashStart("quiet", "echo said; sleep 0.05")) // a line that was not asked for ends the connection
	r, err := c.Follow(t.Context(), "quiet", 1, func(line string) { t.Errorf("a call that has ended tells %q", line) })
	if err != nil || string(r.Output) != "said\n" {
		t.Errorf("%+v, %v", r, err)
	}
}

// If this fails, a line holds up what has to be sent, or is cut in the middle, when the host does not read.
func TestOfferNeverWaits(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	w := newWire(conn)
	line := frame{kind: kindLine, id: 1, body: []byte(strings.Repeat("x", lineSize))}
	w.sem <- struct{}{}
	if w.offer(line) {
		t.Error("a line was sent in the middle of another frame")
	}
	<-w.sem
	sent := 0
	for w.offer(line) { // until there is no room
		sent++
	}
	if sent == 0 {
		t.Fatal("the control: no line was sent")
	}
	go func() {
		w.send(t.Context(), frame{kind: kindResponse, id: 1})
		conn.Close()
	}()
	r := bufio.NewReader(peer)
	for n := 0; ; n++ {
		f, err := readFrame(r)
		if err == io.EOF && n == sent+1 {
			return
		}
		if err != nil || n < sent != (f.kind == kindLine) {
			t.Fatalf("frame %d of %d: kind %d, %v", n, sent, f.kind, err)
		}
	}
}

// If this fails, a guest that was taken over makes its host take lines that nobody asked for, that are too long, or
// more than a
// person can read.
func TestHostileLines(t *testing.T) {
	line := func(n int) []byte {
		return appendFrame(nil, frame{kind: kindLine, id: 1, body: []byte(strings.Repeat("x", n))})
	}
	for name, b := range map[string][]byte{"an empty one": line(0), "a long one": line(lineSize + 1),
		"one with a head": appendFrame(nil, frame{kind: kindLine, id: 1, head: []byte("h"), body: []byte("x")})} {
		c := hostile(t, func(conn net.Conn) { conn.Write(b) })
		if _, err := c.Follow(t.Context(), "k", 1, func(string) {}); !errors.Is(err, ErrDisconnected) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := hostile(t, func(conn net.Conn) { conn.Write(line(1)) })
	if _, err := c.Wait(t.Context(), "k", 1); !errors.Is(err, ErrDisconnected) {
		t.Errorf("one that nobody asked for: %v", err)
	}
	c = hostile(t, func(conn net.Conn) {
		for range 10_000 {
			conn.Write(line(lineSize))
		}
		conn.Close()
	})
	n := 0
	began := time.Now()
	if _, err := c.Follow(t.Context(), "k", 1, func(string) { n++ }); !errors.Is(err, ErrDisconnected) {
		t.Error(err)
	}
	if most := 1 + int(time.Since(began)/lineEvery); n > most {
		t.Errorf("%d lines were told, want at most %d", n, most)
	}
}
