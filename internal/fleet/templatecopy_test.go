package fleet

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// written is an archive of n links, made as it is read.
func written(t *testing.T, n int, header func(i int) tar.Header) io.Reader {
	t.Helper()
	r, w := io.Pipe()
	t.Cleanup(func() { r.Close() })
	go func() { // ends with the pipe
		tw := tar.NewWriter(w)
		for i := range n {
			h := header(i)
			h.Typeflag, h.Format = tar.TypeSymlink, tar.FormatPAX
			if err := tw.WriteHeader(&h); err != nil {
				w.CloseWithError(err)
				return
			}
		}
		w.CloseWithError(tw.Close())
	}()
	return r
}

// If this fails, an archive of a few megabytes, compressed, takes gigabytes of the server's memory, by what it
// says beside the names or by the names.
func TestCopySurveyMemory(t *testing.T) {
	padding := strings.Repeat("a", 1<<20-1000)
	c := &copying{step: outboard.TemplateStep{Source: "."}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	padded := written(t, 100, func(i int) tar.Header {
		return tar.Header{Name: fmt.Sprint("é", i), Linkname: "é", PAXRecords: map[string]string{"comment": padding}}
	})
	if err := c.survey(t.Context(), tar.NewReader(padded)); err != nil || len(c.entries) != 100 {
		t.Fatalf("%d entries, %v", len(c.entries), err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 20<<20 {
		t.Errorf("100 links hold %d MiB", grown>>20)
	}
	runtime.KeepAlive(c)

	long := strings.Repeat("b", maxCopyName)
	links := func(n int) io.Reader {
		return written(t, n, func(i int) tar.Header { return tar.Header{Name: fmt.Sprint(i), Linkname: long} })
	}
	if err := c.survey(t.Context(), tar.NewReader(links(maxCopyNames/(len(long)+8)))); err != nil {
		t.Errorf("names that fit: %v", err)
	}
	if err := c.survey(t.Context(),
		tar.NewReader(links(maxCopyNames/len(long)+1))); outboard.KindOf(err) != outboard.TooLarge {
		t.Errorf("names that do not fit: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.survey(ended, tar.NewReader(bytes.NewReader(nil))); err == nil {
		t.Error("a build that has ended goes on reading")
	}
}
