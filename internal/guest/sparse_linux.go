package guest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const (
	// minHole is the least hole that is left out of a file: less is not worth its place in the list.
	minHole = 64 << 10
	// minSparse is how much must be left out of a file for it to be written as one with holes.
	minSparse = 1 << 20
	// maxParts bounds the list of one file's parts, which a reader holds in memory: package tar takes 1 MiB.
	// More are joined by zeros.
	maxParts = 1 << 14
	// maxHoles bounds what one tar leaves out. Its reader goes through all of it, as zeros, at some gigabytes a second.
	maxHoles = 64 << 30
	// maxSave bounds a tar: it is what a checkpoint may hold. Whoever receives one has no way to end it before
	// its time, and a file of a terabyte takes a second to make.
	maxSave = 8 << 30
	// maxFile bounds one file that is read out of a tar, which can claim any size.
	maxFile = maxHoles + maxSave
)

// Sparse writes files with large holes to a tar without them. Package tar reads such entries but does not write
// them, so they go past its writer, in GNU tar's format 1.0 for pax archives, which every tar of today reads.
type Sparse struct {
	w    io.Writer
	tw   *tar.Writer
	left int64 // out
}

// NewSparse takes a tar's writer, and what that writes to.
func NewSparse(w io.Writer, tw *tar.Writer) *Sparse { return &Sparse{w: w, tw: tw} }

// part is a part of a file that is no hole.
type part struct{ from, to int64 }

// Pack writes a regular file whose header is h, with what it holds at this moment of the h.Size bytes: what is
// missing is zeros. It returns false, and has written nothing, where the file is to be written as any other:
// with few holes, or with more than one tar leaves out. All h.Size bytes go to sum as well, if it is not nil.
func (x *Sparse) Pack(h *tar.Header, f *os.File, sum io.Writer) (bool, error) {
	parts, held := dataParts(f, h.Size)
	if out := h.Size - held; out < minSparse || x.left+out > maxHoles {
		return false, nil
	}
	x.left += h.Size - held
	if err := x.tw.Flush(); err != nil {
		return true, err
	}
	list := fmt.Appendf(nil, "%d\n", len(parts)+1)
	for _, p := range parts {
		list = fmt.Appendf(list, "%d\n%d\n", p.from, p.to-p.from)
	}
	list = padded(fmt.Appendf(list, "%d\n0\n", h.Size)) // where a hole at the end ends
	if _, err := x.w.Write(append(sparseHeaders(h, int64(len(list))+held), list...)); err != nil {
		return true, err
	}
	out := x.w
	if sum != nil {
		out = io.MultiWriter(x.w, sum)
	}
	at := int64(0)
	for _, p := range append(parts, part{h.Size, h.Size}) {
		if sum != nil {
			if _, err := io.CopyN(sum, zeros{}, p.from-at); err != nil {
				return true, err
			}
		}
		r := io.MultiReader(io.NewSectionReader(f, p.from, p.to-p.from), zeros{})
		if _, err := io.CopyN(out, r, p.to-p.from); err != nil {
			return true, err
		}
		at = p.to
	}
	_, err := x.w.Write(make([]byte, -held&(tarBlock-1)))
	return true, err
}

// dataParts returns the parts of a file that are no large holes, and how many bytes they have.
func dataParts(f *os.File, size int64) (parts []part, held int64) {
	whole := []part{{0, size}}
	var st syscall.Stat_t
	fd := int(f.Fd())
	if size < minSparse || syscall.Fstat(fd, &st) != nil || st.Blocks*512 > size-minSparse {
		return whole, size
	}
	defer syscall.Seek(fd, 0, io.SeekStart)
	const seekData, seekHole = 3, 4
	for at := int64(0); at < size; {
		from, err := syscall.Seek(fd, at, seekData)
		if err == syscall.ENXIO || err == nil && from >= size {
			break // a hole to the end
		}
		to := int64(0)
		if err == nil {
			to, err = syscall.Seek(fd, from, seekHole)
		}
		if err != nil || to <= from {
			return whole, size // this file system does not tell
		}
		at = min(to, size)
		if n := len(parts); n > 0 && (from-parts[n-1].to < minHole || n == maxParts) {
			held += at - parts[n-1].to
			parts[n-1].to = at
			continue
		}
		held += at - from
		parts = append(parts, part{from, at})
	}
	return parts, held
}

const tarBlock = 512

func padded(b []byte) []byte { return append(b, make([]byte, -len(b)&(tarBlock-1))...) }

// sparseHeaders are the blocks before the content of a file with holes, of which size bytes follow.
func sparseHeaders(h *tar.Header, size int64) []byte {
	records := maps.Clone(h.PAXRecords)
	if records == nil {
		records = make(map[string]string)
	}
	records["size"], records["mtime"] = strconv.FormatInt(size, 10), paxTime(h)
	records["GNU.sparse.major"], records["GNU.sparse.minor"] = "1", "0"
	records["GNU.sparse.name"], records["GNU.sparse.realsize"] = h.Name, strconv.FormatInt(h.Size, 10)
	var b bytes.Buffer
	for _, k := range slices.Sorted(maps.Keys(records)) {
		rest := " " + k + "=" + records[k] + "\n"
		n := len(rest) + 1
		for n != len(rest)+len(strconv.Itoa(n)) {
			n++
		}
		b.WriteString(strconv.Itoa(n) + rest)
	}
	return slices.Concat(ustar(tar.TypeXHeader, 0o600, int64(b.Len())), padded(b.Bytes()),
		ustar(tar.TypeReg, h.Mode, size))
}

// paxTime is a modification time in seconds.
func paxTime(h *tar.Header) string {
	sec, nsec, sign := h.ModTime.Unix(), int64(h.ModTime.Nanosecond()), ""
	if sec < 0 && nsec > 0 {
		sec, nsec = sec+1, 1e9-nsec
		if sec == 0 {
			sign = "-"
		}
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%s%d.%09d", sign, sec, nsec), "0"), ".")
}

// ustar is a header block. Whatever matters is in the records before it as well, but for the mode.
func ustar(kind byte, mode, size int64) []byte {
	b := make([]byte, tarBlock)
	octal := func(at, n int, v int64) { copy(b[at:], fmt.Sprintf("%0*o", n-1, v)) }
	copy(b, "GNUSparseFile.0/file")
	octal(100, 8, mode)
	octal(108, 8, 0)
	octal(116, 8, 0)
	octal(124, 12, min(size, 1<<33-1))
	octal(136, 12, 0)
	copy(b[148:], "        ")
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00", sum))
	return b
}
