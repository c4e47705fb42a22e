//go:build linux

package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

const host = "host-a"

// rig is one host with a database, blobs and a provider, and sessions whose logs the test writes as a runner would.
type rig struct {
	store    *store.Store
	blob     *blob.Dir
	blobs    string // where they are
	provider sandbox.Provider
	dir      string
	keys     atomic.Int64
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "blobs")
	d, err := blob.NewDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{
		store:    storetest.Open(t, storetest.SQLite(t)),
		blob:     d,
		blobs:    dir,
		provider: sandboxtest.NewBare(t),
		dir:      t.TempDir(),
	}
}

// fleet is one process of the host.
func (r *rig) fleet(change ...func(*Config)) *Fleet {
	cfg := Config{Store: r.store, Blob: r.blob, Provider: r.provider, Host: host, Dir: r.dir}
	for _, c := range change {
		c(&cfg)
	}
	return New(cfg)
}

func (r *rig) session(t *testing.T, resources ...outboard.Resource) outboard.SessionID {
	t.Helper()
	return r.sessionIn(t, outboard.EnvConfig{Kind: "cloud"}, resources...)
}

func (r *rig) sessionIn(t *testing.T, env outboard.EnvConfig, resources ...outboard.Resource) outboard.SessionID {
	t.Helper()
	h := outboard.Header{
		ID:     outboard.NewID[outboard.SessionID](outboard.PrefixSession),
		Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread),
	}
	cfg := outboard.SessionConfig{Env: env, Resources: resources}
	if _, err := r.store.CreateSession(t.Context(), h, cfg, outboard.NewEvent(h.Thread,
		&outboard.SessionCreated{Config: cfg})); err != nil {
		t.Fatal(err)
	}
	return h.ID
}

// state folds a session's log.
func (r *rig) state(t *testing.T, id outboard.SessionID) *outboard.State {
	t.Helper()
	s := new(outboard.State)
	for e, err := range r.store.Read(t.Context(), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (r *rig) append(t *testing.T, c store.Commit, payloads ...outboard.Payload) {
	t.Helper()
	h, err := r.store.Session(t.Context(), c.Session)
	if err != nil {
		t.Fatal(err)
	}
	c.Expect = store.Any
	for _, p := range payloads {
		c.Events = append(c.Events, outboard.NewEvent(h.Thread, p))
	}
	if _, err := r.store.Commit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) request(t *testing.T, id outboard.SessionID) Request {
	t.Helper()
	s := r.state(t, id)
	return Request{Session: id, Config: s.Config, Current: s.Sandbox, Checkpoint: s.Checkpoint}
}

// acquire does what a runner does: it acquires for the folded state and logs what came of it.
func (r *rig) acquire(t *testing.T, f *Fleet, id outboard.SessionID) *Lease {
	t.Helper()
	b, err := f.Acquire(t.Context(), r.request(t, id))
	if err != nil {
		t.Fatal(err)
	}
	r.log(t, id, b)
	t.Cleanup(func() {
		if err := f.Release(context.Background(), b); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (r *rig) log(t *testing.T, id outboard.SessionID, b *Lease) {
	t.Helper()
	if b.Lost != nil {
		r.append(t, store.Commit{Session: id}, b.Lost)
	}
	if b.New {
		r.append(t, store.Commit{Session: id}, &b.Ready)
	}
}

func release(t *testing.T, f *Fleet, b *Lease) {
	t.Helper()
	if err := f.Release(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// bash runs a command to its end and returns its output.
func (r *rig) bash(t *testing.T, b *Lease, command string) string {
	t.Helper()
	key := r.start(t, b, command)
	res, err := b.Wait(t.Context(), key, 1)
	if err != nil {
		t.Fatal(err)
	}
	if res.State != guest.StateDone || res.ExitCode == nil || *res.ExitCode != 0 {
		t.Fatalf("%s: %+v: %s", command, res, res.Output)
	}
	return string(res.Output)
}

func (r *rig) start(t *testing.T, b *Lease, command string) string {
	t.Helper()
	in, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprint("call-", r.keys.Add(1))
	s := guest.Start{Key: key, Epoch: 1, Generation: b.Generation(), Digest: key, Op: "bash", Input: in, Shell: "main",
		TimeoutMs: 60_000, OutputLimit: 10_000}
	if _, err := b.Start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return key
}

// checkpoint takes and commits one; nil when nothing changed.
func (r *rig) checkpoint(t *testing.T, f *Fleet, b *Lease, id outboard.SessionID) *outboard.Checkpoint {
	t.Helper()
	c, err := f.Checkpoint(t.Context(), b, id, 1, r.state(t, id).Checkpoint, "sevt_call")
	if err != nil {
		t.Fatal(err)
	}
	if c != nil {
		r.append(t, store.Commit{Session: id, Checkpoint: c}, &outboard.CheckpointCreated{Checkpoint: c.ID,
			Call: c.Call, Bytes: c.Delta.Size})
	}
	return c
}

func (r *rig) present(t *testing.T) []outboard.SandboxID {
	t.Helper()
	ids, err := r.provider.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func (r *rig) row(t *testing.T, id outboard.SandboxID) outboard.Sandbox {
	t.Helper()
	row, err := r.store.Sandbox(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// rows returns a session's rows that are not destroyed.
func (r *rig) rows(t *testing.T, id outboard.SessionID) []outboard.Sandbox {
	t.Helper()
	rows, err := r.store.Sandboxes(t.Context(), "", id)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// upload stores a file as a resource of a session that is about to be made.
func (r *rig) upload(t *testing.T, mount, content string) outboard.Resource {
	t.Helper()
	ref, err := r.blob.Put(t.Context(), strings.NewReader(content), 0)
	if err != nil {
		t.Fatal(err)
	}
	file := outboard.File{ID: outboard.NewID[outboard.FileID](outboard.PrefixFile), Filename: "f",
		MediaType: "text/plain", Blob: ref, CreatedAt: time.Now()}
	if err := r.store.PutFile(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	return outboard.Resource{ID: outboard.NewID[outboard.ResourceID](outboard.PrefixResource), Kind: "file",
		File: file.ID, MountPath: mount}
}

func (r *rig) content(t *testing.T, ref outboard.BlobRef) string {
	t.Helper()
	b, err := blob.Bytes(t.Context(), r.blob, ref, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// freezer is a provider whose machines count their freezes; the processes under it are real and go on.
type freezer struct {
	sandbox.Provider
	frozen atomic.Int64 // freezes minus thaws that undid one
	thaws  atomic.Int64
}

func (z *freezer) Capabilities() sandbox.Capabilities {
	c := z.Provider.Capabilities()
	c.Freeze = true
	return c
}

func (z *freezer) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	sb, err := z.Provider.Create(ctx, s)
	return freezing{sb, z}, err
}

func (z *freezer) Open(ctx context.Context, id outboard.SandboxID) (sandbox.Sandbox, error) {
	sb, err := z.Provider.Open(ctx, id)
	return freezing{sb, z}, err
}

type freezing struct {
	sandbox.Sandbox
	z *freezer
}

func (s freezing) Freeze(context.Context) error { s.z.frozen.Add(1); return nil }
func (s freezing) Thaw(context.Context) error   { s.z.thaws.Add(1); s.z.frozen.Store(0); return nil }

// breaking is a provider whose new machines fail at one step.
type breaking struct {
	sandbox.Provider
	create, load, put error
}

func (p *breaking) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	if p.create != nil {
		return nil, p.create
	}
	sb, err := p.Provider.Create(ctx, s)
	return broken{sb, p}, err
}

type broken struct {
	sandbox.Sandbox
	p *breaking
}

func (b broken) Load(ctx context.Context, label string, r io.Reader) error {
	if b.p.load != nil {
		return b.p.load
	}
	return b.Sandbox.Load(ctx, label, r)
}

func (b broken) Put(ctx context.Context, path string, mode uint32, readOnly bool, r io.Reader) error {
	if b.p.put != nil {
		return b.p.put
	}
	return b.Sandbox.Put(ctx, path, mode, readOnly, r)
}
