package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// copying runs box cp out of a box, whose file f breaks off in the middle and whose file whole does not.
func copying(t *testing.T, from, to string) (code int, errs string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/boxes", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"boxa","state":"running"}]}`)
	})
	mux.HandleFunc("GET /v1/boxes/boxa",
		func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"id":"boxa","state":"running"}`) })
	mux.HandleFunc("GET /v1/boxes/boxa/files/content", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "8")
		if r.URL.Query().Get("path") == "whole" {
			fmt.Fprint(w, "12345678")
			return
		}
		fmt.Fprint(w, "1234")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	var out, e bytes.Buffer
	vars := map[string]string{"OUTBOARD_URL": srv.URL, "OUTBOARD_API_KEY": "key", "OUTBOARD_DATA": t.TempDir()}
	code = run([]string{"box", "cp", "boxa:" + from, to}, strings.NewReader(""), &out, &e,
		func(name string) string { return vars[name] })
	return code, e.String()
}

// Broken if a copy out of a box that broke off is left as if it were one, or has taken the place of what was
// there before.
func TestCopiesAreWholeOrNot(t *testing.T) {
	for what, prepare := range map[string]func(t *testing.T, name string){
		"a new file": func(*testing.T, string) {},
		"a file of mode 0600": func(t *testing.T, name string) {
			if err := os.WriteFile(name, []byte("before"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a link": func(t *testing.T, name string) {
			if err := os.WriteFile(name+".target", []byte("before"), 0o640); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Base(name)+".target", name); err != nil {
				t.Skip(err) // a system where links take a right
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			to := filepath.Join(dir, "copy")
			prepare(t, to)
			look := func() string {
				var s strings.Builder
				entries, err := os.ReadDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					fi, err := e.Info()
					if err != nil {
						t.Fatal(err)
					}
					b, err := os.ReadFile(filepath.Join(dir, e.Name()))
					fmt.Fprintln(&s, e.Name(), fi.Mode(), string(b), err)
				}
				return s.String()
			}
			before := look()
			if code, errs := copying(t, "f", to); code == 0 || !strings.Contains(errs, "boxa") {
				t.Errorf("a copy that broke off: %d, %s", code, errs)
			}
			if after := look(); after != before {
				t.Errorf("it left\n%s, before there was\n%s", after, before)
			}
			code, errs := copying(t, "whole", to) // the control
			want := strings.ReplaceAll(before, "before", "12345678")
			if before == "" {
				probe, err := os.OpenFile(to+".probe", os.O_CREATE|os.O_WRONLY, 0o644)
				if err != nil {
					t.Fatal(err)
				}
				fi, err := probe.Stat()
				if err := errors.Join(err, probe.Close(), os.Remove(probe.Name())); err != nil {
					t.Fatal(err)
				}
				want = fmt.Sprintln("copy", fi.Mode(), "12345678 <nil>")
			}
			if after := look(); code != 0 || after != want {
				t.Errorf("the whole copy: %d, %s, there is\n%s, want\n%s", code, errs, after, want)
			}
		})
	}
}

// Broken if a copy to a pipe takes the pipe's place.
func TestCopyIntoAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	name := fmt.Sprintf("/proc/self/fd/%d", w.Fd())
	if _, err := os.Stat(name); err != nil {
		t.Skip("no names of open files here")
	}
	if code, errs := copying(t, "whole", name); code != 0 {
		t.Fatalf("%d, %s", code, errs)
	}
	b := make([]byte, 8)
	if _, err := io.ReadFull(r, b); err != nil || string(b) != "12345678" {
		t.Errorf("the pipe has %q, %v", b, err)
	}
}

// Broken if who runs a program in a box is not told that the memory limit ended it, or is told so of one that
// was killed.
func TestBoxExecMemoryLimit(t *testing.T) {
	for what, limit := range map[string]string{"hit": `,"memory_limit_bytes":134217728`, "not hit": ""} {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /v1/boxes", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"data":[{"id":"boxa","state":"running"}]}`)
		})
		mux.HandleFunc("GET /v1/boxes/boxa",
			func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"id":"boxa","state":"running"}`) })
		mux.HandleFunc("POST /v1/boxes/boxa/processes", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"type\":\"process.started\",\"pid\":7,\"cursor\":0}\n\ndata: "+
				"{\"type\":\"process.ended\",\"cursor\":0,\"signal\":\"killed\",\"signal_number\":9%s}\n\n", limit)
		})
		srv := httptest.NewServer(mux)
		var out, errs bytes.Buffer
		vars := map[string]string{"OUTBOARD_URL": srv.URL, "OUTBOARD_API_KEY": "key", "OUTBOARD_DATA": t.TempDir()}
		code := run([]string{"box", "exec", "boxa", "--", "big"}, strings.NewReader(""), &out, &errs,
			func(name string) string { return vars[name] })
		srv.Close()
		said := strings.Contains(errs.String(), "the box's memory limit of 128.0 MiB was hit")
		if code != 137 || !strings.Contains(errs.String(), "ended by a signal: killed") || said != (limit != "") {
			t.Errorf("%s: exit %d, said %q", what, code, errs.String())
		}
	}
}
