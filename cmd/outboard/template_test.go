package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/client"
)

// If this failed, a file that Docker's users wrote would build something else than they mean.
func TestParseRecipe(t *testing.T) {
	r, err := parseRecipe("# syntax=docker/dockerfile:1\nfrom python:3.12-slim\n\nENV A=1 B=\"two words\" " +
		"C='x'\nENV D rest of it\nENV PATH=$A:${B}/bin\nUSER root\n" +
		"RUN echo one && \\\n  # not this\n\n    echo two\nRUN [\"echo\", \"it's\"]\nCOPY --chown=user:user --chmod=0755 a ./b/* /opt/x/\nCOPY [\"a b\", \"/opt\"]\nWORKDIR /srv\nEXPOSE 80\nSTART node x.js\nREADY curl -f localhost\n")
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(r.steps)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"type":"env","env":{"A":"1","B":"two words","C":"x"}},{"type":"env","env":{"D":"rest of it"}},{"type":"env","env":{"PATH":"$A:${B}/bin"}},{"type":"user","user":"root"},` +
		`{"type":"run","command":"echo one \u0026\u0026     echo two"},{"type":"run","command":"'echo' 'it'\\''s'"},` +
		`{"type":"copy","user":"user:user","source":"a","target":"/opt/x/","mode":"0755"},{"type":"copy","user":"user:user","source":"b/*","target":"/opt/x/","mode":"0755"},` +
		`{"type":"copy","source":"a b","target":"/opt"},{"type":"workdir","path":"/srv"}]`
	if string(got) != want {
		t.Errorf("steps\n%s\nwant\n%s", got, want)
	}
	if r.image != "python:3.12-slim" || r.start != "node x.js" || r.ready != "curl -f localhost" ||
		len(r.ignored) != 1 {
		t.Errorf("%+v", r)
	}
	if r, err := parseRecipe("FROM template:web:v1"); err != nil || r.from != "web:v1" || r.image != "" {
		t.Errorf("from a template: %+v, %v", r, err)
	}
	for text, want := range map[string]string{
		"":                                 "no FROM",
		"RUN x":                            "begins with FROM",
		"FROM a\nFROM b":                   "second FROM",
		"FROM a AS b":                      "nothing else",
		"FROM --platform=x a":              "nothing else",
		"FROM a\nADD x y":                  "use COPY",
		"FROM a\nENTRYPOINT x":             "START",
		"FROM a\nFOO x":                    `"FOO" is no instruction`,
		"FROM a\nRUN":                      "needs something",
		"FROM a\nRUN --mount=type=cache x": "no options",
		"FROM a\nRUN cat <<EOF":            "here-documents",
		"FROM a\nCOPY --from=b x y":        "--chown",
		"FROM a\nCOPY x":                   "where to",
		"FROM a\nCOPY ../x y":              "leaves the directory",
		"FROM a\nCOPY x/../../y z":         "leaves the directory",
		"FROM a\nCOPY x y z":               "must be a directory",
		"FROM a\nCOPY $X y":                "replaced in ENV and RUN only",
		"FROM a\nWORKDIR $HOME/x":          "replaced in ENV and RUN only",
		"FROM a\nENV A":                    "NAME=VALUE",
		"FROM a\nENV A=1 B":                "not NAME=VALUE",
		"FROM a\nENV A='$B'":               "single quotes",
		"FROM a\nENV A=${B:-c}":            "any other use",
		"FROM a\nENV A=\"b":                "has no end",
		"FROM a\nSTART x\nSTART y":         "twice",
	} {
		if _, err := parseRecipe(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want ...%s...", text, err, want)
		}
	}
}

// If this failed, a build that nobody has begun yet would be told as one that is ready.
func TestFollowWaitingBuild(t *testing.T) {
	states := []string{"waiting", "waiting", "building", "ready"}
	var asked atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/templates/web/builds/b1/log", func(w http.ResponseWriter, r *http.Request) {
		n := int(asked.Add(1))
		state, data := states[min(n, len(states))-1], "[]"
		if n == 3 {
			data = `[{"message":"a line"}]`
		}
		fmt.Fprintf(w, `{"data":%s,"next_from":0,"state":%q}`, data, state)
	})
	mux.HandleFunc("GET /v1/templates/web/builds/b1", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"id":"b1","name":"web","state":%q,"tags":["default"]}`,
			states[min(int(asked.Load()), len(states))-1])
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	c, err := client.New(client.Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var out, errs bytes.Buffer
	a := &app{out: &out, errs: &errs, env: func(string) string { return "" }}
	if err := a.followBuild(t.Context(), &conn{Client: c}, "web", client.TemplateBuild{ID: "b1",
		State: "waiting"}); err != nil {
		t.Fatal(err)
	}
	if int(asked.Load()) != len(states) || out.String() != "a line\n" ||
		!strings.Contains(errs.String(), "waits to be begun") || !strings.Contains(errs.String(), "web:default ready") {
		t.Errorf("asked %d times, it says %q and %q", asked.Load(), out.String(), errs.String())
	}
}

// If this failed, a file with steps could end the program that reads it.
func FuzzParseRecipe(f *testing.F) {
	f.Add("FROM base\nRUN a \\\n b\nENV A=\"b c\" D='e'\nCOPY [\"a\",\"b\"]\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRecipe(text)
		if err != nil {
			return
		}
		for _, s := range r.steps {
			if s.line < 1 || s.line > strings.Count(text, "\n")+1 || s.Type == "" {
				t.Errorf("%+v of %q", s, text)
			}
		}
		parseIgnore(text)
	})
}

// If this failed, COPY would take what .dockerignore names, or other files than those it was told, or miss some;
// or the same files would be copied again with each build.
func TestPack(t *testing.T) {
	dir := t.TempDir()
	put := func(name, content string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a.js", "src/b.js", "src/c.py", "src/deep/d.js", "node_modules/x/y",
		"src/node_modules/z", "keep/secret.key", "keep/public.key"} {
		put(name, "content of "+name)
	}
	put(".dockerignore", "# none of these\n**/node_modules\nkeep/*\n!keep/public.key\n/.dockerignore\n")
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "src", "link")); err != nil {
		t.Fatal(err)
	}
	p, err := openContext(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for source, want := range map[string]string{
		".":        "a.js keep/ keep/public.key src/ src/b.js src/c.py src/deep/ src/deep/d.js src/link>/etc/passwd",
		"src":      "src/ src/b.js src/c.py src/deep/ src/deep/d.js src/link>/etc/passwd",
		"src/*.js": "src/b.js",
		"*.js":     "a.js",
		"s*":       "src/ src/b.js src/c.py src/deep/ src/deep/d.js src/link>/etc/passwd",
		"a.js":     "a.js",
	} {
		names, err := p.names(source)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		var first, second bytes.Buffer
		for _, w := range []io.Writer{&first, &second} {
			if err := p.pack(w, names); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(filepath.Join(dir, "a.js"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Errorf("%s: the same files are another archive", source)
		}
		if got := unpacked(t, &first); got != want {
			t.Errorf("%s takes %s\nwant %s", source, got, want)
		}
	}
	for _, source := range []string{"absent", "node_modules", "*.none", "keep/secret.key"} {
		if names, err := p.names(source); err == nil {
			t.Errorf("%s takes %v", source, names)
		}
	}
}

func unpacked(t *testing.T, r io.Reader) string {
	t.Helper()
	zr, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return strings.Join(names, " ")
		}
		if err != nil {
			t.Fatal(err)
		}
		name := h.Name
		if h.Linkname != "" {
			name += ">" + h.Linkname
		}
		if h.Typeflag == tar.TypeReg {
			if b, err := io.ReadAll(tr); err != nil || string(b) != "content of "+name {
				t.Errorf("%s: %q, %v", name, b, err)
			}
		}
		names = append(names, name)
	}
}
