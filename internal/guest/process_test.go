//go:build linux

package guest

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
)

// A broken decoder lets a guest crash its host, hold its memory, or show events in an order that nobody expects.
func FuzzProcessEvents(f *testing.F) {
	good := appendRecord(nil, Started, 0, []byte("12"))
	good = appendRecord(good, Stdout, 5, []byte("hello"))
	good = appendRecord(good, Lost, 9, nil)
	f.Add(good, 3)
	f.Add(appendRecord(nil, Stdout, 5, []byte("before the start")), 1)
	f.Add(appendRecord(appendRecord(nil, Started, 7, []byte("1")), Stderr, 3, []byte("back")), 100)
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, 2)
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		cut = max(0, min(cut, len(data)))
		seen, at := 0, int64(0)
		w := &eventWriter{f: func(e ProcessEvent) error {
			if (e.Kind == Started) != (seen == 0) || e.Cursor < at || e.Kind > Lost || len(e.Data) > maxPiece ||
				e.Kind == Started && e.Pid <= 0 {
				t.Fatalf("event %d: %+v after %d", seen, e, at)
			}
			seen, at = seen+1, e.Cursor
			return nil
		}}
		var err error
		for _, part := range [][]byte{data[:cut], data[cut:]} {
			if _, err = w.Write(part); err != nil {
				break
			}
		}
		if err != nil && !errors.Is(err, errFrame) {
			t.Fatalf("refused with %v", err)
		}
		if len(w.rest) > len(data) || err == nil && len(w.rest) > recordHead+maxPiece {
			t.Fatalf("%d bytes held back", len(w.rest))
		}
	})
}

// A broken decoder of changes, or of what the kernel says about them, ends the host or the guest.
func FuzzChanges(f *testing.F) {
	f.Add([]byte(`{"name":"YQ==","op":"create"}`+"\n"), 4)
	f.Add(bytes.Repeat([]byte("x"), maxChange+1), 1)
	f.Add(append([]byte{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0},
		"name\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...), 0)
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		cut = max(0, min(cut, len(data)))
		w := &changeWriter{f: func(Change) error { return nil }}
		_, err := w.Write(data[:cut])
		if err == nil {
			_, err = w.Write(data[cut:])
		}
		if err != nil && !errors.Is(err, errFrame) {
			t.Fatalf("refused with %v", err)
		}
		for b := data; len(b) > 0; {
			e, rest := parseInotify(b)
			if e.wd == 0 {
				break
			}
			if len(e.name) > len(b) || len(rest) > len(b)-syscall.SizeofInotifyEvent {
				t.Fatalf("event %+v of %d bytes leaves %d", e, len(b), len(rest))
			}
			b = rest
		}
	})
}
