//go:build linux

package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// layered is a provider of which only the layers are used. Those in bad cannot be read.
type layered struct {
	sandbox.Provider
	sandbox.Layers
	bad map[outboard.CheckpointID]bool
}

func (layered) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{Layers: true} }

func (l layered) Pack(_ context.Context, id, _ outboard.CheckpointID, w io.Writer) error {
	if l.bad[id] {
		return errors.New("a layer cannot be read")
	}
	_, err := io.Copy(w, bytes.NewReader([]byte(id)))
	return err
}

// fullBlob is a blob store on a disk that is full until it is told otherwise. It notes when it was asked.
type fullBlob struct {
	blob.Store
	mu    sync.Mutex
	tries []time.Time
	room  bool
}

func (b *fullBlob) Put(ctx context.Context, r io.Reader, limit int64) (outboard.BlobRef, error) {
	b.mu.Lock()
	room := b.room
	b.tries = append(b.tries, time.Now())
	b.mu.Unlock()
	if !room {
		return outboard.BlobRef{}, outboard.FullDisk("storing a blob", syscall.ENOSPC)
	}
	return b.Store.Put(ctx, r, limit)
}

func (b *fullBlob) tried() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.tries)
}

// local commits a checkpoint that is only on this host.
func (r *rig) local(t *testing.T) outboard.CheckpointID {
	t.Helper()
	id := r.session(t)
	c := outboard.Checkpoint{ID: outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint), Session: id,
		Host: host, CreatedAt: time.Now()}
	r.append(t, store.Commit{Session: id, Checkpoint: &c}, &outboard.CheckpointCreated{Checkpoint: c.ID,
		Call: "sevt_call"})
	return c.ID
}

// Broken if a keeper that can store nothing tries every checkpoint, and again at each new one: packing each
// takes the disk and the processor from what could make room. Or if it does not go on soon after there is room.
func TestKeeperWaitsWhereNothingCanBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		full := &fullBlob{Store: r.blob}
		r.provider = layered{}
		f := r.fleet(func(c *Config) { c.Blob = full })
		ids := []outboard.CheckpointID{r.local(t), r.local(t), r.local(t)}
		if err := f.keepAll(t.Context(), layered{}); !outboard.DiskFull(err) || len(full.tried()) != 1 {
			t.Fatalf("%d tries of one round: %v", len(full.tried()), err)
		}
		full.tries = nil
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { f.keep(ctx) })
		for range 60 { // something new every half second
			f.keeper.expect("ckpt_new")
			time.Sleep(time.Second / 2)
		}
		var gaps []time.Duration
		tries := full.tried()
		for i := 1; i < len(tries); i++ {
			gaps = append(gaps, tries[i].Sub(tries[i-1]))
		}
		if want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second,
			10 * time.Second}; !slices.Equal(gaps, want) {
			t.Errorf("it waits %v, want %v", gaps, want)
		}
		full.mu.Lock()
		full.room = true
		full.mu.Unlock()
		time.Sleep(maxKeepPause)
		for _, id := range ids {
			if k, err := r.store.Checkpoint(t.Context(), id); err != nil || !k.Durable() {
				t.Errorf("with room again: %+v, %v", k, err)
			}
		}
		stop()
		wg.Wait()
	})
}

// Broken if one checkpoint that cannot be read keeps the others from being stored.
func TestKeeperGoesOnBeyondWhatCannotBeRead(t *testing.T) {
	r := newRig(t)
	first, second := r.local(t), r.local(t)
	l := layered{bad: map[outboard.CheckpointID]bool{first: true}}
	r.provider = l
	f := r.fleet()
	err := f.keepAll(t.Context(), l)
	if err == nil || pauseAfter(err, 0) != 0 {
		t.Errorf("of what cannot be read: %v", err)
	}
	for id, want := range map[outboard.CheckpointID]bool{first: false, second: true} {
		if k, err := r.store.Checkpoint(t.Context(), id); err != nil || k.Durable() != want {
			t.Errorf("%s: %+v, %v", id, k, err)
		}
	}
}

// endless is a provider with a checkpoint that is zeros for very long, as a file with a hole of a terabyte is.
type endless struct {
	layered
	wrote   int64
	written func() // told of each write, if there is one
}

func (l *endless) Pack(_ context.Context, _, _ outboard.CheckpointID, w io.Writer) error {
	const enough = 64 << 20
	for page := make([]byte, 32<<10); l.wrote < enough; {
		n, err := w.Write(page)
		l.wrote += int64(n)
		if err != nil {
			return fmt.Errorf("packing: %w", err)
		}
		if l.written != nil {
			l.written()
		}
	}
	return nil
}

// Broken if a checkpoint is read to its end, which may be hours away, after it is known that it is too large or
// cannot be stored, or when the server ends: the keeper, and the end of the server, wait for that.
func TestKeeperStopsReading(t *testing.T) {
	const enough = 16 << 20
	for name, tt := range map[string]struct {
		full, cancel bool
		want         func(err error, c outboard.Checkpoint) bool
	}{
		"too large": {want: func(err error, c outboard.Checkpoint) bool { return err == nil && c.TooLarge() }},
		"full disk": {full: true, want: func(err error, c outboard.Checkpoint) bool {
			return outboard.DiskFull(err) && pauseAfter(err, 0) > 0 && c.Host == host
		}},
		"canceled": {cancel: true,
			want: func(err error, c outboard.Checkpoint) bool {
				return errors.Is(err, context.Canceled) &&
					c.Host == host
			}},
	} {
		r := newRig(t)
		l := new(endless)
		r.provider = l
		f := r.fleet(func(c *Config) {
			if tt.full {
				c.Blob = &fullBlob{Store: r.blob}
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		f.maxCheckpoint = 1 << 20
		if tt.cancel {
			f.maxCheckpoint, l.written = MaxCheckpoint, cancel
		}
		id := r.local(t)
		err := f.keepAll(ctx, l)
		cancel()
		c, rerr := r.store.Checkpoint(t.Context(), id)
		if rerr != nil || !tt.want(err, c) || l.wrote > enough {
			t.Errorf("%s: read %d bytes: %v; %+v, %v", name, l.wrote, err, c, rerr)
		}
	}
}
