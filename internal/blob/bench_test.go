package blob

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkPut stores 2 KB blobs, each new, in a store that has most of its directories already after a while.
func BenchmarkPut(b *testing.B) {
	d, err := NewDir(filepath.Join(b.TempDir(), "blobs"))
	if err != nil {
		b.Fatal(err)
	}
	content := make([]byte, 2048)
	n := uint64(0)
	for b.Loop() {
		n++
		binary.LittleEndian.PutUint64(content, n)
		if _, err := d.Put(b.Context(), bytes.NewReader(content), 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSync is the floor of BenchmarkPut: one 4 KiB append made durable.
func BenchmarkSync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	content := make([]byte, 4096)
	for b.Loop() {
		if _, err := f.Write(content); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}
