package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// Broken if content that a row refers to counts as garbage, whichever table and column it is in, or if
// everything that has digits counts as a reference.
func TestBlobsNamed(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		db := raw(t, cfg)
		h := newSession(t, s)
		n := 0
		digest := func() string { n++; return fmt.Sprintf("%064x", n+0xabcdef) }
		var named []string
		refer := func(doing string, store func(outboard.BlobRef) error) {
			t.Helper()
			ref := outboard.BlobRef{Digest: digest(), Size: 1}
			if err := store(ref); err != nil {
				t.Fatalf("%s: %v", doing, err)
			}
			named = append(named, ref.Digest)
		}
		refer("event", func(ref outboard.BlobRef) error {
			mustAppend(t, s, h.ID,
				outboard.NewEvent("", &outboard.AgentMessage{Content: []outboard.Content{{Type: "text", Blob: &ref}}}))
			return nil
		})
		refer("file", func(ref outboard.BlobRef) error {
			return s.PutFile(t.Context(), outboard.File{ID: "file_1", Filename: "f", Blob: ref})
		})
		refer("checkpoint", func(ref outboard.BlobRef) error {
			_, err := s.Commit(t.Context(), store.Commit{Session: h.ID, Expect: store.Any,
				Events:     []outboard.Event{said("x")},
				Checkpoint: &outboard.Checkpoint{ID: "ckpt_1", Delta: ref}})
			return err
		})
		refer("box", func(ref outboard.BlobRef) error {
			return s.AddBox(t.Context(),
				outboard.Box{ID: "boxa", Saved: ref})
		})
		refer("snapshot", func(ref outboard.BlobRef) error {
			return s.PutSnapshot(t.Context(), outboard.BoxSnapshot{ID: "snapa", Files: ref})
		})
		refer("upload of a template", func(ref outboard.BlobRef) error {
			return s.PutTemplateFile(t.Context(), "tpla", "h", ref, s.Now())
		})
		refer("bytes of any table", func(ref outboard.BlobRef) error {
			_, err := db.ExecContext(t.Context(),
				`INSERT INTO vault_keys (org, id, wrapping, wrapped, sequence, tag) VALUES ('o', 'i', 'w', CAST('`+ref.Digest+`' AS `+
					map[bool]string{true: "BLOB",
						false: "BYTEA"}[cfg.URL == ""]+`), 1, CAST('' AS `+map[bool]string{true: "BLOB", false: "BYTEA"}[cfg.URL == ""]+`))`)
			return err
		})
		odd := []string{strings.Repeat("a", 63), strings.Repeat("b", 65), strings.Repeat("C", 64)}
		among := digest()
		title := strings.Join(odd, " ") + " x" + among + "," // ends in something else
		if _, err := db.ExecContext(t.Context(), `UPDATE sessions SET title = '`+title+`'`); err != nil {
			t.Fatal(err)
		}
		named = append(named, among)
		audited := digest()
		if err := s.Audit(t.Context(), outboard.AuditRecord{Org: "default", Actor: "a", Action: "x", Resource: audited,
			Decision: outboard.Allowed}); err != nil {
			t.Fatal(err)
		}
		got, err := s.BlobsNamed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range named {
			if !got.Has(d) {
				t.Errorf("%s is not among those named", d)
			}
		}
		for _, d := range append(odd, audited, digest(), "") {
			if got.Has(d) {
				t.Errorf("%q is named", d)
			}
		}
		if len(got) != len(named) {
			t.Errorf("%d named, want %d", len(got), len(named))
		}
	})
}
