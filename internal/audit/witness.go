package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/outboard-dev/outboard"
)

// Limits of a witness.
const (
	// watchEvery is how often new records are witnessed: what is cut off the end of the log within it, with the
	// server dead, is not noticed.
	watchEvery = time.Second
	// pullPage is how many records' hashes are read at a time.
	pullPage = 1000
)

// Log is a log to witness. Both see committed records only.
type Log interface {
	// AuditSize is how many records there are.
	AuditSize(ctx context.Context) (int64, error)
	// AuditHashes returns Entry.Hashes of the records after a number, in order.
	AuditHashes(ctx context.Context, after int64, limit int) ([][]byte, error)
}

// Witness remembers a log in a directory that the database cannot reach. Several processes may have one on the
// same directory.
type Witness struct {
	dir    string
	signer note.Signer
	public string
	now    func() time.Time
	log    *slog.Logger

	mu     sync.Mutex
	tree   Tree // of last, when it has been read
	last   Checkpoint
	cancel context.CancelFunc
	run    sync.WaitGroup
}

// OpenWitness opens a directory, making it and its key where there are none.
func OpenWitness(dir string, log *slog.Logger, now func() time.Time) (*Witness, error) {
	w := &Witness{dir: dir, log: log, now: now}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.now == nil {
		w.now = time.Now
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = w.openKey()
	}
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "opening the audit's key: %w", err)
	}
	return w, nil
}

// openKey reads the key, or makes one. Of several processes that make one at the same time, one's stays.
func (w *Witness) openKey() error {
	path := filepath.Join(w.dir, "key")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := w.makeKey(path); err != nil {
			return err
		}
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return err
	}
	secret, public, ok := bytes.Cut(bytes.TrimSpace(text), []byte("\n"))
	if !ok {
		return fmt.Errorf("%s is not a key", path)
	}
	w.public = string(public)
	if w.signer, err = note.NewSigner(string(secret)); err != nil {
		return fmt.Errorf("%s is not a key", path)
	}
	return nil
}

func (w *Witness) makeKey(path string) error {
	if _, err := os.Stat(filepath.Join(w.dir, "checkpoint")); err == nil {
		return fmt.Errorf("%s is gone, and %s was signed with it", path, filepath.Join(w.dir, "checkpoint"))
	}
	secret, public, err := newKey()
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(w.dir, ".new-") // private to the user
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err = tmp.WriteString(secret + "\n" + public + "\n"); err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// PublicOf reads the public key of a witness's directory.
func PublicOf(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "key"))
	if err != nil {
		return "", err
	}
	_, public, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return public, nil
}

// Public is the key that checks this witness's checkpoints.
func (w *Witness) Public() string { return w.public }

// Tampered says that a log is not the one that was witnessed.
type Tampered struct{ Why string }

func (t *Tampered) Error() string { return "the audit log was changed from outside: " + t.Why }

// Update looks at what is new in a log, and signs it if the log continues what was signed before. Else the error
// is a *Tampered.
func (w *Witness) Update(ctx context.Context, log Log) (Checkpoint, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	unlock, err := lock(filepath.Join(w.dir, "lock"))
	if err != nil {
		return w.last, outboard.Errorf(outboard.Unavailable, "locking %s: %w", w.dir, err)
	}
	defer unlock()
	size, err := log.AuditSize(ctx)
	if err != nil {
		return w.last, err
	}
	if err := w.resume(ctx, log, size); err != nil {
		return w.last, err
	}
	if size == w.last.Size && w.last.Origin != "" {
		return w.last, nil
	}
	tree, leaves, err := w.pull(ctx, log, size)
	if err != nil {
		return w.last, err
	}
	return w.last, w.write(tree, leaves)
}

// resume reads what was signed last, by whichever process, and finds its tree in the log.
func (w *Witness) resume(ctx context.Context, log Log, size int64) error {
	last, err := w.checkpoint()
	if err != nil {
		return err
	}
	if size < last.Size {
		return &Tampered{fmt.Sprintf("it has %d records, and had %d at %s", size, last.Size,
			last.At.Format(time.RFC3339))}
	}
	if last == w.last && w.tree.Size() == last.Size {
		return nil
	}
	var tree Tree
	if last.Size > 0 {
		tree, err = TreeOf(last.Size, func(num int64) ([]byte, error) {
			rows, err := log.AuditHashes(ctx, num-1, 1)
			if err != nil || len(rows) == 0 {
				return nil, err
			}
			return rows[0], nil
		})
		if err != nil && outboard.KindOf(err) != outboard.Internal {
			return err
		}
		if err != nil || tree.Root() != last.Root {
			return &Tampered{fmt.Sprintf("its first %d records are not those that were signed at %s", last.Size,
				last.At.Format(time.RFC3339))}
		}
	}
	w.tree, w.last = tree, last
	return nil
}

// Checkpoint returns the last note as it was signed, nil when there is none yet.
func (w *Witness) Checkpoint() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(w.dir, "checkpoint"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "reading the audit's checkpoint: %w", err)
	}
	return text, nil
}

func (w *Witness) checkpoint() (Checkpoint, error) {
	text, err := w.Checkpoint()
	if err != nil || text == nil {
		return Checkpoint{}, err
	}
	c, err := Open(w.public, text)
	if err != nil {
		return c, &Tampered{fmt.Sprintf("%s: %v", filepath.Join(w.dir, "checkpoint"), err)}
	}
	return c, nil
}

// pull adds what the log has beyond the tree.
func (w *Witness) pull(ctx context.Context, log Log, size int64) (Tree, []byte, error) {
	tree := w.tree
	var leaves []byte
	for tree.Size() < size {
		page, err := log.AuditHashes(ctx, tree.Size(), int(min(pullPage, size-tree.Size())))
		if err != nil {
			return tree, nil, err
		}
		if len(page) == 0 {
			return tree, nil, &Tampered{fmt.Sprintf("record %d of %d is missing", tree.Size()+1, size)}
		}
		for _, b := range page {
			if len(b) < HashSize || !bytes.Equal(tree.Add([HashSize]byte(b)), b) {
				return tree, nil, &Tampered{fmt.Sprintf("the hashes of record %d do not fit those before it",
					tree.Size())}
			}
			leaves = append(leaves, b[:HashSize]...)
		}
	}
	return tree, leaves, nil
}

// write makes a checkpoint durable, its leaves before it.
func (w *Witness) write(tree Tree, leaves []byte) error {
	c := Checkpoint{Origin: w.signer.Name(), Size: tree.Size(), Root: tree.Root(), At: w.now().UTC().
		Truncate(time.Second)}
	text, err := c.sign(w.signer)
	if err != nil {
		return outboard.Errorf(outboard.Internal, "signing the audit: %w", err)
	}
	if err = w.keepLeaves(leaves); err == nil {
		err = replaceFile(filepath.Join(w.dir, "checkpoint"), text)
	}
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "writing the audit's checkpoint: %w", err)
	}
	w.tree, w.last = tree, c
	return nil
}

// keepLeaves writes leaves behind those of w.last. What is there already was not signed.
func (w *Witness) keepLeaves(leaves []byte) error {
	f, err := os.OpenFile(filepath.Join(w.dir, "leaves"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < w.last.Size*HashSize {
		err = fmt.Errorf("%s is shorter than what was signed: move %s away to begin anew", f.Name(), w.dir)
	}
	if err == nil {
		_, err = f.WriteAt(leaves, w.last.Size*HashSize)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// replaceFile makes a file durable, whole or not at all.
func replaceFile(path string, text []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // after the rename there is none
	if _, err = tmp.Write(text); err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// Trust returns what this witness knows, and a function that lets go of it.
func (w *Witness) Trust() (Trust, func(), error) { return TrustOf(w.dir, w.public) }

// TrustOf reads a witness's directory without being it. public checks its checkpoint.
func TrustOf(dir, public string) (Trust, func(), error) {
	var t Trust
	text, err := os.ReadFile(filepath.Join(dir, "checkpoint"))
	if errors.Is(err, fs.ErrNotExist) {
		return t, func() {}, nil
	}
	if err != nil {
		return t, nil, outboard.Errorf(outboard.Unavailable, "reading the audit's checkpoint: %w", err)
	}
	c, err := Open(public, text)
	if err != nil {
		return t, nil, outboard.Errorf(outboard.Conflict, "%s: %w", filepath.Join(dir, "checkpoint"), err)
	}
	t.Checkpoints = []Checkpoint{c}
	f, err := os.Open(filepath.Join(dir, "leaves"))
	if errors.Is(err, fs.ErrNotExist) {
		return t, func() {}, nil
	}
	if err != nil {
		return t, nil, outboard.Errorf(outboard.Unavailable, "reading the audit's leaves: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return t, nil, outboard.Errorf(outboard.Unavailable, "reading the audit's leaves: %w", err)
	}
	t.Leaves = io.LimitReader(f, info.Size()) // what is added from now on is of records that a reader may not see
	return t, func() { f.Close() }, nil
}

// Start witnesses a log until Stop. What it finds to be tampered with is told once; then it goes no further.
func (w *Witness) Start(log Log, tampered func(error)) {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.run.Go(func() {
		t := time.NewTicker(watchEvery)
		defer t.Stop()
		for last := false; ; {
			_, err := w.Update(context.WithoutCancel(ctx), log)
			if _, bad := errors.AsType[*Tampered](err); bad {
				tampered(err)
				return
			}
			if err != nil {
				w.log.Error("the audit log was not witnessed", "err", err)
			}
			if last {
				return
			}
			select {
			case <-t.C:
			case <-ctx.Done():
				last = true
			}
		}
	})
}

// Stop witnesses what is there and ends. The log must still be open.
func (w *Witness) Stop() {
	if w.cancel != nil {
		w.cancel()
		w.run.Wait()
	}
}
