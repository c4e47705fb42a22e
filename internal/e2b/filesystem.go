package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard/internal/control"
)

type entryInfo struct {
	Name          string            `json:"name"`
	Type          string            `json:"type"`
	Path          string            `json:"path"`
	Size          string            `json:"size"` // 64-bit numbers are strings in JSON
	Mode          uint32            `json:"mode"`
	Permissions   string            `json:"permissions"`
	Owner         string            `json:"owner"`
	Group         string            `json:"group"`
	ModifiedTime  time.Time         `json:"modifiedTime"`
	SymlinkTarget string            `json:"symlinkTarget,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
}

// attrSpace begins the names of the attributes that are metadata.
const attrSpace = "e2b."

func showEntry(e control.Entry) entryInfo {
	out := entryInfo{Name: path.Base(string(e.Path)), Type: "FILE_TYPE_FILE", Path: string(e.Path),
		Size: strconv.FormatInt(e.Size, 10), Mode: e.Mode,
		Owner: e.Owner, Group: e.Group, ModifiedTime: time.UnixMicro(e.ModTime).
			UTC(), SymlinkTarget: string(e.Target), Metadata: metadataOf(e)}
	mode := fs.FileMode(e.Mode & 0o777)
	switch e.Kind {
	case "directory":
		out.Type, mode = "FILE_TYPE_DIRECTORY", mode|fs.ModeDir
	case "link":
		out.Type = "FILE_TYPE_SYMLINK"
	}
	out.Permissions = mode.String()
	return out
}

func metadataOf(e control.Entry) map[string]string {
	var out map[string]string
	for k, v := range e.Attrs {
		if key, ok := strings.CutPrefix(k, attrSpace); ok {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = v
		}
	}
	return out
}

type pathIn struct {
	Path        string `json:"path"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Depth       int    `json:"depth"`
	Recursive   bool   `json:"recursive"`
	Entry       bool   `json:"includeEntry"`
	WatcherID   string `json:"watcherId"`
}

type entryOut struct {
	Entry entryInfo `json:"entry"`
}

// entry answers with one file's description.
func entry(e control.Entry, err error) (any, error) { return entryOut{showEntry(e)}, err }

func (v *visit) stat(ctx context.Context, body []byte) (any, error) {
	var in pathIn
	if err := message(body, &in); err != nil {
		return nil, err
	}
	return entry(v.m.Stat(ctx, v.ref(in.Path)))
}

func (v *visit) makeDir(ctx context.Context, body []byte) (any, error) {
	var in pathIn
	if err := message(body, &in); err != nil {
		return nil, err
	}
	return entry(v.m.Mkdir(ctx, v.ref(in.Path)))
}

func (v *visit) move(ctx context.Context, body []byte) (any, error) {
	var in pathIn
	if err := message(body, &in); err != nil {
		return nil, err
	}
	return entry(v.m.Move(ctx, v.ref(in.Source), in.Destination))
}

func (v *visit) listDir(ctx context.Context, body []byte) (any, error) {
	var in pathIn
	if err := message(body, &in); err != nil {
		return nil, err
	}
	list, err := v.m.ReadDir(ctx, v.ref(in.Path), in.Depth)
	out := make([]entryInfo, len(list))
	for i := range list {
		out[i] = showEntry(list[i])
	}
	return map[string]any{"entries": out}, err
}

func (v *visit) remove(ctx context.Context, body []byte) (any, error) {
	var in pathIn
	if err := message(body, &in); err != nil {
		return nil, err
	}
	return struct{}{}, v.m.Remove(ctx, v.ref(in.Path))
}

// fsEvent is something that happened to a name.
type fsEvent struct {
	Name  string     `json:"name"`
	Type  string     `json:"type"`
	Entry *entryInfo `json:"entry,omitempty"`
}

// event describes a change, with what is there now where the client wants to know and something may be.
func (v *visit) event(ctx context.Context, in pathIn, e control.Change) (fsEvent, bool) {
	out := fsEvent{Name: string(e.Name), Type: eventTypes[e.Op]}
	if in.Entry && (e.Op == "create" || e.Op == "write" || e.Op == "chmod") {
		if now, err := v.m.Stat(ctx, v.ref(path.Join(in.Path, out.Name))); err == nil {
			out.Entry = new(showEntry(now))
		}
	}
	return out, out.Type != ""
}

// eventTypes maps what happened to the wire. That events were lost has no word there: the stream goes on, as the
// original's does.
var eventTypes = map[string]string{"create": "EVENT_TYPE_CREATE", "write": "EVENT_TYPE_WRITE",
	"remove": "EVENT_TYPE_REMOVE",
	"rename": "EVENT_TYPE_RENAME", "chmod": "EVENT_TYPE_CHMOD"}

type watchOut struct {
	Start      *struct{} `json:"start,omitempty"`
	Filesystem *fsEvent  `json:"filesystem,omitempty"`
	KeepAlive  *struct{} `json:"keepalive,omitempty"`
}

// watchDir shows what changes below a directory.
func (v *visit) watchDir(c *call) error {
	var in pathIn
	if err := message(c.body, &in); err != nil {
		return err
	}
	defer c.deadline()()
	return v.m.Watch(c.ctx, v.ref(in.Path), in.Recursive, func(e control.Change) error {
		if e.Op == "ready" {
			defer c.keepAlive(watchOut{KeepAlive: &struct{}{}})
			return c.send(watchOut{Start: &struct{}{}})
		}
		if out, ok := v.event(c.ctx, in, e); ok {
			return c.send(watchOut{Filesystem: &out})
		}
		return nil
	})
}

// watchers are the watches that a client asks about from time to time instead of listening.
type watchers struct {
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex
	byID map[string]*watcher
	held map[string]*holding // owners that have watchers
}

// holding is what the watchers of one owner's boxes come to.
type holding struct{ watchers, bytes int }

const (
	// maxWatchers bounds the watchers of one owner's boxes, and maxHeld the bytes of events that they keep for
	// their clients: per owner, as sandboxes are counted, so that nobody can take what others need. maxWatched
	// is what one watcher keeps of it.
	maxWatchers = 256
	maxHeld     = 32 << 20
	maxWatched  = 2 << 20
	// watcherIdle is how long a watcher lives that nobody asks.
	watcherIdle = 10 * time.Minute
)

// watcher is one of them.
type watcher struct {
	box    string
	owner  string // a person, or a program's key
	cancel context.CancelFunc
	idle   *time.Timer

	events []json.RawMessage // as they are sent: what is kept is what it costs. With bytes: the lock is watchers.mu
	bytes  int
}

func (ws *watchers) init() {
	// of the watches, which outlive the requests that make them
	ws.ctx, ws.stop = context.WithCancel(context.Background())
	ws.byID, ws.held = map[string]*watcher{}, map[string]*holding{}
}

func (ws *watchers) close() {
	ws.stop()
	ws.wg.Wait()
}

func (v *visit) createWatcher(ctx context.Context, body []byte) (any, error) {
	var in pathIn
	if err := message(body, &in); err != nil {
		return nil, err
	}
	ws := &v.s.watchers
	run, cancel := context.WithCancel(ws.ctx)
	w, id := &watcher{box: string(v.box.ID), owner: cmp.Or(string(v.box.Person), string(v.box.Owner)),
		cancel: cancel}, rand.Text()
	if !ws.add(id, w) {
		cancel()
		return nil, &rpcError{"resource_exhausted", "the sandboxes of their owner have " + strconv.Itoa(maxWatchers) +
			" watchers already"}
	}
	ready := make(chan error, 2) // that it is ready, and how it ended
	ref := v.ref(in.Path)
	ws.wg.Go(func() {
		defer ws.remove(id, w)
		ready <- v.m.Watch(run, ref, in.Recursive, func(e control.Change) error {
			if e.Op == "ready" {
				ready <- nil
			} else if out, ok := v.event(run, in, e); ok {
				ws.keep(w, out)
			}
			return nil
		})
	})
	select {
	case err := <-ready:
		return map[string]any{"watcherId": id}, err
	case <-ctx.Done():
		cancel()
		return nil, context.Cause(ctx)
	}
}

// add takes a watcher in, if its owner may have one more.
func (ws *watchers) add(id string, w *watcher) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	h := ws.held[w.owner]
	if h == nil {
		h = &holding{}
		ws.held[w.owner] = h
	}
	if h.watchers >= maxWatchers {
		return false
	}
	h.watchers++
	w.idle = time.AfterFunc(watcherIdle, w.cancel)
	ws.byID[id] = w
	return true
}

// keep keeps an event for who asks, while there is room.
func (ws *watchers) keep(w *watcher, e fsEvent) {
	b, err := json.Marshal(e)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if h := ws.held[w.owner]; err == nil && w.bytes+len(b) <= maxWatched && h.bytes+len(b) <= maxHeld {
		w.events = append(w.events, b)
		w.bytes, h.bytes = w.bytes+len(b), h.bytes+len(b)
	}
}

// take empties a watcher.
func (ws *watchers) take(w *watcher) []json.RawMessage {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	out := w.events
	if h := ws.held[w.owner]; h != nil {
		h.bytes -= w.bytes
	}
	w.events, w.bytes = nil, 0
	return out
}

// remove ends a watcher, once the goroutine of its watch has ended.
func (ws *watchers) remove(id string, w *watcher) {
	w.cancel()
	w.idle.Stop()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.byID, id)
	h := ws.held[w.owner]
	h.watchers, h.bytes = h.watchers-1, h.bytes-w.bytes
	w.events, w.bytes = nil, 0
	if h.watchers == 0 {
		delete(ws.held, w.owner)
	}
}

// watcher finds a watcher of this box.
func (v *visit) watcher(body []byte) (*watcher, string, error) {
	var in pathIn
	if err := message(body, &in); err != nil {
		return nil, "", err
	}
	ws := &v.s.watchers
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byID[in.WatcherID]
	if w == nil || w.box != string(v.box.ID) {
		return nil, "", &rpcError{"not_found", "watcher with id " + in.WatcherID + " not found"}
	}
	w.idle.Reset(watcherIdle)
	return w, in.WatcherID, nil
}

func (v *visit) watcherEvents(_ context.Context, body []byte) (any, error) {
	w, _, err := v.watcher(body)
	if err != nil {
		return nil, err
	}
	events := append([]json.RawMessage{}, v.s.watchers.take(w)...)
	return map[string]any{"events": events}, nil
}

func (v *visit) removeWatcher(_ context.Context, body []byte) (any, error) {
	w, id, err := v.watcher(body)
	if err == nil {
		v.s.watchers.mu.Lock()
		delete(v.s.watchers.byID, id) // nobody finds it any more; what it holds goes with its goroutine
		v.s.watchers.mu.Unlock()
		w.cancel()
	}
	return struct{}{}, err
}
