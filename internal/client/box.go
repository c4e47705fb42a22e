package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
)

// Box is a sandbox that a client made for itself.
type Box struct {
	ID        string            `json:"id"`
	State     string            `json:"state"`
	Template  string            `json:"template"`
	Metadata  map[string]string `json:"metadata"`
	CreatedAt time.Time         `json:"created_at"`
	StartedAt time.Time         `json:"started_at"`
	EndAt     time.Time         `json:"end_at"`
	OnTimeout string            `json:"on_timeout"`
}

// ProcessEvent is an event of a process in a box.
type ProcessEvent struct {
	Type     string `json:"type"` // process.started, process.output, process.lost, process.ended; error is told as one
	Pid      int    `json:"pid"`
	Stream   string `json:"stream"` // stdout, stderr, terminal
	Data     []byte `json:"data"`
	Cursor   int64  `json:"cursor"`
	ExitCode *int   `json:"exit_code"`
	Signal   string `json:"signal"`
	SignalNo int    `json:"signal_number"` // as Linux counts
	TimedOut bool   `json:"timed_out"`

	MemoryLimit int64 `json:"memory_limit_bytes"` // the box's, where it was hit meanwhile and a program ended for it
}

// BoxFile describes a file of a box.
type BoxFile struct {
	Path  string `json:"path"`
	Kind  string `json:"kind"`
	Size  int64  `json:"size_bytes"`
	Mode  string `json:"mode"`
	Owner string `json:"owner"`
}

func boxPath(id string, rest string) string { return "/v1/boxes/" + url.PathEscape(id) + rest }

// Boxes lists the boxes, newest first.
func (c *Client) Boxes(ctx context.Context) iter.Seq2[Box, error] {
	return pages[Box](ctx, c, "/v1/boxes", url.Values{})
}

// CreateBox makes a box from a body of the API.
func (c *Client) CreateBox(ctx context.Context, body any) (b Box, err error) {
	return b, c.call(ctx, http.MethodPost, "/v1/boxes", nil, body, &b)
}

// DeleteBox ends a box.
func (c *Client) DeleteBox(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, boxPath(id, ""), nil, nil, nil)
}

// BoxLost says why what a box was sending broke off with err: the box has ended meanwhile (NotFound), the
// connection was cut though box and server are there (Unavailable), or the server cannot be reached.
func (c *Client) BoxLost(ctx context.Context, id string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch gone := c.call(ctx, http.MethodGet, boxPath(id, ""), nil, nil, new(Box)); {
	case gone == nil:
		return outboard.Errorf(outboard.Unavailable, "box %s: %w", id, err)
	case outboard.KindOf(gone) == outboard.NotFound:
		return outboard.Errorf(outboard.NotFound, "box %s has ended meanwhile", id).WithHint("outboard box ls")
	}
	return &TransportError{c.URL(), err}
}

// StartProcess starts a process in a box from a body of the API and yields what it does until it has ended.
func (c *Client) StartProcess(ctx context.Context, box string, body any) iter.Seq2[ProcessEvent, error] {
	return func(yield func(ProcessEvent, error) bool) {
		if err := c.processEvents(ctx, box, body, yield); err != nil {
			yield(ProcessEvent{}, err)
		}
	}
}

func (c *Client) processEvents(ctx context.Context, box string, body any, yield func(ProcessEvent, error) bool) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	resp, err := c.send(ctx, http.MethodPost, boxPath(box, "/processes"), nil, b)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	r := bufio.NewReaderSize(io.LimitReader(resp.Body, maxProcess), 256<<10)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return c.BoxLost(ctx, box, errors.New("the connection to the process is lost"))
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		var e ProcessEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return &TransportError{c.URL(), err}
		}
		if e.Type == "error" {
			var ev Event
			_ = json.Unmarshal(data, &ev) // it is an object, see above
			return c.BoxLost(ctx, box, streamError(ev))
		}
		if !yield(e, nil) || e.Type == "process.ended" {
			return nil
		}
	}
}

// maxProcess bounds what one process may say to us, so that a limited reader can be used; nobody reads that much.
const maxProcess = 1 << 50

// ProcessInput writes to a process's input, and with eof ends it.
func (c *Client) ProcessInput(ctx context.Context, box string, pid int, data []byte, eof bool) error {
	resp, err := c.once(ctx, http.MethodPost, boxPath(box, "/processes/"+strconv.Itoa(pid)+"/input"),
		url.Values{"eof": {strconv.FormatBool(eof)}},
		bytes.NewReader(data), "application/octet-stream")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ProcessResize tells a process's terminal its size.
func (c *Client) ProcessResize(ctx context.Context, box string, pid, cols, rows int) error {
	return c.call(ctx, http.MethodPost, boxPath(box, "/processes/"+strconv.Itoa(pid)+"/resize"), nil,
		map[string]int{"cols": cols, "rows": rows}, nil)
}

// ProcessSignal signals a process.
func (c *Client) ProcessSignal(ctx context.Context, box string, pid, signal int) error {
	return c.call(ctx, http.MethodPost, boxPath(box, "/processes/"+strconv.Itoa(pid)+"/signal"), nil,
		map[string]int{"signal": signal}, nil)
}

// ReadBoxFile opens a file of a box.
func (c *Client) ReadBoxFile(ctx context.Context, box, path string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodGet, boxPath(box, "/files/content"), url.Values{"path": {path}}, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteBoxFile stores a file in a box.
func (c *Client) WriteBoxFile(ctx context.Context, box, path string, r io.Reader) (f BoxFile, err error) {
	resp, err := c.once(ctx, http.MethodPut, boxPath(box, "/files/content"), url.Values{"path": {path}}, r,
		"application/octet-stream")
	if err != nil {
		return f, err
	}
	defer resp.Body.Close()
	return f, json.NewDecoder(io.LimitReader(resp.Body, maxError)).Decode(&f)
}

// BoxFiles describes a path in a box and, for a directory, what is directly in it. NotFound if there is nothing.
func (c *Client) BoxFiles(ctx context.Context, box, path string) ([]BoxFile, error) {
	var out struct {
		Data []BoxFile `json:"data"`
	}
	err := c.call(ctx, http.MethodGet, boxPath(box, "/files"), url.Values{"path": {path}, "depth": {"1"}}, nil, &out)
	if err == nil && len(out.Data) == 0 {
		err = outboard.Errorf(outboard.NotFound, "there is no %s", path)
	}
	return out.Data, err
}
