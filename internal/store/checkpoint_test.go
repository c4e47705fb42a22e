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

// Broken if a host forgets which checkpoints it has still to store, one becomes durable twice, or somebody waits
// for what never comes.
func TestCheckpointBecomesDurable(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		h := newSession(t, s)
		begin := time.UnixMicro(time.Now().UnixMicro()).UTC()
		save := func(id, prior outboard.CheckpointID, host string, at time.Duration) {
			t.Helper()
			_, err := s.Commit(t.Context(), store.Commit{Session: h.ID, Expect: store.Any,
				Events:     []outboard.Event{said(string(id))},
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
		if k, err := s.AwaitDurable(t.Context(), "ckpt_2"); outboard.KindOf(err) != outboard.Unavailable ||
			k.Prior != "ckpt_1" {
			t.Errorf("lost: %+v, %v", k, err)
		}
		settle("ckpt_3", outboard.BlobRef{Size: 8 << 30})
		k, err = s.AwaitDurable(t.Context(), "ckpt_3")
		if outboard.KindOf(err) != outboard.Unavailable || !k.TooLarge() ||
			!strings.Contains(err.Error(), "more than the 8 GiB") {
			t.Errorf("too large: %+v, %v", k, err)
		}
	})
}

// Broken if a checkpoint that is given up is listed as one that is there, one that is needed after all stays
// marked, or one that was never marked loses what is stored of it.
func TestThinCheckpoints(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		h := newSession(t, s)
		at := time.UnixMicro(time.Now().UnixMicro()).UTC()
		ids := []outboard.CheckpointID{"ckpt_a", "ckpt_b", "ckpt_c"}
		for _, id := range ids {
			_, err := s.Commit(t.Context(), store.Commit{Session: h.ID, Expect: store.Any,
				Events: []outboard.Event{said(string(id))},
				Checkpoint: &outboard.Checkpoint{ID: id, Delta: outboard.BlobRef{Digest: "d-" + string(id), Size: 7},
					CreatedAt: at, DurableAt: at}})
			if err != nil {
				t.Fatal(err)
			}
		}
		toThin := func(most int, want bool) {
			t.Helper()
			got, err := s.SessionsToThin(t.Context(), most)
			if err != nil || slices.Contains(got, h.ID) != want {
				t.Errorf("more than %d have %v, %v", most, got, err)
			}
		}
		thin := func(mark, keep, drop []outboard.CheckpointID, want ...string) {
			t.Helper()
			if err := s.Thin(t.Context(), mark, keep, drop, at); err != nil {
				t.Fatal(err)
			}
			for i, id := range ids {
				k, err := s.Checkpoint(t.Context(), id)
				is := map[[2]bool]string{{false, true}: "kept", {true, true}: "marked",
					{true, false}: "dropped"}[[2]bool{k.Thinned(), k.Durable()}]
				if err != nil || is != want[i] || k.Thinned() && !k.ThinnedAt.Equal(at) {
					t.Errorf("%s is %q, not %s: %+v, %v", id, is, want[i], k, err)
				}
			}
		}
		toThin(2, true)
		toThin(3, false)
		thin(ids[:2], nil, ids[2:], "marked", "marked", "kept") // who was not marked is not dropped
		toThin(3, true)                                         // some are to be dropped yet
		thin(nil, ids[:1], ids[1:2], "kept", "dropped", "kept")
		toThin(2, false)
		fork := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
			Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread)}
		_, err := s.Fork(t.Context(), h.ID, 2,
			[]store.Fork{{Header: fork, Events: []outboard.Event{outboard.NewEvent(fork.Thread,
				&outboard.SessionForked{Parent: h.ID, Seq: 2})}}})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Descendants(t.Context(), h.ID); err != nil ||
			!slices.Equal(got, []outboard.SessionID{fork.ID}) {
			t.Errorf("forks are %v, %v", got, err)
		}
		if got, err := s.Descendants(t.Context(), fork.ID); err != nil || len(got) != 0 {
			t.Errorf("forks of the fork are %v, %v", got, err)
		}
	})
}
