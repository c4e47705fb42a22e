// Package kill says whether somebody can have an effect now. A Switch knows the kills in force from
// two places: rows of the database, which all its servers share, and files of one data directory,
// which can be written without a database or a server.
//
// Invariants:
//   - What cannot be read counts as killed: a directory or file that cannot be understood, or rows
//     that could not be read for as long as Freshness. Only a directory that does not exist has no
//     files.
//   - A Check that begins Freshness after a kill was written, or later, sees it.
//
// It never ends anything itself: cmd/outboard does.
//
// Start reading at Switch.
package kill

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

const (
	// LookEvery is how often both places are read: a fifth of the second in which a kill must hold.
	LookEvery = 200 * time.Millisecond
	// Freshness is how old what is known of the rows may be when somebody asks; older is read again first.
	Freshness = 500 * time.Millisecond
	// readTime bounds one reading of the rows: a database that hangs is one that cannot be read.
	readTime = 2 * time.Second
	// maxKillFile and maxKillFiles bound what is read of the directory.
	maxKillFile  = 64 << 10
	maxKillFiles = 1000
)

// Source are the rows.
type Source interface {
	ActiveKills(ctx context.Context) ([]outboard.Kill, error)
}

// Config makes a Switch.
type Config struct {
	Source Source       // nil = files only
	Dir    string       // of the files; "" = rows only
	Host   string       // this machine, for KillHost
	Logger *slog.Logger // nil = discard
}

// Switch is safe for concurrent use. It works before Start, too.
type Switch struct {
	cfg Config

	reading chan struct{} // capacity 1, full while the rows are being read: one reading at a time

	mu       sync.Mutex
	rows     []outboard.Kill
	rowsErr  error
	rowsAt   time.Time // when rows were read, by the monotonic clock
	failedAt time.Time // when a reading of them failed
	files    []outboard.Kill
	held     []outboard.Kill // in no file, because it could not be written; they are among files, too
	filesErr error
	filesAt  time.Time

	cancel context.CancelFunc
	loops  sync.WaitGroup
}

// New returns a Switch.
func New(cfg Config) *Switch {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Switch{cfg: cfg, reading: make(chan struct{}, 1)}
}

// Host is the name of this machine, as Config has it.
func (s *Switch) Host() string { return s.cfg.Host }

// Start begins to look. Stop ends it.
func (s *Switch) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	look := func(read func()) {
		tick := time.NewTicker(LookEvery)
		defer tick.Stop()
		for {
			read()
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}
	s.loops.Go(func() { look(s.readFiles) })
	if s.cfg.Source != nil {
		s.loops.Go(func() { look(func() { s.readRows(ctx, LookEvery/2) }) })
	}
}

// Signature differs between two sets of kills.
func Signature(active []outboard.Kill) string {
	var b strings.Builder
	for _, k := range active {
		b.WriteString(string(k.ID) + " " + string(k.Level) + "\n")
	}
	return b.String()
}

// Stop ends looking. It may be called twice, and before Start.
func (s *Switch) Stop() {
	if s.cancel != nil {
		s.cancel()
	}
	s.loops.Wait()
}

// Check returns nil if a subject may have an effect, and else a *outboard.Kill, or an error of kind Unavailable
// where nobody knows.
func (s *Switch) Check(ctx context.Context, who outboard.KillSubject) error {
	k, err := s.Find(ctx, who)
	if err != nil {
		return err
	}
	if k != nil {
		return Refusal(k)
	}
	return nil
}

// Refusal is what whoever a kill covers is told.
func Refusal(k *outboard.Kill) error {
	return outboard.Errorf(outboard.Denied, "%w", k).WithCode("killed").
		WithHint("outboard kill ls; outboard kill %s --lift ends it", strings.TrimSpace(string(k.Scope)+" "+k.Target))
}

// Find returns the kill that goes furthest of those that cover a subject, or nil. An error means that nobody
// knows. A file that covers the subject is answer enough: then no database is waited for.
func (s *Switch) Find(ctx context.Context, who outboard.KillSubject) (*outboard.Kill, error) {
	s.mu.Lock()
	old := s.filesAt.IsZero() || time.Since(s.filesAt) > Freshness
	s.mu.Unlock()
	if old {
		s.readFiles()
	}
	if s.cfg.Source != nil && !s.filed(who) {
		s.readRows(ctx, Freshness)
	}
	return s.Known(who)
}

// Known is Find by what was read last: for whoever ends what runs, and must not wait for a database that hangs.
func (s *Switch) Known(who outboard.KillSubject) (*outboard.Kill, error) {
	who = s.here(who)
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *outboard.Kill
	for _, list := range [][]outboard.Kill{s.files, s.rows} {
		for i := range list {
			if k := list[i]; k.Covers(who) && (found == nil || k.Level.Rank() > found.Level.Rank()) {
				found = &k
			}
		}
	}
	if found != nil {
		return found, nil
	}
	if err := errors.Join(s.filesErr, s.rowsErr); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "the kill switch cannot be read, so nothing may happen: %w",
			err).WithCode("killed")
	}
	return nil, nil
}

// filed reports whether a file covers a subject.
func (s *Switch) filed(who outboard.KillSubject) bool {
	who = s.here(who)
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.files, func(k outboard.Kill) bool { return k.Covers(who) })
}

func (s *Switch) here(who outboard.KillSubject) outboard.KillSubject {
	if who.Host == "" {
		who.Host = s.cfg.Host
	}
	return who
}

// Active returns what is known to be in force, each kill once: while one that was a file is made a row it is both.
func (s *Switch) Active() []outboard.Kill {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []outboard.Kill
	for _, k := range slices.Concat(s.rows, s.files) {
		if !slices.ContainsFunc(out, func(had outboard.Kill) bool { return had.ID == k.ID }) {
			out = append(out, k)
		}
	}
	return out
}

// Files returns the kills that are files, to be made rows.
func (s *Switch) Files() []outboard.Kill {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.files)
}

// Refresh reads both places now.
func (s *Switch) Refresh(ctx context.Context) {
	s.readFiles()
	if s.cfg.Source != nil {
		s.readRows(ctx, 0)
	}
}

// readRows reads the rows, unless somebody has within the given time. Who waited for a reading that failed does
// not try it again: else many who ask would wait for a database that hangs one after the other.
func (s *Switch) readRows(ctx context.Context, within time.Duration) {
	asked := time.Now()
	done := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.failedAt.After(asked) || s.rowsErr == nil && !s.rowsAt.IsZero() && time.Since(s.rowsAt) < within
	}
	if done() {
		return
	}
	s.reading <- struct{}{}
	defer func() { <-s.reading }()
	if done() {
		return
	}
	begun := time.Now()
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTime)
	rows, err := s.cfg.Source.ActiveKills(rctx)
	cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rowsErr = err
	if err != nil {
		s.failedAt = time.Now()
		return
	}
	s.rows, s.rowsAt = rows, begun
}

func (s *Switch) readFiles() {
	files, err := ReadFiles(s.cfg.Dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files, s.filesErr, s.filesAt = slices.Concat(files, s.held), err, time.Now()
}

// Hold puts a kill in force in this process only, for one whose file cannot be written: a disk that is full must
// not keep anything alive.
func (s *Switch) Hold(k outboard.Kill) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.files = append(s.held, k), append(slices.Clone(s.files), k)
}

// Drop ends what Hold began, once the kill is a row or lifted.
func (s *Switch) Drop(id outboard.KillID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) > 0 {
		is := func(k outboard.Kill) bool { return k.ID == id }
		s.held, s.files = slices.DeleteFunc(s.held, is), slices.DeleteFunc(slices.Clone(s.files), is)
	}
}

// ReadFiles returns the kills of a directory. A file that says nothing sensible is an error: it may have been
// meant for anybody.
func ReadFiles(dir string) ([]outboard.Kill, error) {
	if dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "reading the kill switch: %w", err)
	}
	if len(entries) > maxKillFiles {
		return nil, outboard.Errorf(outboard.Unavailable, "reading the kill switch: %s has %d files, more than %d", dir,
			len(entries), maxKillFiles)
	}
	var out []outboard.Kill
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue // being written
		}
		k, err := readFile(filepath.Join(dir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // lifted meanwhile
		case err != nil:
			errs = append(errs, outboard.Errorf(outboard.Unavailable, "reading the kill switch: %s: %w", e.Name(), err))
		default:
			out = append(out, k)
		}
	}
	return out, errors.Join(errs...)
}

func readFile(path string) (k outboard.Kill, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return k, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxKillFile {
		return k, errors.New("it is no file of a kill")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return k, err
	}
	if err := json.Unmarshal(b, &k); err != nil {
		return k, err
	}
	if k.ID == "" || k.Level.Rank() == 0 || !slices.Contains(outboard.KillScopes, k.Scope) ||
		(k.Target == "") != (k.Scope == outboard.KillAll) {
		return k, errors.New("it lacks an id, a scope, a target or a level")
	}
	return k, nil
}

// WriteFile puts a kill in force for every server on a data directory, as soon as they look.
func WriteFile(dir string, k outboard.Kill) error {
	b, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return outboard.Errorf(outboard.Unavailable, "writing the kill switch: %w", err)
	}
	temp := filepath.Join(dir, "."+string(k.ID))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "writing the kill switch: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(temp, filepath.Join(dir, string(k.ID)+".json"))
	}
	if err != nil {
		_ = os.Remove(temp)
		return outboard.Errorf(outboard.Unavailable, "writing the kill switch: %w", err)
	}
	return nil
}

// RemoveFile lifts a kill that is a file.
func RemoveFile(dir string, id outboard.KillID) error {
	err := os.Remove(filepath.Join(dir, filepath.Base(string(id))+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
