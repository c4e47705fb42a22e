package control

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/store"
)

// Limits of an import, against a file that is made to fill this server.
const (
	// MaxImport bounds the file as it comes in.
	MaxImport = 64 << 30
	// maxUnpacked bounds what it holds, before compression.
	maxUnpacked = 4 * MaxImport
	// maxExportEntries bounds its entries: blobs, for the most part.
	maxExportEntries = 200_000
	// maxExportJSON bounds an entry that is read into memory. What it is decoded to is larger, a hundredfold
	// where it is made to be, so lists are counted as well, and the session is bounded like a request that makes
	// one.
	maxExportJSON = 64 << 20
	// maxPadding bounds the zeros behind the end of the tar.
	maxPadding = 1 << 20
	// maxZstdWindow bounds what the decompression holds in memory.
	maxZstdWindow = 64 << 20
	// maxImports is how many are under way at a time: each may spool MaxImport, and holds a window. Others wait. One
	// organization has one less.
	maxImports = 3
)

// ImportRequest says what an imported session is given in place of what its file has.
type ImportRequest struct {
	Title       *string
	Environment outboard.EnvironmentID // "" = the configuration in the file
	Model       string                 // "" = the one in the file
	Trust       []string               // public keys, besides this server's and those of its configuration
	Unsigned    bool                   // take a file that nobody whom this server trusts has signed
}

// Imported is a session that came in a file.
type Imported struct {
	Session
	SignedBy string // the public key that signed the file; "" = none that is trusted
}

// importing is one import under way. Everything in the file is somebody else's word.
type importing struct {
	c  *Control
	tr *tar.Reader
	r  ImportRequest

	rest io.Reader // what tr reads

	got   map[string]exportEntry
	order []string
	parts int // of the log

	spool blob.Spooled // the file, once it was read whole

	session exported
	chain   []outboard.Checkpoint
	files   []outboard.File
	rewinds []outboard.Rewind
	last    int64            // the newest event of the log
	turn    int              // and the number of its turn
	blobs   map[string]int64 // sizes by digest

	newID    outboard.SessionID
	thread   outboard.ThreadID
	newFiles map[outboard.FileID]outboard.FileID
}

// Import makes a session from a file that Export wrote: all of it, once every hash in the file and its signature
// hold, or nothing. The session goes on with the same conversation and the same files.
func (c *Control) Import(ctx context.Context, by outboard.Caller, src io.Reader, r ImportRequest) (Imported, error) {
	if err := requireDeveloper(by, scopeSessions); err != nil {
		return Imported{}, err
	}
	for _, k := range r.Trust {
		if err := audit.CheckKey(k); err != nil {
			return Imported{}, invalid("trust: %w", err)
		}
	}
	leave, err := c.imports.enter(ctx, by.In())
	if err != nil {
		return Imported{}, outboard.Errorf(outboard.Canceled, "waiting for other imports: %w", err)
	}
	defer leave()
	spool, err := c.spool.New()
	if err != nil {
		return Imported{}, err
	}
	defer spool.Close()
	m := &importing{c: c, spool: spool, r: r, got: map[string]exportEntry{}, blobs: map[string]int64{},
		newID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread),
		newFiles: map[outboard.FileID]outboard.FileID{}}
	digest, key, err := m.takeIn(ctx, src)
	if err == nil {
		err = m.check(ctx, by)
	}
	if err == nil {
		err = m.fold(ctx)
	}
	if err != nil {
		return Imported{}, err
	}
	if err := c.record(ctx, by, "session.import", string(m.newID), map[string]string{"sha256": digest,
		"signed_by": key}); err != nil {
		return Imported{}, err
	}
	s, err := m.store(ctx, digest, outboard.Taint{Untrusted: key == ""})
	return Imported{s, key}, err
}

func broken(format string, args ...any) *outboard.Error {
	return invalid("the export: "+format, args...).WithCode("bad_export")
}

// read reads the file to its end and holds it against its manifest, whose hash it returns.
func (m *importing) read(ctx context.Context) (digest string, err error) {
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return "", outboard.Errorf(outboard.Canceled, "importing: %w", context.Cause(ctx))
		}
		h, err := m.tr.Next()
		if errors.Is(err, io.EOF) {
			return "", broken("it ends without a manifest: it was cut off")
		}
		if err != nil {
			return "", broken("it is no export, or it was cut off or changed: %v", err)
		}
		if n == 0 && h.Name != formatEntry {
			return "", broken("it begins with %s, not like an export", quote(h.Name))
		}
		if h.Typeflag != tar.TypeReg || n > maxExportEntries || m.got[h.Name].Name != "" {
			return "", broken("entry %s is no file, one too many, or there twice", quote(h.Name))
		}
		if h.Name == manifestEntry {
			b, err := m.bytes(h, maxExportJSON)
			if err != nil {
				return "", err
			}
			delete(m.got, manifestEntry)
			sum := sha256.Sum256(b)
			return hex.EncodeToString(sum[:]), m.hold(b)
		}
		if err := m.entry(h); err != nil {
			return "", err
		}
	}
}

// entry takes one entry in.
func (m *importing) entry(h *tar.Header) error {
	digest, isBlob := strings.CutPrefix(h.Name, blobsDir)
	switch {
	case h.Name == formatEntry:
		b, err := m.bytes(h, 100)
		if err == nil && string(b) != exportFormat+"\n" {
			err = broken("its format is %s, and this server reads %s", quote(strings.TrimSpace(string(b))),
				exportFormat)
		}
		return err
	case h.Name == sessionEntry:
		b, err := m.bytes(h, outboard.MaxBody)
		if err != nil {
			return err
		}
		return strictly(h.Name, b, &m.session)
	case h.Name == checkpointsEntry:
		b, err := m.bytes(h, maxExportJSON)
		if err == nil {
			m.chain, err = listed[outboard.Checkpoint](h.Name, b, maxDeltas)
		}
		return err
	case h.Name == filesEntry:
		b, err := m.bytes(h, maxExportJSON)
		if err == nil {
			m.files, err = listed[outboard.File](h.Name, b, maxExportEntries)
		}
		return err
	case strings.HasPrefix(h.Name, eventsDir):
		if m.parts++; h.Name != fmt.Sprintf("%s%08d.jsonl", eventsDir, m.parts) {
			return broken("entry %s is not part %d of the log", quote(h.Name), m.parts)
		}
		_, err := m.sum(h)
		return err
	case isBlob:
		ref, err := m.sum(h)
		if err == nil && ref.Digest != digest {
			err = broken("blob %s has the hash %s: it was changed", quote(digest), ref.Digest)
		}
		m.blobs[ref.Digest] = ref.Size
		return err
	}
	return broken("entry %s has no meaning in %s", quote(h.Name), exportFormat)
}

// strictly decodes what has no unknown fields.
func strictly(name string, b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return broken("%s: %v", name, err)
	}
	return nil
}

// listed decodes a list of at most so many.
func listed[T any](name string, b []byte, most int) ([]T, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, broken("%s is no list", name)
	}
	var out []T
	for d.More() {
		if len(out) == most {
			return nil, broken("%s has more than %d entries", name, most)
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return nil, broken("%s: %v", name, err)
		}
		out = append(out, v)
	}
	if _, err := d.Token(); err != nil {
		return nil, broken("%s: %v", name, err)
	}
	return out, nil
}

// bytes reads an entry into memory.
func (m *importing) bytes(h *tar.Header, limit int64) ([]byte, error) {
	if h.Size > limit {
		return nil, broken("%s has %d bytes, over the limit of %d", h.Name, h.Size, limit)
	}
	b, err := io.ReadAll(m.tr)
	if err != nil {
		return nil, broken("reading %s: %v", h.Name, err)
	}
	sum := sha256.Sum256(b)
	m.took(h.Name, h.Size, hex.EncodeToString(sum[:]))
	return b, nil
}

// took remembers an entry for hold.
func (m *importing) took(name string, size int64, hash string) {
	name = strings.Clone(name) // a part of a header of up to 1 MiB, which would stay
	m.got[name] = exportEntry{name, size, hash}
	m.order = append(m.order, name)
}

// sum is the hash and the length of an entry.
func (m *importing) sum(h *tar.Header) (outboard.BlobRef, error) {
	sum := sha256.New()
	n, err := io.Copy(sum, m.tr)
	if err != nil {
		return outboard.BlobRef{}, broken("reading %s: %v", quote(h.Name), err)
	}
	ref := outboard.BlobRef{Digest: hex.EncodeToString(sum.Sum(nil)), Size: n}
	m.took(h.Name, ref.Size, ref.Digest)
	return ref, nil
}

// hold compares what came with the manifest.
func (m *importing) hold(b []byte) error {
	var want struct {
		manifest
		Entries json.RawMessage `json:"entries"`
	}
	if err := strictly(manifestEntry, b, &want); err != nil {
		return err
	}
	entries, err := listed[exportEntry](manifestEntry, want.Entries, maxExportEntries)
	if err != nil {
		return err
	}
	if want.Format != exportFormat || want.Session != m.session.ID || want.Seq != m.session.Seq {
		return broken("its manifest is another export's")
	}
	for _, e := range entries {
		got, ok := m.got[e.Name]
		if !ok {
			return broken("%s is missing", quote(e.Name))
		}
		if got != e {
			return broken("%s has the hash %s (%d bytes), but the manifest says %s (%d bytes): it was changed",
				quote(e.Name), got.Hash, got.Size,
				quote(e.Hash), e.Size)
		}
		delete(m.got, e.Name)
	}
	for name := range m.got {
		return broken("%s is not in the manifest", quote(name))
	}
	for i, e := range entries {
		if m.order[i] != e.Name {
			return broken("entry %d is %s, but the manifest says %s: they were reordered", i+1, quote(m.order[i]),
				quote(e.Name))
		}
	}
	if h, err := m.tr.Next(); !errors.Is(err, io.EOF) {
		if err == nil {
			return broken("entry %s comes after the manifest", quote(h.Name))
		}
		return broken("after the manifest: %v", err)
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(m.rest, maxPadding)); err != nil || n == maxPadding {
		return broken("it goes on after its end")
	}
	return nil
}

// check validates what the file says as if a client had said it, and makes it this server's.
func (m *importing) check(ctx context.Context, by outboard.Caller) error {
	s := &m.session
	if m.parts == 0 || !outboard.ValidID(outboard.PrefixSession, string(s.ID)) {
		return broken("it has no session or no log")
	}
	if m.r.Title != nil {
		s.Title = *m.r.Title
	}
	if err := length("title", s.Title, 0, maxTitle); err != nil {
		return err
	}
	if err := checkMetadata(s.Metadata); err != nil {
		return err
	}
	if m.r.Environment != "" {
		env, err := m.c.sessionEnvironment(ctx, by, SessionRequest{EnvironmentID: m.r.Environment})
		if err != nil {
			return err
		}
		s.Environment, s.Config.Environment, s.Config.Env = env.ID, env.ID, env.Config
	}
	if err := m.c.mayBegin(by, "", &s.Config.Env); err != nil && m.r.Environment == "" {
		return err
	}
	if err := m.c.pinTemplate(ctx, by, &s.Config.Env); err != nil { // never a build that the file names
		return err
	}
	if err := checkEnvironment(&outboard.Environment{Name: "imported", Config: s.Config.Env}); err != nil {
		return err
	}
	if s.Config.Env.Kind != "cloud" {
		return broken("its environment is %s, not cloud", quote(s.Config.Env.Kind))
	}
	a := &s.Config.Agent
	if m.r.Model != "" {
		a.Model = outboard.ModelConfig{ID: m.r.Model}
	}
	if err := checkAgent(a); err != nil {
		return err
	}
	if err := checkRunnable(a); err != nil {
		return err
	}
	if m.c.models != nil {
		if _, err := m.c.models.Resolve(a.Model.ID); err != nil {
			return err
		}
	}
	s.Config.VaultIDs, s.Config.Owner = nil, by.Owner()
	if err := m.ownIDs(ctx, by); err != nil {
		return err
	}
	if err := m.checkFiles(); err != nil {
		return err
	}
	return m.checkChain()
}

// checkFiles gives the files new ids, and the resources that name them.
func (m *importing) checkFiles() error {
	now := m.c.clock()
	for i := range m.files {
		f := &m.files[i]
		if !m.has(f.Blob) {
			return broken("file %s has no content", quote(string(f.ID)))
		}
		if err := length("filename", f.Filename, 0, maxMountPath); err != nil {
			return err
		}
		if err := length("mime_type", f.MediaType, 0, maxMIME); err != nil {
			return err
		}
		if err := length("path", f.Path, 0, maxMountPath); err != nil {
			return err
		}
		old := f.ID
		f.ID, f.Session, f.CreatedAt = outboard.NewID[outboard.FileID](outboard.PrefixFile), m.newID, now
		f.ExpiresAt = f.ExpiresAt.Truncate(0)
		m.newFiles[old] = f.ID
	}
	var kept []outboard.Resource
	for _, r := range m.session.Config.Resources {
		id, ok := m.newFiles[r.File]
		if r.Kind != "file" || !ok {
			continue // deleted before the export
		}
		mount, err := mountPath(ResourceRequest{File: id, MountPath: r.MountPath})
		if err != nil {
			return err
		}
		kept = append(kept, outboard.Resource{ID: outboard.NewID[outboard.ResourceID](outboard.PrefixResource),
			Kind: "file", File: id,
			Origin: r.Origin, MountPath: mount, CreatedAt: now, UpdatedAt: now})
	}
	m.session.Config.Resources = kept
	if old, kind, ok := strings.Cut(m.session.Metadata[fleet.WorkspaceKey], ":"); ok {
		if id, ok := m.newFiles[outboard.FileID(old)]; ok {
			m.session.Metadata[fleet.WorkspaceKey] = string(id) + ":" + kind
		} else {
			delete(m.session.Metadata, fleet.WorkspaceKey)
		}
	}
	return nil
}

// has reports whether a blob came with the file: a file must not reach what this server has besides.
func (m *importing) has(ref outboard.BlobRef) bool {
	size, ok := m.blobs[ref.Digest]
	return ok && size == ref.Size
}

// checkChain gives the checkpoints new ids.
func (m *importing) checkChain() error {
	parent, made := outboard.CheckpointID(""), outboard.CheckpointID("")
	if len(m.chain) > maxDeltas {
		return broken("it has %d checkpoints", len(m.chain))
	}
	for i := range m.chain {
		k := &m.chain[i]
		if k.Parent != parent || !m.has(k.Delta) || k.Seq < 1 || k.Seq > m.session.Seq+outboard.MaxAppend {
			return broken("checkpoint %s does not build on the one before it, or has no content", quote(string(k.ID)))
		}
		parent = k.ID
		k.ID, k.Session, k.Parent, k.Depth = outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint), m.newID, made, i
		k.Seq, k.Prior, k.Host, k.DurableAt = min(k.Seq, m.session.Seq), made, "", m.c.clock()
		made = k.ID
	}
	if parent != m.session.Checkpoint {
		return broken("its checkpoints end with %s, not %s", quote(string(parent)), quote(string(m.session.Checkpoint)))
	}
	m.session.Checkpoint = made
	return nil
}

// log yields the events of the file as those of the new session. Each is checked on the way.
func (m *importing) log(ctx context.Context,
	visit func(*outboard.Event, outboard.Payload) error) func(yield func(outboard.Event, error) bool) {
	return func(yield func(outboard.Event, error) bool) {
		left := m.parts
		err := m.again(ctx, func(name string, r io.Reader) (bool, error) {
			if !strings.HasPrefix(name, eventsDir) {
				return true, nil
			}
			left--
			return m.part(r, visit, yield) && left > 0, nil
		})
		if err != nil {
			yield(outboard.Event{}, err)
		}
	}
}

// part yields the events of one part of the log; false ends it.
func (m *importing) part(r io.Reader, visit func(*outboard.Event, outboard.Payload) error,
	yield func(outboard.Event, error) bool) bool {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 2*outboard.MaxConfigData+4096) // a line is an event's data, escaped at most once more
	for sc.Scan() {
		e, p, err := m.event(sc.Bytes())
		if err == nil {
			err = visit(&e, p)
		}
		if !yield(e, err) || err != nil {
			return false
		}
	}
	if err := sc.Err(); err != nil {
		return yield(outboard.Event{}, broken("reading the log: %v", err)) && false
	}
	return true
}

// event reads one line of the log.
func (m *importing) event(line []byte) (e outboard.Event, p outboard.Payload, err error) {
	if err := json.Unmarshal(line, &e); err != nil {
		return e, nil, broken("a line of the log is no event: %v", err)
	}
	if e.Seq > m.session.Seq || !outboard.ValidID(outboard.PrefixEvent, string(e.ID)) || len(e.Thread) > maxName {
		return e, nil, broken("event %d of the log is not in its bounds", e.Seq)
	}
	if p, err = e.Decode(); err != nil {
		return e, nil, broken("event %d of the log: %v", e.Seq, err)
	}
	for _, ref := range blobsOf(p) {
		if !m.has(ref) {
			return e, nil, broken("event %d names content that is not in the file: %s", e.Seq, quote(ref.Digest))
		}
	}
	if m.rename(p) {
		e.Data = outboard.NewEvent(e.Thread, p).Data
	}
	e.Session, e.Ref = m.newID, p.RefID()
	if e.Thread == m.session.Thread {
		e.Thread = m.thread
	}
	return e, p, nil
}

// fold folds the log, to be sure that it can be.
func (m *importing) fold(ctx context.Context) error {
	err := drain(m.log(ctx, func(e *outboard.Event, p outboard.Payload) error {
		m.last = e.Seq
		switch p := p.(type) {
		case *outboard.TurnStarted:
			m.turn = p.Turn
		case *outboard.SessionRewound:
			if p.Conversation {
				m.rewinds = append(m.rewinds, outboard.Rewind{Seq: e.Seq, To: p.To})
			}
		}
		return nil
	}))
	if err == nil && m.last != m.session.Seq {
		err = broken("its log ends with event %d, not %d", m.last, m.session.Seq)
	}
	if err != nil {
		return err
	}
	st, err := outboard.NewState(m.rewinds)
	if err != nil {
		return broken("%v", err)
	}
	var head int64
	var at time.Time
	return drain(m.log(ctx, func(e *outboard.Event, _ outboard.Payload) error {
		if err := st.Apply(e); err != nil {
			return broken("event %d of the log: %v", e.Seq, err)
		}
		if err := store.Follows(head, at, e); err != nil {
			return err
		}
		head, at = e.Seq, e.Time
		if st.Settled() {
			st.History = nil
		}
		if e.Seq == m.session.Seq && (!st.Settled() || st.Phase == outboard.PhaseTerminated) {
			return broken("its log ends in the middle of something")
		}
		return nil
	}))
}

// store makes the session. taint is of the file: what its log says of itself is as good as its signature.
func (m *importing) store(ctx context.Context, digest string, taint outboard.Taint) (Session, error) {
	if err := m.keep(ctx); err != nil {
		return Session{}, err
	}
	s := &m.session
	now := m.c.clock()
	h := outboard.Header{ID: m.newID, Thread: m.thread, Title: s.Title, Metadata: s.Metadata, AgentID: s.AgentID,
		AgentVersion:  s.AgentVersion,
		EnvironmentID: s.Environment, CreatedAt: now, UpdatedAt: now, Org: s.Config.Owner.Org, User: s.Config.Owner.User}
	events := []outboard.Event{outboard.NewEvent(m.thread, &outboard.SessionForked{Parent: s.ID, Seq: s.Seq,
		Checkpoint: s.Checkpoint,
		Config:     s.Config, Import: digest, Taint: taint})}
	if s.InTurn {
		events = append(events, outboard.NewEvent(m.thread,
			&outboard.TurnEnded{Turn: m.turn, Stop: outboard.StopReason{Type: "end_turn"}}))
	}
	log := m.log(ctx, func(*outboard.Event, outboard.Payload) error { return nil }) // which fold has looked at
	h, err := m.c.store.Import(ctx, store.Import{Header: h, Config: s.Config, Log: log, Events: events,
		Checkpoints: m.chain, Files: m.files})
	if err != nil {
		return Session{}, outboard.Errorf(outboard.KindOf(err), "importing: %w", err)
	}
	return Session{h, s.Config}, nil
}

// drain reads a log to its end.
func drain(log func(yield func(outboard.Event, error) bool)) error {
	for _, err := range log {
		if err != nil {
			return err
		}
	}
	return nil
}
