package guest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// Limits of the file tools.
const (
	// maxRead is the executor's of the reference wire: what one read returns.
	maxRead = 256 << 10
	// maxEdit bounds a file that edit loads as a whole.
	maxEdit = 8 << 20
	// maxBinaryLook is how far a file is looked at for what shows that it is no text.
	maxBinaryLook = 8000
)

// files are the file tools in one call. A call that was judged names the canonical path that was judged: where a
// link lies on it by now, something else would be opened, and nothing is. Its searches answer in a form that
// tells paths from text, for the host to judge each.
type files struct {
	*server
	judged bool
}

// opts are those of a walk to a path that the call names.
func (f files) opts() int {
	if f.judged {
		return noLinks
	}
	return 0
}

// errMoved is a path on which a link lies that was none when the path was judged.
var errMoved = errors.New("something put a link on this path while the call was under way, and nothing was done; " +
	"make the call again")

// plain is plain for a path that the call names.
func (f files) plain(err error) string {
	if f.judged && errors.Is(err, syscall.ELOOP) {
		return errMoved.Error()
	}
	return plain(err)
}

// fileTool runs one of the file tools with the tool's identity.
func (s *server) fileTool(ctx context.Context, durable <-chan struct{}, c Start, k *sink) outcome {
	var in struct {
		Judged bool `json:"judged"`
	}
	if err := json.Unmarshal(c.Input, &in); err != nil {
		return refused(k, "%s: unreadable input: %s", c.Op, err)
	}
	f := files{s, in.Judged}
	tools := map[string]func(context.Context, json.RawMessage, io.Writer) error{
		"read": f.read, "write": f.write, "edit": f.edit, "glob": f.glob, "grep": f.grep,
	}
	tool, ok := tools[c.Op]
	if !ok {
		return refused(k, "unknown operation %q", c.Op)
	}
	<-durable
	ctx, cancel, limit := lifetime(ctx, c, 0)
	defer cancel()
	// the sink may have to make a file where the tool's identity may not; every tool bounds what it says
	var answer bytes.Buffer
	err := s.asTool(func() error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return tool(ctx, c.Input, &answer)
	})
	k.Write(answer.Bytes())
	switch {
	case err == nil:
		return outcome{Cause: causeExited}
	case ctx.Err() != nil:
		o := ended(ctx)
		if o.Cause == causeTimeout {
			fmt.Fprintf(k, "\n[timed out after %s]\n", limit)
		}
		return o
	}
	return refused(k, "%s: %s", c.Op, plain(err))
}

// plain says what went wrong without the guest's own words around it.
func plain(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	switch {
	case errors.Is(err, syscall.ELOOP):
		return "is a symbolic link that leads nowhere"
	case errors.Is(err, syscall.ENXIO):
		return errNotRegular.Error()
	case full(err):
		return "no space is left on the sandbox's disk: remove files from it, or have disk_bytes of its " +
			"environment, which may limit it, raised"
	}
	return err.Error()
}

// unpack decodes a tool's input and checks that its path is there.
func unpack(input json.RawMessage, v any, file *string) error {
	if err := json.Unmarshal(input, v); err != nil {
		return fmt.Errorf("unreadable input: %w", err)
	}
	if file != nil && *file == "" {
		return errors.New("file_path is required")
	}
	return nil
}

// open opens a regular file for reading.
func (s *server) open(p string) (*os.File, int64, error) { return s.openWith(p, 0) }

// openWith is open with options for the walk there.
func (s *server) openWith(p string, opts int) (*os.File, int64, error) {
	at, err := s.resolve(p, opts)
	if err != nil {
		return nil, 0, err
	}
	defer at.close()
	f, st, err := openRegular(at.dir, at.name)
	if err == nil {
		return f, st.Size, nil
	}
	var kind syscall.Stat_t
	if errors.Is(err, errNotRegular) && fstatat(at.dir, at.name, &kind) == nil &&
		kind.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		err = errIsDir
	}
	return nil, 0, err
}

// read writes the numbered lines of a file, or of a range of it; of a picture or a PDF it says what it is (MediaLine).
func (f files) read(_ context.Context, input json.RawMessage, w io.Writer) error {
	var in struct {
		FilePath  string  `json:"file_path"`
		ViewRange []int64 `json:"view_range"`
	}
	if err := unpack(input, &in, &in.FilePath); err != nil {
		return err
	}
	first, last := int64(1), int64(0)
	switch len(in.ViewRange) {
	case 0:
	case 2:
		first, last = in.ViewRange[0], in.ViewRange[1]
	default:
		return errors.New("view_range must be [start_line, end_line]")
	}
	file, size, err := f.openWith(in.FilePath, f.opts())
	if err != nil {
		return fmt.Errorf("%s: %s", in.FilePath, f.plain(err))
	}
	defer file.Close()
	head := readSection(file, 0, maxBinaryLook)
	switch media := MediaType(head); {
	case media != "":
		err = describe(file, media, size, w)
	case bytes.IndexByte(head, 0) >= 0:
		err = errBinary
	case len(head) == 0:
		_, err = io.WriteString(w, "(the file is empty)")
	default:
		var b []byte
		b, err = numbered(file, first, last, size)
		w.Write(b)
	}
	if err != nil {
		return fmt.Errorf("%s: %s", in.FilePath, plain(err))
	}
	return nil
}

// errBinary is a file that is neither text nor something that a model can look at.
var errBinary = errors.New("is not text: it has NUL bytes. Look at it with a command, such as file, strings or xxd; " +
	"text in UTF-16 is " +
	"converted with iconv")

// describe writes the line by which the host finds the content of a file that is no text, and knows that it is
// what was read here.
func describe(f *os.File, media string, size int64, w io.Writer) error {
	if size > MaxMedia {
		return fmt.Errorf("is a %s of %d bytes, and a model takes at most %d: make a smaller copy of it", media, size,
			MaxMedia)
	}
	hash := sha256.New()
	n, err := io.Copy(hash, io.LimitReader(f, MaxMedia+1))
	if err == nil {
		_, err = w.Write(MediaLine(media, n, hash.Sum(nil)))
	}
	return err
}

// numbered returns lines first to last (from 1; last below 1 means the end) with their numbers, without the line
// feed of the last one of a range. Memory stays bounded however long the file's lines are.
func numbered(r io.Reader, first, last, size int64) ([]byte, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	var out []byte
	begun, taken := false, 0 // the line at hand; bytes of the file in out
	for n := int64(1); last < 1 || n <= last; {
		part, err := br.ReadSlice('\n')
		if n >= first && len(part) > 0 {
			if !begun {
				out = fmt.Appendf(out, "%6d\t", n)
			}
			out = append(out, part...)
			if taken += len(part); taken > maxRead {
				return nil, tooMuch(first, last, n, size)
			}
			if bytes.IndexByte(part, 0) >= 0 {
				return nil, errBinary
			}
		}
		begun = begun || len(part) > 0
		switch {
		case err == io.EOF:
			if !begun {
				n--
			}
			if n < first {
				return nil, fmt.Errorf("has %d lines; view_range begins at line %d", n, first)
			}
			return out, nil
		case err == nil:
			n, begun = n+1, false
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
	return bytes.TrimSuffix(out, []byte("\n")), nil
}

func tooMuch(first, last, n, size int64) error {
	if last < 1 {
		return fmt.Errorf("%d bytes are more than the %d that one read returns; use view_range, e.g. [1, 500]", size,
			maxRead)
	}
	return fmt.Errorf("lines %d to %d are more than the %d bytes that one read returns; use a smaller view_range",
		first, n, maxRead)
}

// write replaces or makes a file.
func (f files) write(_ context.Context, input json.RawMessage, w io.Writer) error {
	var in struct {
		FilePath string  `json:"file_path"`
		Content  *string `json:"content"`
	}
	if err := unpack(input, &in, &in.FilePath); err != nil {
		return err
	}
	if in.Content == nil {
		return errors.New("content is required")
	}
	if strings.HasSuffix(in.FilePath, "/") {
		return fmt.Errorf("%s: names a directory", in.FilePath)
	}
	if err := f.replace(in.FilePath, strings.NewReader(*in.Content)); err != nil {
		return fmt.Errorf("%s: %s", in.FilePath, f.plain(err))
	}
	fmt.Fprintf(w, "wrote %d bytes to %s", len(*in.Content), in.FilePath)
	return nil
}

// edit replaces one string by another.
func (f files) edit(_ context.Context, input json.RawMessage, w io.Writer) error {
	var in struct {
		FilePath   string `json:"file_path"`
		OldString  string `json:"old_string"`
		NewString  string `json:"new_string"`
		ReplaceAll bool   `json:"replace_all"`
	}
	if err := unpack(input, &in, &in.FilePath); err != nil {
		return err
	}
	switch {
	case in.OldString == "":
		return errors.New("old_string is required")
	case in.OldString == in.NewString:
		return errors.New("old_string and new_string are the same")
	}
	file, size, err := f.openWith(in.FilePath, f.opts())
	if err != nil {
		return fmt.Errorf("%s: %s", in.FilePath, f.plain(err))
	}
	b, whole, err := readAll(file, maxEdit)
	file.Close()
	if err == nil && !whole {
		err = fmt.Errorf("%d bytes are more than the %d that edit takes", size, maxEdit)
	}
	if err != nil {
		return fmt.Errorf("%s: %s", in.FilePath, plain(err))
	}
	text := string(b)
	n := strings.Count(text, in.OldString)
	switch {
	case n == 0 && strings.Contains(text, strings.ReplaceAll(in.OldString, "\n", "\r\n")):
		return fmt.Errorf("%s: old_string was not found, but is there with \\r\\n at the end of its lines, as this "+
			"file has them", in.FilePath)
	case n == 0:
		return fmt.Errorf("%s: old_string was not found", in.FilePath)
	case n > 1 && !in.ReplaceAll:
		return fmt.Errorf("%s: old_string occurs %d times; make it unique or set replace_all", in.FilePath, n)
	}
	if grown := len(text) + n*(len(in.NewString)-len(in.OldString)); grown > 4*maxEdit {
		return fmt.Errorf("%s: the result would have %d bytes; at most %d", in.FilePath, grown, 4*maxEdit)
	}
	if err := f.replace(in.FilePath,
		strings.NewReader(strings.ReplaceAll(text, in.OldString, in.NewString))); err != nil {
		return fmt.Errorf("%s: %s", in.FilePath, f.plain(err))
	}
	fmt.Fprintf(w, "edited %s (%d replacements)", in.FilePath, n)
	return nil
}

// replace makes a file's content appear at once, keeping the mode of the one that was there. Where the directory
// forbids a second name, it writes into the file.
func (f files) replace(p string, r io.Reader) error {
	at, err := f.resolve(p, makeParents|f.opts())
	if err != nil {
		return err
	}
	defer at.close()
	mode := uint32(0o644)
	var st syscall.Stat_t
	switch err := fstatat(at.dir, at.name, &st); {
	case err == syscall.ENOENT:
	case err != nil:
		return err
	case st.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		return errIsDir
	case st.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return errNotRegular
	default:
		mode = st.Mode & 0o777
		if err := writable(at); err != nil { // a rename would go around the file's own mode
			return err
		}
	}
	file, err := at.create(mode)
	if errors.Is(err, syscall.EACCES) && st.Ino != 0 {
		return at.overwrite(r)
	}
	if err != nil {
		return err
	}
	return at.commit(file, r, nil)
}

// writable reports whether the file at a place may be written.
func writable(at place) error {
	fd, err := openAt(at.dir, at.name, syscall.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

// create makes a temporary file beside a place.
func (p place) create(mode uint32) (*os.File, error) {
	for n := range 100 {
		name := fmt.Sprintf(".outboard-%d-%d", os.Getpid(), n)
		fd, err := openAt(p.dir, name, syscall.O_RDWR|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW, 0o600)
		if err == syscall.EEXIST {
			continue
		}
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(fd), name)
		if err := syscall.Fchmod(fd, mode); err != nil {
			return nil, errors.Join(err, f.Close(), unlinkAt(p.dir, name, 0))
		}
		return f, nil
	}
	return nil, errors.New("no name for a temporary file is free")
}

// commit fills a temporary file and gives it the place's name; last runs between the two. A file that is mounted
// there cannot lose its place, and is written into.
func (p place) commit(f *os.File, r io.Reader, last func(fd int) error) error {
	_, err := io.Copy(struct{ io.Writer }{f}, r)
	if err == nil && last != nil {
		err = last(int(f.Fd()))
	}
	if err == nil {
		if err = syscall.Renameat(p.dir, path.Base(f.Name()), p.dir, p.name); err == nil {
			return f.Close()
		}
	}
	if err == syscall.EBUSY {
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			err = p.overwrite(f)
		}
	}
	unlinkAt(p.dir, path.Base(f.Name()), 0)
	return errors.Join(err, f.Close())
}

// overwrite writes into an existing regular file.
func (p place) overwrite(r io.Reader) error {
	fd, err := openAt(p.dir, p.name, syscall.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), p.name)
	err = syscall.Ftruncate(fd, 0)
	if err == nil {
		_, err = io.Copy(struct{ io.Writer }{f}, r)
	}
	return errors.Join(err, f.Close())
}
