// Command record runs a script of shell commands in a terminal and writes what the terminal showed as an animated SVG.
//
// The README's picture is made with it (`make record`), from a real run: nothing in the picture is written by
// hand. A script is a text file; a line that begins with "$ " is typed and run, and every other line is ignored.
// In it {SESSION} is the newest session that the screen names. Record waits until a command has ended before it
// types the next one.
//
// Usage: record [-cols N] [-rows N] SCRIPT OUTPUT.svg
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
)

const (
	typing   = 35 * time.Millisecond   // between two typed characters
	reading  = 1200 * time.Millisecond // after a command has ended
	interval = 80 * time.Millisecond   // between two looks at the screen
	longest  = 1500 * time.Millisecond // a frame is shown no longer than this, except the last
	final    = 6 * time.Second         // how long the last frame is shown
	limit    = 2 * time.Minute         // of one command
)

// prompted is what the shell prints before each prompt: an operating system command that terminals do not show
// (OSC 133, as
// https://gitlab.freedesktop.org/Per_Bothner/specifications/blob/master/proposals/semantic-prompts.md has it).
const prompted = "\x1b]133;A\x07"

func main() {
	cols := flag.Int("cols", 100, "width of the terminal in characters")
	rows := flag.Int("rows", 24, "height of the terminal in lines")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: record [-cols N] [-rows N] SCRIPT OUTPUT.svg")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Arg(1), *cols, *rows); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(script, output string, cols, rows int) error {
	lines, err := commands(script)
	if err != nil {
		return err
	}
	rec, err := start(cols, rows)
	if err != nil {
		return err
	}
	defer rec.close()
	if err := rec.wait(); err != nil { // for the first prompt
		return err
	}
	time.Sleep(reading) // until the prompt itself is drawn
	for _, line := range lines {
		if strings.Contains(line, "{SESSION}") {
			line = strings.ReplaceAll(line, "{SESSION}", rec.session())
		}
		if err := rec.enter(line); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		time.Sleep(reading) // time for the reader of the picture, not a wait for an event
	}
	var out bytes.Buffer
	draw(&out, rec.stop(), cols, rows)
	return os.WriteFile(output, out.Bytes(), 0o644)
}

// commands are the lines of the script that are typed.
func commands(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if line, ok := strings.CutPrefix(sc.Text(), "$ "); ok {
			out = append(out, line)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no line that begins with \"$ \"", path)
	}
	return out, nil
}

// recorder is a shell in a terminal whose screen is looked at every interval.
type recorder struct {
	shell   *exec.Cmd
	tty     *os.File
	term    vt10x.Terminal
	prompts chan struct{} // one for each prompt
	gone    chan struct{} // closed when the shell has ended

	mu     sync.Mutex
	frames []frame
	done   chan struct{}
}

// frame is a screen and how long it was shown.
type frame struct {
	lines []string // each a line's SVG
	shown time.Duration
}

func start(cols, rows int) (*recorder, error) {
	cmd := exec.Command("bash", "--norc", "--noprofile")
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", `PS1=\[\e[32m\]$\[\e[0m\] `,
		`PROMPT_COMMAND=printf '`+`\e]133;A\a`+`'`)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)})
	if err != nil {
		return nil, err
	}
	r := &recorder{shell: cmd, tty: tty, term: vt10x.New(vt10x.WithSize(cols, rows), vt10x.WithWriter(tty)),
		prompts: make(chan struct{}, 16), gone: make(chan struct{}), done: make(chan struct{})}
	go r.read()
	go r.look(cols, rows)
	return r, nil
}

// read passes what the shell prints to the terminal and counts its prompts.
func (r *recorder) read() {
	defer close(r.gone)
	var seen []byte
	buf := make([]byte, 32<<10)
	for {
		n, err := r.tty.Read(buf)
		if _, werr := r.term.Write(buf[:n]); werr != nil && err == nil {
			err = werr
		}
		seen = append(seen, buf[:n]...)
		for {
			i := bytes.Index(seen, []byte(prompted))
			if i < 0 {
				break
			}
			seen = seen[i+len(prompted):]
			r.prompts <- struct{}{}
		}
		if len(seen) > len(prompted) {
			seen = seen[len(seen)-len(prompted):]
		}
		if err != nil {
			return
		}
	}
}

// look appends a frame whenever the screen has changed.
func (r *recorder) look(cols, rows int) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-tick.C:
		}
		lines := screen(r.term, cols, rows)
		r.mu.Lock()
		if n := len(r.frames); n > 0 && strings.Join(r.frames[n-1].lines, "\n") == strings.Join(lines, "\n") {
			r.frames[n-1].shown += interval
		} else {
			r.frames = append(r.frames, frame{lines: lines, shown: interval})
		}
		r.mu.Unlock()
	}
}

// enter types a command and waits until it has ended.
func (r *recorder) enter(line string) error {
	for _, c := range line {
		if _, err := io.WriteString(r.tty, string(c)); err != nil {
			return err
		}
		time.Sleep(typing)
	}
	if _, err := io.WriteString(r.tty, "\r"); err != nil {
		return err
	}
	return r.wait()
}

// sessionName is what a session is called, such as calm-otter-7f2.
var sessionName = regexp.MustCompile(`\b[a-z]+-[a-z]+-[0-9a-f]{3}\b`)

// session is the last name of a session on the screen.
func (r *recorder) session() string {
	names := sessionName.FindAllString(r.term.String(), -1)
	if len(names) == 0 {
		return "{SESSION}"
	}
	return names[len(names)-1]
}

// wait waits for a prompt.
func (r *recorder) wait() error {
	select {
	case <-r.prompts:
		return nil
	case <-r.gone:
		return errors.New("the shell ended")
	case <-time.After(limit):
		return fmt.Errorf("no prompt within %v", limit)
	}
}

// stop ends the recording and returns its frames.
func (r *recorder) stop() []frame {
	close(r.done)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frames
}

func (r *recorder) close() {
	_ = r.shell.Process.Kill()
	_ = r.tty.Close()
	_ = r.shell.Wait()
}
