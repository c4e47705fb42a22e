package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Operations on files with a user's identity, on watches and on ports.
const (
	opStat    = "fs.stat"
	opReadDir = "fs.readdir"
	opMkdir   = "fs.mkdir"
	opMove    = "fs.move"
	opRemove  = "fs.remove"
	opRead    = "fs.read"
	opWrite   = "fs.write"
	opWatch   = "fs.watch"
	opReal    = "fs.real"
)

// Name is a file name or path: any bytes but NUL. On the wire it is base64.
type Name string

// MarshalJSON encodes the bytes.
func (n Name) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(n)) }

// UnmarshalJSON decodes them.
func (n *Name) UnmarshalJSON(b []byte) error {
	var raw []byte
	err := json.Unmarshal(b, &raw)
	*n = Name(raw)
	return err
}

// Kinds of an Entry.
const (
	KindFile      = "file"
	KindDirectory = "directory"
	KindLink      = "link"  // one that leads nowhere
	KindOther     = "other" // device, socket, named pipe
)

// Entry describes one name. Of a symbolic link it describes what the link leads to, and Target says where that is.
type Entry struct {
	Path    Name              `json:"path"` // absolute, as it was asked for
	Kind    string            `json:"kind"`
	Size    int64             `json:"size"`
	Mode    uint32            `json:"mode"` // permission bits
	Owner   string            `json:"owner"`
	Group   string            `json:"group"`
	ModTime int64             `json:"mod_time_us"`
	Target  Name              `json:"target,omitempty"`
	Attrs   map[string]string `json:"attrs,omitempty"` // user extended attributes, without "user."
}

// FileRef names a file and who asks. A relative path, and one that begins with "~/", starts at the user's home.
type FileRef struct {
	Path Name
	User string // "" = the tool's user
	// Whole lets what WriteFile writes take the file's place at once, and a write that breaks off leave what was
	// there. Programs that have the file open see nothing of it then, and other names of it keep what they have.
	Whole bool
}

// fsArg is the argument of every operation above.
type fsArg struct {
	FileRef
	To        Name
	Depth     int
	Offset    int64
	Length    int64 // 0 = to the end
	Attrs     map[string]string
	Recursive bool
}

// Stat describes one name.
func (c *Client) Stat(ctx context.Context, f FileRef) (Entry, error) {
	return c.entry(ctx, request{op: opStat, arg: &fsArg{FileRef: f}})
}

// Real returns the canonical form of a path as the file tools see it: absolute, with every link followed. A
// relative path begins where tools do. What does not exist is named below the directory that does.
func (c *Client) Real(ctx context.Context, path string) (string, error) {
	e, err := c.entry(ctx, request{op: opReal, arg: &fsArg{FileRef: FileRef{Path: Name(path)}}})
	return string(e.Path), err
}

// ReadDir returns what is below a directory, depth levels deep (at least 1), each directory before its content.
// Links are not followed but for the directory itself.
func (c *Client) ReadDir(ctx context.Context, f FileRef, depth int) ([]Entry, error) {
	var buf limitedBuffer
	if err := c.ask(ctx, request{op: opReadDir, arg: &fsArg{FileRef: f, Depth: depth}, out: &buf, max: maxList},
		nil); err != nil {
		return nil, err
	}
	var list []Entry
	if err := json.Unmarshal(buf.b, &list); err != nil {
		return nil, c.garbage(err)
	}
	return list, nil
}

// Mkdir makes a directory with its parents. Conflict if there is one, Invalid if something else is in the way.
func (c *Client) Mkdir(ctx context.Context, f FileRef) (Entry, error) {
	return c.entry(ctx, request{op: opMkdir, arg: &fsArg{FileRef: f}})
}

// Move renames a file or directory, making the parents of its new name.
func (c *Client) Move(ctx context.Context, f FileRef, to string) (Entry, error) {
	return c.entry(ctx, request{op: opMove, arg: &fsArg{FileRef: f, To: Name(to)}})
}

// Remove removes a name and everything below it. What is not there is removed already.
func (c *Client) Remove(ctx context.Context, f FileRef) error {
	return c.ask(ctx, request{op: opRemove, arg: &fsArg{FileRef: f}}, nil)
}

// ReadFile writes length bytes of a regular file from offset on to w, or to its end with length 0.
func (c *Client) ReadFile(ctx context.Context, f FileRef, offset, length int64, w io.Writer) error {
	return c.ask(ctx, request{op: opRead, arg: &fsArg{FileRef: f, Offset: offset, Length: length}, out: w}, nil)
}

// WriteFile replaces a file's content with r, or makes it with its parents. The file belongs to the user then,
// and has exactly attrs as user extended attributes below "e2b.".
func (c *Client) WriteFile(ctx context.Context, f FileRef, attrs map[string]string, r io.Reader) (Entry, error) {
	return c.entry(ctx, request{op: opWrite, arg: &fsArg{FileRef: f, Attrs: attrs}, in: r})
}

func (c *Client) entry(ctx context.Context, q request) (Entry, error) {
	var e Entry
	err := c.ask(ctx, q, &e)
	return e, err
}

// Change is one event of a watched directory.
type Change struct {
	Name Name   `json:"name"` // below the watched directory
	Op   string `json:"op"`   // create, write, remove, rename, chmod; ready: the first event; overflow: some were lost
}

// What happened to a name.
const (
	OpReady    = "ready"
	OpCreate   = "create"
	OpWrite    = "write"
	OpRemove   = "remove"
	OpRename   = "rename"
	OpChmod    = "chmod"
	OpOverflow = "overflow"
)

// Watch tells f what changes below a directory, OpReady first, until ctx ends, f fails, or the directory is gone.
func (c *Client) Watch(ctx context.Context, f FileRef, recursive bool, each func(Change) error) error {
	return c.ask(ctx, request{op: opWatch, arg: &fsArg{FileRef: f, Recursive: recursive}, out: &changeWriter{f: each}},
		nil)
}

// maxChange bounds one encoded Change: a path in base64, and the rest.
const maxChange = 2*maxPath + 256

// changeWriter decodes the lines of changes written to it.
type changeWriter struct {
	f    func(Change) error
	rest []byte
}

// Write passes on every change that p completes.
func (w *changeWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	b := w.rest
	for {
		line, after, ok := bytes.Cut(b, []byte{'\n'})
		if len(line) > maxChange {
			return 0, fmt.Errorf("%w: change of %d bytes", errFrame, len(line))
		}
		if !ok {
			break
		}
		var c Change
		if err := json.Unmarshal(line, &c); err != nil {
			return 0, fmt.Errorf("%w: %w", errFrame, err)
		}
		if err := w.f(c); err != nil {
			return 0, err
		}
		b = after
	}
	w.rest = append(w.rest[:0], b...)
	return len(p), nil
}
