package term

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
)

// Typed is one line that a person typed. Asked is the number of questions that had been asked when it was read.
type Typed struct {
	Text  string
	Asked int
}

// maxTyped bounds one line. A terminal hands over at most 4096 bytes at a time.
const maxTyped = 1 << 20

// Input reads a person's lines. A question is answered only by what was typed after it: Ask drops what was typed
// before, in the terminal and here, and a line that was read earlier has a smaller Asked.
//
// The reading goroutine lives until the input ends, because nothing can interrupt a read from a terminal.
type Input struct {
	in    io.Reader
	tty   *os.File // nil where the input is no terminal
	once  sync.Once
	lines chan Typed // closed by the reading goroutine

	mu    sync.Mutex
	asked int
	rest  []byte // of a line that is not complete
}

// NewInput returns an Input that reads in.
func NewInput(in io.Reader) *Input {
	i := &Input{in: in, lines: make(chan Typed)}
	if f, ok := in.(*os.File); ok && IsTerminal(f) {
		i.tty = f
	}
	return i
}

// Ask begins a question: what was typed until now does not answer it. It returns the least Asked of a line that does.
func (i *Input) Ask() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.tty != nil {
		discard(i.tty)
	}
	i.rest = nil
	i.asked++
	return i.asked
}

// Next returns the next line, io.EOF at the end of the input, or ctx's cause.
func (i *Input) Next(ctx context.Context) (Typed, error) {
	i.once.Do(func() { go i.read() })
	select {
	case l, ok := <-i.lines:
		if !ok {
			return Typed{}, io.EOF
		}
		return l, nil
	case <-ctx.Done():
		return Typed{}, context.Cause(ctx)
	}
}

// Answer drops what was typed, asks, and returns the next line that was typed after that.
func (i *Input) Answer(ctx context.Context, ask func()) (string, error) {
	asked := i.Ask()
	for ask(); ; {
		l, err := i.Next(ctx)
		if err != nil || l.Asked >= asked {
			return l.Text, err
		}
	}
}

func (i *Input) read() {
	defer close(i.lines)
	buf := make([]byte, 4096)
	for {
		found, err := i.some(buf)
		for _, l := range found {
			i.lines <- l
		}
		if err != nil {
			return
		}
	}
}

// some reads what is there. On a terminal it reads under the lock, so that each byte was read before a question
// or is dropped by it.
func (i *Input) some(buf []byte) ([]Typed, error) {
	if i.tty == nil {
		n, err := i.in.Read(buf)
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.split(buf[:n], err)
	}
	if err := waitInput(i.tty, -1); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := waitInput(i.tty, 0); errors.Is(err, errNoInput) { // a question has dropped it
		return nil, nil
	}
	n, err := i.tty.Read(buf)
	return i.split(buf[:n], err)
}

// split returns the lines that are complete, and at the end of the input what is left.
func (i *Input) split(p []byte, err error) (found []Typed, _ error) {
	i.rest = append(i.rest, p...)
	for {
		line, rest, ok := bytes.Cut(i.rest, []byte("\n"))
		if !ok {
			break
		}
		found = append(found, Typed{string(bytes.TrimSuffix(line, []byte("\r"))), i.asked})
		i.rest = rest
	}
	if len(i.rest) > 0 && (err != nil || len(i.rest) > maxTyped) {
		found, i.rest = append(found, Typed{string(i.rest), i.asked}), nil
	}
	return found, err
}

// errNoInput says that nothing was typed in time.
var errNoInput = errors.New("no input")

// Discard drops what was typed on a terminal and not read.
func Discard(f any) {
	if file, ok := f.(*os.File); ok && IsTerminal(file) {
		discard(file)
	}
}
