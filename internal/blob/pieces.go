package blob

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/outboard-dev/outboard"
)

// Content of more than smallBlob is stored in pieces, each a blob under its own digest, and a list of them under
// the digest of the whole. The content itself says where a piece ends, so that what was changed or inserted
// changes the pieces around it and no others: two states of a large file cost one file and what differs
// (docs/design/0053).
//
// The list is stored after its pieces, so a list that is there names pieces that are. A Put stores, or finds,
// every piece whether or not the list exists: Prune goes by when a piece was last put.
const (
	// minPiece and maxPiece bound a piece. Those of random content have some 768 KiB: 8 GiB, the largest
	// checkpoint, are some 11,000.
	minPiece = 256 << 10
	maxPiece = 2 << 20
	// pieceBits is how many bits of the rolling hash are zero where a piece ends: once in 512 KiB. They are high
	// ones, which depend on the last 64 bytes.
	pieceBits = 19
	pieceMask = (1<<pieceBits - 1) << (64 - pieceBits)
	// pieceWorkers is how many pieces of one blob are written or read at a time: they wait for the disk or the
	// service, not for each other.
	pieceWorkers = 4

	// piecesSuffix ends the name of a list. Its first line is piecesMagic, each further one a digest and a size.
	piecesSuffix = ".pieces"
	piecesMagic  = "outboard pieces 1"
	// maxPieceList bounds a list that is read: 64 GiB of the smallest pieces.
	maxPieceList = 32 << 20
)

// gear has a random number for each byte. It must never change: the same content would be cut elsewhere, and be
// stored twice.
var gear = func() (t [256]uint64) {
	for i := range t {
		sum := sha256.Sum256([]byte("outboard piece " + strconv.Itoa(i)))
		t[i] = binary.BigEndian.Uint64(sum[:])
	}
	return t
}()

// cut returns where the first piece of b ends. b is all that is left, or at least maxPiece bytes of it.
func cut(b []byte) int {
	if len(b) <= minPiece {
		return len(b)
	}
	b = b[:min(len(b), maxPiece)]
	var h uint64
	for _, c := range b[minPiece-64 : minPiece] {
		h = h<<1 + gear[c]
	}
	for i, c := range b[minPiece:] {
		if h&pieceMask == 0 {
			return minPiece + i
		}
		h = h<<1 + gear[c]
	}
	return len(b)
}

// opener opens a piece.
type opener func(context.Context, outboard.BlobRef) (io.ReadCloser, error)

// pieceWriter stores pieces side by side. The first error stays.
type pieceWriter struct {
	put   func(outboard.BlobRef, []byte) error
	slots chan struct{} // capacity pieceWorkers
	wg    sync.WaitGroup

	mu   sync.Mutex
	list []outboard.BlobRef
	err  error
}

// putPieces cuts what r yields and stores the pieces with put, which is called by several goroutines. It returns
// them in order.
func putPieces(r io.Reader, put func(outboard.BlobRef, []byte) error) ([]outboard.BlobRef, error) {
	w := &pieceWriter{put: put, slots: make(chan struct{}, pieceWorkers)}
	err := w.read(bufio.NewReaderSize(r, 2*maxPiece))
	w.wg.Wait()
	if w.err != nil {
		return nil, w.err
	}
	return w.list, err
}

func (w *pieceWriter) read(in *bufio.Reader) error {
	for {
		b, err := in.Peek(maxPiece)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(b) == 0 {
			return nil
		}
		n := cut(b)
		if err := w.store(bytes.Clone(b[:n])); err != nil {
			return err
		}
		if _, err := in.Discard(n); err != nil {
			return err
		}
	}
}

// store begins to store a piece once a worker is free. It returns what went wrong with those before.
func (w *pieceWriter) store(content []byte) error {
	w.slots <- struct{}{}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		<-w.slots
		return w.err
	}
	i := len(w.list)
	w.list = append(w.list, outboard.BlobRef{})
	w.wg.Go(func() {
		defer func() { <-w.slots }()
		sum := sha256.Sum256(content)
		ref := outboard.BlobRef{Digest: hex.EncodeToString(sum[:]), Size: int64(len(content))}
		err := w.put(ref, content)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.list[i] = ref
		if w.err == nil {
			w.err = err
		}
	})
	return nil
}

// pieceList encodes a list.
func pieceList(list []outboard.BlobRef) []byte {
	var b bytes.Buffer
	b.WriteString(piecesMagic + "\n")
	for _, p := range list {
		fmt.Fprintf(&b, "%s %d\n", p.Digest, p.Size)
	}
	return b.Bytes()
}

// readPieceList decodes the list of a blob, whose name is for errors.
func readPieceList(r io.Reader, name string) ([]outboard.BlobRef, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPieceList+1))
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "blob store: reading %s: %w", name, err)
	}
	damaged := func(how string) error {
		return outboard.Errorf(outboard.Internal, "blob store: %s is %w: %s", name, ErrDamaged, how)
	}
	lines := strings.Split(string(data), "\n")
	last := len(lines) - 1
	if lines[0] != piecesMagic || lines[last] != "" || len(data) > maxPieceList {
		return nil, damaged("it is not a list of pieces")
	}
	list := make([]outboard.BlobRef, 0, last-1)
	for _, line := range lines[1:last] {
		digest, size, _ := strings.Cut(line, " ")
		n, err := strconv.ParseInt(size, 10, 64)
		ref := outboard.BlobRef{Digest: digest, Size: n}
		if err != nil || !validRef(ref) || n > maxPiece {
			return nil, damaged(fmt.Sprintf("line %.80q names no piece", line))
		}
		list = append(list, ref)
	}
	return list, nil
}

// pieceReader reads pieces one after the other, and some ahead.
type pieceReader struct {
	name  string // for errors
	next  chan chan pieceRead
	stop  context.CancelFunc
	wg    sync.WaitGroup
	piece []byte // what is left of the one that is read
	err   error
}

// pieceRead is the content of a piece, or why it cannot be read.
type pieceRead struct {
	content []byte
	err     error
}

// openPieces reads a blob of pieces, each with open, until ctx ends.
func openPieces(ctx context.Context, name string, list []outboard.BlobRef, open opener) *pieceReader {
	ctx, stop := context.WithCancel(ctx)
	p := &pieceReader{name: name, next: make(chan chan pieceRead, pieceWorkers-1), stop: stop}
	p.wg.Go(func() {
		defer close(p.next)
		for _, ref := range list {
			got := make(chan pieceRead, 1)
			select {
			case p.next <- got:
			case <-ctx.Done():
				return
			}
			p.wg.Go(func() {
				content, err := readPiece(ctx, ref, open)
				got <- pieceRead{content, err}
			})
		}
	})
	return p
}

func readPiece(ctx context.Context, ref outboard.BlobRef, open opener) ([]byte, error) {
	r, err := open(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// Read implements io.Reader.
func (p *pieceReader) Read(b []byte) (int, error) {
	for len(p.piece) == 0 && p.err == nil {
		got, more := <-p.next
		if !more {
			p.err = io.EOF
			break
		}
		read := <-got
		p.piece, p.err = read.content, read.err
		if outboard.KindOf(p.err) == outboard.NotFound {
			const format = "blob store: %s is %w: a piece of it is missing: %v"
			p.err = outboard.Errorf(outboard.Internal, format, p.name, ErrDamaged, p.err)
		}
	}
	if p.err != nil {
		return 0, p.err
	}
	n := copy(b, p.piece)
	p.piece = p.piece[n:]
	return n, nil
}

// Close implements io.Closer.
func (p *pieceReader) Close() error {
	p.stop()
	if p.err == nil {
		p.err = errors.New("closed")
	}
	p.wg.Wait()
	return nil
}
