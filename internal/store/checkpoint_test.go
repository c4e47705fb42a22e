package store_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// Broken if a host forgets which checkpoints it has still to store, one becomes durable twice, or somebody waits for what never comes.
func TestCheckpointBecomesDurable(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		h := newSession(t, s)
		begin := time.UnixMicro(time.Now().UnixMicro()).UTC()
		save := func(id, prior outboard.CheckpointID, host string, at time.Duration) {
			t.Helper()
			_, err := s.Commit(t.Context(), store.Commit{Session: h.ID, Expect: store.Any, Events: []outboard.Event{said(string(id))},
				Checkpoint: &outboard.Checkpoint{ID: id, Prior: prior, Host: host, CreatedAt: begin.Add(at)}})
			if err != nil {
				t.Fatal(err)
			}
		}
		save("ckpt_1", "", "a", 1)
		save("ckpt_2", "ckpt_1", "a", 2*time.Microsecond)
		save("ckpt_3", "ckpt_2", "b", 3*time.Microsecond)
		local := func(host string, want ...outboard.CheckpointID) {
			t.Helper()
			ks, err := s.LocalCheckpoints(t.Context(), host)
			var got []outboard.CheckpointID
			for _, k := range ks {
				got = append(got, k.ID)
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("host %q has %v, %v, want %v", host, got, err, want)
			}
		}
		local("a", "ckpt_1", "ckpt_2")
		local("b", "ckpt_3")
		local("")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.AwaitDurable(ended, "ckpt_1"); outboard.KindOf(err) == "" {
			t.Error("a checkpoint on a host is durable")
		}
		ref, at := outboard.BlobRef{Digest: "d", Size: 7}, begin.Add(time.Second)
		settle := func(id outboard.CheckpointID, ref outboard.BlobRef) {
			t.Helper()
			if err := s.SettleCheckpoint(t.Context(), id, "", ref, at); err != nil {
				t.Fatal(err)
			}
		}
		settle("ckpt_1", ref)
		settle("ckpt_1", outboard.BlobRef{Digest: "other"})
		settle("ckpt_2", outboard.BlobRef{})
		local("a")
		k, err := s.AwaitDurable(t.Context(), "ckpt_1")
		if err != nil || k.Delta != ref || k.Host != "" || !k.DurableAt.Equal(at) {
			t.Errorf("durable: %+v, %v", k, err)
		}
		if k, err := s.AwaitDurable(t.Context(), "ckpt_2"); outboard.KindOf(err) != outboard.Unavailable || k.Prior != "ckpt_1" {
			t.Errorf("lost: %+v, %v", k, err)
		}
		settle("ckpt_3", outboard.BlobRef{Size: 8 << 30})
		k, err = s.AwaitDurable(t.Context(), "ckpt_3")
		if outboard.KindOf(err) != outboard.Unavailable || !k.TooLarge() || !strings.Contains(err.Error(), "more than the 8 GiB") {
			t.Errorf("too large: %+v, %v", k, err)
		}
	})
}
