package guest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// The journal is one file of records in the order they were made durable. The file is filled with zeros ahead of
// its end, so that making a record durable is one fdatasync that changes no metadata. A record is: length (4
// bytes, big endian), checksum of the payload (4), payload (a message of package form). A length of zero is the
// end. A record that a crash tore fails its checksum and is the end as well: it was not answered, so nobody
// relies on it.
//
// A volatile journal is for a sandbox that ends with the machine's boot, as its processes and its overlay do:
// nobody reads the file after that, so it lives in the page cache and nothing waits for a disk. A guest that
// dies and starts again finds it all the same.
type journal struct {
	dir      string
	volatile bool

	mu       sync.Mutex // guards the fields below; held for writes into the page cache, never for a sync
	f        *os.File
	off      int64 // where the next record goes
	size     int64 // file size, all zeros from off on
	promised int64 // bytes that calls under way may need for their outcome
	err      error // sticky: after a failed write or sync nothing more is certain

	syncMu sync.Mutex // held during a sync; waiters find their record synced by the one before (group commit)
	synced int64
}

// record is one journal entry.
type record struct {
	Type   string
	Epoch  int64
	Key    string
	Digest string
	Done   *outcome
}

func (r *record) Fields() []any {
	return []any{&r.Type, &r.Epoch, &r.Key, &r.Digest, form.Maybe(&r.Done)}
}

func (o *outcome) Fields() []any {
	return []any{&o.Cause, &o.ExitCode, &o.DurationUs, &o.Limit, &o.Total, &o.Inline, &o.File}
}

// Types of a record.
const (
	recEpoch    = "epoch"
	recAccepted = "accepted" // also raises the epoch
	recDone     = "done"
	recKilled   = "killed"
	recAcked    = "acked"
)

const (
	journalName = "journal"
	// journalStep is how far ahead the file is filled: one metadata sync per some hundred records.
	journalStep = 256 << 10
	// maxRecord bounds one record: a key, a digest and an inline output.
	maxRecord = 16 << 10
	// compactAt is the size at which records of acknowledged calls are worth dropping.
	compactAt = 8 << 20
)

// openJournal opens or makes the journal in dir, replays its records in order, and clears whatever a crash left
// after them.
func openJournal(dir string, volatile bool, replay func(record)) (*journal, error) {
	j := &journal{dir: dir, volatile: volatile}
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening journal: %w", err)
	}
	j.f = f
	if err := j.recover(replay); err != nil {
		f.Close()
		return nil, fmt.Errorf("reading journal: %w", err)
	}
	return j, nil
}

// MakeJournal makes an empty journal with room in it, of user uid, in the directory of a guest that is to be
// started: a file and its first room can be dear, and the guest would make them while somebody waits.
func MakeJournal(dir string, uid int) error {
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("making a journal: %w", err)
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, journalStep); err != nil && err != syscall.EOPNOTSUPP {
		return fmt.Errorf("making a journal: %w", err)
	}
	return f.Chown(uid, uid)
}

// untouched reports whether nothing was ever written to the journal: all of its room is there, and it begins
// with none. Where nothing is lost but with the machine, what was written begins with what was written first.
func (j *journal) untouched() bool {
	var head [8]byte
	fi, err := j.f.Stat()
	if err != nil || !j.volatile || j.off != 0 || fi.Size() != journalStep {
		return false
	}
	_, err = j.f.ReadAt(head[:], 0)
	return err == nil && head == [8]byte{}
}

func (j *journal) recover(replay func(record)) error {
	r := bufio.NewReader(j.f) // most often of an empty file
	for {
		rec, n, err := readRecord(r)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		j.off += n
		replay(rec)
	}
	if j.untouched() {
		j.size = journalStep
		return nil
	}
	// What follows may be a torn record and, behind it, bytes that look like one: none of it may be read after
	// the next append.
	if err := j.f.Truncate(j.off); err != nil {
		return err
	}
	j.size = j.off
	if err := j.extend(1); err != nil {
		return err
	}
	j.synced = j.off
	return j.flush(func() error { return syncDir(j.dir) })
}

// readRecord returns the next record and its size, or size 0 at the end.
func readRecord(r io.Reader) (record, int64, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return record{}, 0, nil
		}
		return record{}, 0, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > maxRecord {
		return record{}, 0, nil
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return record{}, 0, nil
		}
		return record{}, 0, err
	}
	if checksum(data) != binary.BigEndian.Uint32(head[4:]) {
		return record{}, 0, nil
	}
	var rec record
	if err := form.DecodeText(data, &rec); err != nil {
		return record{}, 0, nil
	}
	return rec, int64(len(head) + len(data)), nil
}

func encodeRecord(rec record) ([]byte, error) {
	data := form.Encode(&rec)
	if len(data) > maxRecord {
		return nil, fmt.Errorf("journal record of %d bytes", len(data))
	}
	b := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint32(b, uint32(len(data)))
	binary.BigEndian.PutUint32(b[4:], checksum(data))
	return append(b, data...), nil
}

// checksum tells a record from one that is not all there: FNV-1a, because that has no tables, which each sandbox
// would have to make.
func checksum(data []byte) uint32 {
	sum := uint32(2166136261)
	for _, c := range data {
		sum = (sum ^ uint32(c)) * 16777619
	}
	return sum
}

// extend makes room for need more bytes after off. A full disk fails here, before anything was written, and is
// not sticky.
func (j *journal) extend(need int64) error {
	for j.size < j.off+need {
		if err := j.fill(); err != nil {
			j.f.Truncate(j.size)
			return fmt.Errorf("extending journal: %w", err)
		}
		if err := j.flush(j.f.Sync); err != nil {
			j.err = fmt.Errorf("extending journal: %w", err)
			return j.err
		}
		j.size += journalStep
	}
	return nil
}

// fill takes the next step of room. Without a sync to come the blocks need not be written, only taken.
func (j *journal) fill() error {
	if j.volatile {
		err := syscall.Fallocate(int(j.f.Fd()), 0, j.size, journalStep)
		if err != syscall.EOPNOTSUPP {
			return err
		}
	}
	_, err := j.f.WriteAt(make([]byte, journalStep), j.size)
	return err
}

// flush runs a sync where one is needed.
func (j *journal) flush(sync func() error) error {
	if j.volatile {
		return nil
	}
	return sync()
}

// write puts a record into the file and returns the offset up to which sync must go to make it durable. promise
// changes the room kept for outcomes of calls under way: +maxRecord when one is accepted, -maxRecord with its
// outcome.
func (j *journal) write(rec record, promise int64) (int64, error) {
	b, err := encodeRecord(rec)
	if err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return 0, j.err
	}
	if err := j.extend(int64(len(b)) + max(0, j.promised+promise)); err != nil {
		return 0, err
	}
	if _, err := j.f.WriteAt(b, j.off); err != nil {
		j.err = fmt.Errorf("writing journal: %w", err)
		return 0, j.err
	}
	j.off += int64(len(b))
	j.promised += promise
	return j.off, nil
}

// sync makes everything up to off durable.
func (j *journal) sync(off int64) error {
	j.syncMu.Lock()
	defer j.syncMu.Unlock()
	j.mu.Lock()
	to, err := j.off, j.err
	j.mu.Unlock()
	if err != nil || j.synced >= off {
		return err
	}
	if err := j.flush(func() error { return syscall.Fdatasync(int(j.f.Fd())) }); err != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.err = fmt.Errorf("syncing journal: %w", err)
		return j.err
	}
	j.synced = to
	return nil
}

// large reports whether compact is due.
func (j *journal) large() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.off > compactAt && j.err == nil
}

// compact replaces the journal by one with these records. The caller holds back every other use of it.
func (j *journal) compact(records func(yield func(record) bool)) error {
	tmp := filepath.Join(j.dir, journalName+".new")
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("compacting journal: %w", err)
	}
	w, off := bufio.NewWriterSize(f, 64<<10), int64(0)
	for rec := range records {
		b, encErr := encodeRecord(rec)
		n, wErr := w.Write(b)
		err = errors.Join(err, encErr, wErr)
		off += int64(n)
	}
	err = errors.Join(err, w.Flush(), j.flush(f.Sync))
	if err == nil {
		err = os.Rename(tmp, filepath.Join(j.dir, journalName))
	}
	if err != nil {
		f.Close()
		os.Remove(tmp)
		return fmt.Errorf("compacting journal: %w", err)
	}
	j.syncMu.Lock()
	defer j.syncMu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.f.Close()
	j.f, j.off, j.size, j.synced = f, off, off, off
	if err := errors.Join(j.flush(func() error { return syncDir(j.dir) }), j.extend(1+j.promised)); err != nil {
		j.err = fmt.Errorf("compacting journal: %w", err)
	}
	return j.err
}

func (j *journal) close() error {
	j.syncMu.Lock()
	defer j.syncMu.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = errors.New("journal is closed")
	}
	return j.f.Close()
}

// syncDir makes the directory's entries durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
