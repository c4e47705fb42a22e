package e2b

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/control"
)

// taker is a machine that takes files and keeps their names.
type taker struct {
	control.Sandbox
	names []string
}

// WriteFile reads a file to its end.
func (m *taker) WriteFile(_ context.Context, f control.FileRef, _ map[string]string,
	r io.Reader) (control.Entry, error) {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return control.Entry{}, err
	}
	m.names = append(m.names, string(f.Path))
	return control.Entry{Path: f.Path}, nil
}

// FuzzForm uploads what may come as a body of files. If this fails, one crashes the server, is answered with
// success that lists other files than were written, or writes one without a name.
func FuzzForm(f *testing.F) {
	const kind = "multipart/form-data; boundary=b"
	form := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"d/e/one.txt\"\r\n\r\n0123456789\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename*=UTF-8''%e2%82%ac.txt\r\nContent-Type: text/plain\r\n\r\n\r\n--b--\r\n"
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := io.WriteString(w, form)
	if err := errors.Join(err, w.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(kind, "", "", []byte(form))
	f.Add(kind, "to", "", []byte(form))
	f.Add(kind, "", "gzip", zipped.Bytes())
	f.Add(kind, "", "gzip", zipped.Bytes()[:zipped.Len()-12])
	f.Add(kind, "", "", []byte("--b\r\nContent-Disposition: form-data; "+
		"name=\"other\"\r\n\r\nx\r\n--b\r\nContent-Disposition: form-data; name=file\r\n\r\nx\r\n--b--"))
	f.Add("multipart/form-data", "", "", []byte(form))
	f.Add("multipart/form-data; boundary=\"\"", "", "", []byte("--\r\n\r\n\r\n----\r\n"))
	f.Add("application/octet-stream", "a/../b", "", []byte("content"))
	f.Add("application/octet-stream", "f", "br", []byte("content"))
	f.Fuzz(func(t *testing.T, kind, to, encoding string, body []byte) {
		m := &taker{}
		r := httptest.NewRequest("POST", "/files", bytes.NewReader(body))
		r.URL.RawQuery = "path=" + strings.ReplaceAll(to, "&", "%26")
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Content-Encoding", encoding)
		answer := httptest.NewRecorder()
		(&visit{Request: r, w: answer, s: &Server{ctl: &control.Control{}, unzipped: 1 << 20}, m: m}).writeFiles()
		for _, name := range m.names {
			if name == "" {
				t.Error("a file without a name is written")
			}
		}
		if answer.Code != 200 {
			if answer.Code < 400 || answer.Code == 500 {
				t.Errorf("%d %s", answer.Code, answer.Body)
			}
			return
		}
		var out []writtenOut
		if err := json.Unmarshal(answer.Body.Bytes(), &out); err != nil || len(out) != len(m.names) || len(out) == 0 {
			t.Fatalf("%d written, answered with %s, %v", len(m.names), answer.Body, err)
		}
		for i, o := range out {
			if o.Name != path.Base(strings.ToValidUTF8(m.names[i], "\ufffd")) &&
				strings.ToValidUTF8(m.names[i], "") == m.names[i] {
				t.Errorf("%q is shown as %q", m.names[i], o.Name)
			}
		}
	})
}
