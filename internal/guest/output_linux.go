package guest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Limits of a call's output.
const (
	// memoryOutput is how much output waits in memory before there is a file; most calls never make one.
	memoryOutput = 64 << 10
	// maxStored bounds the file of one call: enough for a build log, too little to fill a disk.
	maxStored = 64 << 20
	// tailStored is how much of the end is kept of output beyond maxStored.
	tailStored = 64 << 10
	// maxPipe bounds what may still be in a pipe when a call ends; the kernel lets an ordinary user ask for no more.
	maxPipe = 1 << 20
	// floodRate is how many bytes per second a call may go on to write after maxStored. It is far above what
	// anybody reads, and below what keeps a processor busy.
	floodRate = 8 << 20
)

// sink collects one call's output: in memory first, then in a file made for it, then only the end. One goroutine
// at a time.
type sink struct {
	path  string
	said  *progress // is told of it as well
	buf   []byte
	file  *os.File
	full  bool // the file takes no more
	off   int64
	total int64
	tail  []byte
}

// Write never fails: what cannot be stored is counted.
func (k *sink) Write(p []byte) (int, error) {
	k.total += int64(len(p))
	if k.said != nil && len(p) > 0 {
		k.said.add(p)
	}
	if k.file == nil && !k.full {
		if len(k.buf)+len(p) <= memoryOutput {
			k.buf = append(k.buf, p...)
			return len(p), nil
		}
		k.spill()
	}
	k.store(p)
	return len(p), nil
}

// spill moves the output to its file.
func (k *sink) spill() {
	const flags = os.O_RDWR | os.O_CREATE | os.O_EXCL | syscall.O_NOFOLLOW
	f, err := os.OpenFile(k.path, flags, 0o644)
	if err != nil { // a tool that shares the guest's identity may have removed the directory, or taken the name
		os.MkdirAll(filepath.Dir(k.path), 0o755)
		os.RemoveAll(k.path)
		f, err = os.OpenFile(k.path, flags, 0o644)
	}
	k.full = err != nil
	buf := k.buf
	k.file, k.buf = f, nil
	k.store(buf)
}

func (k *sink) store(p []byte) {
	if !k.full {
		n := min(int64(len(p)), maxStored-k.off)
		w, err := k.file.WriteAt(p[:n], k.off)
		k.off += int64(w)
		k.full = err != nil || k.off >= maxStored
		p = p[w:]
	}
	if len(p) >= tailStored {
		k.tail = append(k.tail[:0], p[len(p)-tailStored:]...)
		return
	}
	if len(k.tail)+len(p) > 2*tailStored {
		k.tail = append(k.tail[:0], k.tail[len(k.tail)-tailStored:]...)
	}
	k.tail = append(k.tail, p...)
}

// close completes the file, if there is to be one, and describes it in o.
func (k *sink) close(o *outcome) {
	o.Total = k.total
	if k.file == nil && !k.full {
		if len(k.buf) <= inlineOutput {
			o.Inline = k.buf
			return
		}
		k.spill()
	}
	k.tail = k.tail[max(0, len(k.tail)-tailStored):]
	if k.file != nil {
		defer k.file.Close()
		if o.File = k.end(); o.File {
			return
		}
		os.Remove(k.path)
	}
	const mark = 64 // what marked adds
	o.Inline = k.marked(0, k.tail[max(0, len(k.tail)-inlineOutput+mark):])
}

// end writes the end of the output to its file: where the disk has no more room, over the last of the beginning.
// It reports whether the file has it then.
func (k *sink) end() bool {
	if _, err := k.file.WriteAt(k.marked(k.off, k.tail), k.off); err == nil {
		return true
	}
	at := k.off - int64(len(k.marked(0, k.tail)))
	if at <= 0 {
		return false
	}
	end := k.marked(at, k.tail)
	_, err := k.file.WriteAt(end, at)
	return err == nil && k.file.Truncate(at+int64(len(end))) == nil
}

// marked is what is kept of the end of the output, after a line about what was lost between the first off bytes
// and that.
func (k *sink) marked(off int64, tail []byte) []byte {
	if lost := k.total - off - int64(len(tail)); lost > 0 {
		return append(fmt.Appendf(nil, "\n[%d bytes of output were not kept]\n", lost), tail...)
	}
	return tail
}

// render returns the output as the caller sees it: all of it, or its head and tail around a line that names the file.
func (o *outcome) render(path string) []byte {
	if !o.File {
		return o.Inline
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Appendf(nil, "[the output, %d bytes, is gone: %v]\n", o.Total, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Appendf(nil, "[the output, %d bytes, is gone: its file was replaced]\n", o.Total)
	}
	if size := info.Size(); size <= int64(o.Limit) {
		return readSection(f, 0, size)
	}
	size := info.Size()
	mark := "\n[%d of %d bytes left out here; the whole output is in " + path + "]\n"
	room := max(0, int64(o.Limit)-int64(len(mark))-40)
	head := room / 2
	tail := room - head
	out := readSection(f, 0, head)
	out = fmt.Appendf(out, mark, o.Total-head-tail, o.Total)
	return append(out, readSection(f, size-tail, tail)...)
}

func readSection(f *os.File, off, n int64) []byte {
	b := make([]byte, n)
	got, _ := io.ReadFull(io.NewSectionReader(f, off, n), b)
	return b[:got]
}

// buffers are for reading output: one is enough for most guests. That is no part of the heap, which would have
// to grow for it.
var (
	buffers   = sync.Pool{New: func() any { return new([32 << 10]byte) }}
	ownBuffer [32 << 10]byte
	ownTaken  atomic.Bool
)

func takeBuffer() *[32 << 10]byte {
	if ownTaken.CompareAndSwap(false, true) {
		return &ownBuffer
	}
	return buffers.Get().(*[32 << 10]byte)
}

func giveBuffer(b *[32 << 10]byte) {
	if b == &ownBuffer {
		ownTaken.Store(false)
		return
	}
	buffers.Put(b)
}

// meter slows down what produces output faster than anybody can want it. Up to maxStored, which is all that is
// kept, it lets everything pass; after that a flood would only be work for nothing. Its producer waits in its
// own writes.
type meter struct {
	total  int64
	began  time.Time // when all over maxStored would have begun, had it come at floodRate
	slowed bool
}

// take counts n bytes that came at a moment, and returns how long the next ones have to wait.
func (m *meter) take(n int, now time.Time) time.Duration {
	m.total += int64(n)
	over := m.total - maxStored
	if over <= 0 {
		return 0
	}
	owed := time.Duration(float64(over) / floodRate * float64(time.Second))
	if wait := m.began.Add(owed).Sub(now); wait > 0 && !m.began.IsZero() {
		m.slowed = true
		return wait
	}
	m.began = now.Add(-owed) // what was not used is not saved up
	return 0
}

// pump moves what a pipe delivers to where a call's output is collected while the call runs.
type pump struct {
	r     *os.File
	w     io.Writer // never fails
	meter meter
	quit  chan struct{} // closed by finish
	done  chan struct{}
	eof   bool
}

// startPump begins to read r, which must be in non-blocking mode.
func startPump(r *os.File, w io.Writer, wg *sync.WaitGroup) *pump {
	p := &pump{r: r, w: w, quit: make(chan struct{}), done: make(chan struct{})}
	wg.Go(func() {
		defer close(p.done)
		buf := takeBuffer()
		defer giveBuffer(buf)
		for {
			n, err := r.Read(buf[:])
			w.Write(buf[:n])
			if err != nil {
				p.eof = err == io.EOF
				return
			}
			p.wait(p.meter.take(n, time.Now()))
		}
	})
	return p
}

// wait keeps the producer from going on for a time, or until the call ends.
func (p *pump) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.quit:
	}
}

// finish takes what is in the pipe at this moment and stops. It reports whether all writers are gone.
func (p *pump) finish() bool {
	p.r.SetReadDeadline(time.Unix(1, 0))
	close(p.quit)
	<-p.done
	defer p.r.SetReadDeadline(time.Time{})
	if p.meter.slowed {
		defer fmt.Fprintf(p.w, "\n[output limit: after the first %d MiB, which are kept, the command was slowed "+
			"down to %d MiB of output per second; "+
			"write less, or to a file]\n", maxStored>>20, floodRate>>20)
	}
	if p.eof {
		return true
	}
	raw, err := p.r.SyscallConn()
	if err != nil {
		return true
	}
	raw.Control(func(fd uintptr) { p.eof = drain(int(fd), p.w) })
	return p.eof
}

// drain moves what is in a pipe at this moment, which must be in non-blocking mode, and reports whether nobody
// can write to it any more.
func drain(fd int, w io.Writer) (eof bool) {
	buf := takeBuffer()
	defer giveBuffer(buf)
	for n := 0; n < maxPipe; {
		got, err := syscall.Read(fd, buf[:])
		if err == syscall.EINTR {
			continue
		}
		if got <= 0 {
			return got == 0 && err == nil
		}
		w.Write(buf[:got])
		n += got
	}
	return false
}

// discard reads the pipe to its end, so that a process that outlived its call is not killed by writing. It
// closes the pipe.
func discard(r *os.File) {
	defer r.Close()
	buf := takeBuffer()
	defer giveBuffer(buf)
	var m meter
	for {
		n, err := r.Read(buf[:])
		if err != nil {
			return
		}
		time.Sleep(m.take(n, time.Now())) // some milliseconds at most
	}
}
