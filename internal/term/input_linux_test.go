package term

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal returns both ends of a pseudo-terminal.
func terminal(t *testing.T) (keyboard, program *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return keyboard, program
}

// A line that was typed before a question, read already or not, must not answer it; the one after it must.
func TestInputDropsWhatWasTypedBefore(t *testing.T) {
	keyboard, program := terminal(t)
	in := NewInput(program)
	t.Cleanup(func() { // before the terminal is closed: the reader looks at it until its other end is gone
		keyboard.Close()
		for {
			if _, err := in.Next(context.Background()); err != nil {
				return
			}
		}
	})
	for _, before := range []string{"", "y\n", "y\ny\ny\nhalf"} {
		if _, err := keyboard.WriteString("read\n" + before); err != nil {
			t.Fatal(err)
		}
		if l, err := in.Next(t.Context()); err != nil || l.Text != "read" {
			t.Fatalf("%q, %v", l.Text, err)
		}
		asked := in.Ask()
		if _, err := keyboard.WriteString("answer\n"); err != nil {
			t.Fatal(err)
		}
		for {
			l, err := in.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if l.Asked >= asked {
				if l.Text != "answer" {
					t.Errorf("after %q the answer is %q", before, l.Text)
				}
				break
			}
		}
	}
}

// What is piped in has no questions, and loses nothing.
func TestInputOfAPipe(t *testing.T) {
	in := NewInput(strings.NewReader("one\r\ntwo\nlast"))
	for _, want := range []string{"one", "two", "last"} {
		if l, err := in.Next(t.Context()); err != nil || l.Text != want {
			t.Errorf("%q, %v; want %q", l.Text, err, want)
		}
	}
	if _, err := in.Next(t.Context()); err != io.EOF {
		t.Error(err)
	}
}

// The status must stay in one row below the rest, cut to the window, and never be mixed with an unfinished row.
func TestScreen(t *testing.T) {
	keyboard, program := terminal(t)
	if err := unix.IoctlSetWinsize(int(keyboard.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 10, Col: 20}); err != nil {
		t.Fatal(err)
	}
	s, out, _ := NewScreen(program, program)
	s.Status("running " + strings.Repeat("x", 50))
	fmt.Fprint(out, "half")
	s.Status("still running")
	fmt.Fprint(out, " whole\n")
	s.Status("")
	want := "\r\x1b[Krunning xxxxxxxxxx\x1b[0m…\r\n\x1b[1A\r\x1b[Jhalf whole\r\n\r\x1b[Kstill " +
		"running\r\n\x1b[1A\r\x1b[J"
	buf := make([]byte, len(want))
	if _, err := io.ReadFull(keyboard, buf); err != nil || string(buf) != want {
		t.Errorf("%v, drawn\n%q, want\n%q", err, buf, want)
	}
}
