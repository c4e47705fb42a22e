package control

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
)

// The parts of an export; see docs/reference/export.md.
const (
	exportFormat     = "outboard-export/1"
	formatEntry      = "format"
	sessionEntry     = "session.json"
	checkpointsEntry = "checkpoints.json"
	filesEntry       = "files.json"
	manifestEntry    = "manifest.json"
	eventsDir        = "events/"
	blobsDir         = "blobs/"
)

// exportPart is about how many bytes of events one entry holds.
const exportPart = 4 << 20

// exported is the session in an export: what its log does not say, and its config without secrets.
type exported struct {
	ID           outboard.SessionID     `json:"id"`
	Thread       outboard.ThreadID      `json:"thread_id"`
	Title        string                 `json:"title,omitempty"`
	Metadata     map[string]string      `json:"metadata,omitempty"`
	AgentID      outboard.AgentID       `json:"agent_id"`
	AgentVersion int                    `json:"agent_version"`
	Environment  outboard.EnvironmentID `json:"environment_id"`
	Seq          int64                  `json:"seq"` // the last event
	InTurn       bool                   `json:"in_turn,omitempty"`
	Checkpoint   outboard.CheckpointID  `json:"checkpoint,omitempty"` // the state of the workspace there
	CreatedAt    time.Time              `json:"created_at"`
	Config       outboard.SessionConfig `json:"config"`
}

// manifest is the last entry: every other one with its hash.
type manifest struct {
	Format  string             `json:"format"`
	Session outboard.SessionID `json:"session_id"`
	Seq     int64              `json:"seq"`
	Entries []exportEntry      `json:"entries"`
}

type exportEntry struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Hash string `json:"sha256"`
}

// Export is a session ready to be written to a file.
type Export struct {
	c       *Control
	session exported
	chain   []outboard.Checkpoint
	files   []outboard.File
	blobs   map[string]outboard.BlobRef
	left    []string // see LeftBehind

	tw   *tar.Writer
	done []exportEntry
}

// Export prepares a session for its way to another server: its log up to a position (0 = now), the state of its
// workspace there, and what both refer to. The position is the last settled one up to the one asked for. There
// are no secrets in it: no vaults, no keys. The audit has it who takes it before the first byte goes; without
// that record there is no export.
func (c *Control) Export(ctx context.Context, by outboard.Caller, id outboard.SessionID, seq int64) (*Export, error) {
	h, err := c.header(ctx, by, id)
	if err != nil {
		return nil, err
	}
	if seq == 0 {
		seq = h.Head
	}
	if seq < 1 || seq > h.Head {
		return nil, invalid("seq must be 1 to %d, the session's last event, not %d", h.Head, seq)
	}
	pos, err := c.settled(ctx, id, seq)
	if err != nil {
		return nil, err
	}
	if pos.checkpoint, err = c.restorable(ctx, id, pos.checkpoint); err != nil {
		return nil, err
	}
	cfg, err := c.ConfigAt(ctx, id, pos.seq)
	if err != nil {
		return nil, err
	}
	cfg.VaultIDs, cfg.Owner = nil, outboard.Owner{}
	x := &Export{c: c, blobs: map[string]outboard.BlobRef{}, session: exported{ID: id, Thread: h.Thread, Title: h.Title,
		Metadata: h.Metadata,
		AgentID:  h.AgentID, AgentVersion: h.AgentVersion, Environment: h.EnvironmentID, Seq: pos.seq, InTurn: pos.inTurn,
		Checkpoint: pos.checkpoint, CreatedAt: h.CreatedAt, Config: cfg}}
	if err := x.addChain(ctx); err != nil {
		return nil, err
	}
	if err := x.addFiles(ctx, h.Org); err != nil {
		return nil, err
	}
	if err := x.leave(ctx, &h); err != nil {
		return nil, err
	}
	return x, c.record(ctx, by, "session.export", string(id), map[string]any{"seq": x.session.Seq,
		"checkpoint": x.session.Checkpoint})
}

// addChain takes the checkpoint with all that it builds on.
func (x *Export) addChain(ctx context.Context) error {
	if x.session.Checkpoint == "" {
		return nil
	}
	all, err := x.c.store.Checkpoints(ctx, x.session.ID)
	if err != nil {
		return wrapLookup("session", string(x.session.ID), err)
	}
	if x.chain, err = chainOf(all, x.session.Checkpoint); err != nil {
		return err
	}
	if err := x.c.settle(ctx, x.chain); err != nil {
		return err
	}
	for i := range x.chain {
		k := &x.chain[i]
		k.Prior = "" // which need not be in the chain
		x.blobs[k.Delta.Digest] = k.Delta
	}
	return nil
}

// addFiles takes the files that the session's config and metadata name, and its deliverables up to the position.
func (x *Export) addFiles(ctx context.Context, org outboard.OrgID) error {
	var ids []outboard.FileID
	for _, r := range x.session.Config.Resources {
		ids = append(ids, r.File)
	}
	if id, _, ok := strings.Cut(x.session.Metadata[fleet.WorkspaceKey], ":"); ok {
		ids = append(ids, outboard.FileID(id))
	}
	q := EventQuery{Before: x.session.Seq + 1, Types: []outboard.EventType{outboard.TypeFileHarvested}, Limit: backPage}
	for {
		page, err := x.c.store.Events(ctx, x.session.ID, q)
		if err != nil {
			return wrapLookup("session", string(x.session.ID), err)
		}
		for i := range page {
			p, err := page[i].Decode()
			if err != nil {
				return err
			}
			ids = append(ids, p.(*outboard.FileHarvested).File)
		}
		if len(page) < q.Limit {
			break
		}
		q.After = page[len(page)-1].Seq
	}
	for _, id := range ids {
		f, err := x.c.fileOf(ctx, org, id)
		if outboard.KindOf(err) == outboard.NotFound && err != nil {
			continue // deleted: the session does without it here as well
		}
		if err != nil {
			return err
		}
		x.files = append(x.files, f)
		x.blobs[f.Blob.Digest] = f.Blob
	}
	return nil
}

// leave notes what of the session's own stays here.
func (x *Export) leave(ctx context.Context, h *outboard.Header) error {
	policies, err := x.c.store.PoliciesFor(ctx, h.Org, h.AgentID, h.ID)
	if err != nil {
		return wrapLookup("policies", "", err)
	}
	for _, p := range policies {
		if p.Level == outboard.LevelSession && strings.TrimSpace(p.Text) != "" {
			x.left = append(x.left, "policy session:"+p.Target)
		}
	}
	budgets, err := x.c.store.BudgetsOver(ctx, h.ID, h.AgentID, outboard.Owner{})
	if err != nil {
		return wrapLookup("budgets", "", err)
	}
	for _, b := range budgets {
		if b.Scope == outboard.BudgetSession {
			x.left = append(x.left, "budget session:"+b.Target)
		}
	}
	return nil
}

// LeftBehind names what bounds the session here and does not go along: the policies and budgets of its own, and
// of those it was forked from. Whoever imports it sets theirs.
func (x *Export) LeftBehind() []string { return x.left }

// Name is a file name for the export.
func (x *Export) Name() string { return fmt.Sprintf("%s-%d.outboard", x.session.ID, x.session.Seq) }

// Seq is the last event in the export.
func (x *Export) Seq() int64 { return x.session.Seq }

// Write writes the file: a tar in a zstd stream, whose last entry names the hashes of all others, and the seal.
func (x *Export) Write(ctx context.Context, dst io.Writer) error {
	out := &sealing{w: dst, sum: sha256.New()}
	zw, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("compressing: %w", err)
	}
	defer zw.Close()
	x.tw, x.done = tar.NewWriter(zw), nil
	if err := x.put(formatEntry, []byte(exportFormat+"\n")); err != nil {
		return err
	}
	if err := x.putJSON(sessionEntry, x.session); err != nil {
		return err
	}
	if err := x.events(ctx); err != nil {
		return err
	}
	if err := x.putJSON(checkpointsEntry, some(x.chain)); err != nil {
		return err
	}
	if err := x.putJSON(filesEntry, some(x.files)); err != nil {
		return err
	}
	for _, digest := range slices.Sorted(maps.Keys(x.blobs)) {
		if err := x.blob(ctx, x.blobs[digest]); err != nil {
			return err
		}
	}
	if err := x.putJSON(manifestEntry, manifest{exportFormat, x.session.ID, x.session.Seq, x.done}); err != nil {
		return err
	}
	if err := x.tw.Close(); err != nil {
		return err
	}
	if err := zw.Close(); err != nil {
		return err
	}
	return x.seal(out)
}

func some[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}

// events writes the log, a part of it at a time.
func (x *Export) events(ctx context.Context) error {
	var part bytes.Buffer
	n := 0
	flush := func() error {
		if part.Len() == 0 {
			return nil
		}
		n++
		err := x.put(fmt.Sprintf("%s%08d.jsonl", eventsDir, n), part.Bytes())
		part.Reset()
		return err
	}
	for e, err := range x.c.store.Read(ctx, x.session.ID, 0) {
		if err != nil {
			return err
		}
		if e.Seq > x.session.Seq {
			break
		}
		p, err := e.Decode()
		if err != nil {
			return err
		}
		for _, ref := range blobsOf(p) {
			x.blobs[ref.Digest] = ref
		}
		if staysHere(p) {
			e.Data = outboard.NewEvent(e.Thread, p).Data
		}
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encoding event %s: %w", e.ID, err)
		}
		part.Write(append(line, '\n'))
		if part.Len() >= exportPart {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// staysHere takes out of a payload what does not leave with a session, and reports whether there was any: its
// vaults, and what a fold begins with, which says nothing that the rest of the log does not.
func staysHere(p outboard.Payload) bool {
	switch p := p.(type) {
	case *outboard.SessionForked:
		had := len(p.Config.VaultIDs) > 0
		p.Config.VaultIDs = nil
		return had
	case *outboard.SessionCreated:
		had := len(p.Config.VaultIDs) > 0
		p.Config.VaultIDs = nil
		return had
	case *outboard.ContextCompacted:
		had := p.Base != nil
		p.Base = nil
		return had
	}
	return false
}

func (x *Export) putJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	return x.put(name, append(b, '\n'))
}

// put writes an entry.
func (x *Export) put(name string, b []byte) error {
	sum := sha256.Sum256(b)
	return x.entry(name, int64(len(b)), hex.EncodeToString(sum[:]), bytes.NewReader(b))
}

// blob writes a blob, which is its own hash.
func (x *Export) blob(ctx context.Context, ref outboard.BlobRef) error {
	r, err := x.c.blob.Open(ctx, ref)
	if err != nil {
		return fmt.Errorf("reading blob %s: %w", ref.Digest, err)
	}
	defer r.Close()
	return x.entry(blobsDir+ref.Digest, ref.Size, ref.Digest, r)
}

func (x *Export) entry(name string, size int64, hash string, r io.Reader) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600,
		ModTime: x.session.CreatedAt.Truncate(time.Second), Format: tar.FormatPAX}
	if err := x.tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.Copy(x.tw, r); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	x.done = append(x.done, exportEntry{name, size, hash})
	return nil
}

// blobsOf returns the blobs that a payload refers to, whatever its type.
func blobsOf(p outboard.Payload) []outboard.BlobRef {
	var out []outboard.BlobRef
	var walk func(reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer, reflect.Interface:
			if !v.IsNil() {
				walk(v.Elem())
			}
		case reflect.Slice:
			if v.Type().Elem().Kind() == reflect.Uint8 {
				return
			}
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Struct:
			if ref, ok := v.Interface().(outboard.BlobRef); ok {
				if ref.Digest != "" {
					out = append(out, ref)
				}
				return
			}
			if v.Type().PkgPath() == "time" {
				return
			}
			for _, field := range v.Fields() {
				walk(field)
			}
		}
	}
	walk(reflect.ValueOf(p))
	return out
}
