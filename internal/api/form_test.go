package api

import (
	"bytes"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/store"
)

// FuzzForm uploads what may come as a form with a file. If this fails, one crashes the server, is told as the
// server's own fault, or makes a file that is not shown as it was stored.
func FuzzForm(f *testing.F) {
	dir := f.TempDir()
	st, err := store.Open(f.Context(), store.Config{Path: filepath.Join(dir, "outboard.db")})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { st.Close() })
	bl, err := blob.NewDir(filepath.Join(dir, "blob"))
	if err != nil {
		f.Fatal(err)
	}
	s := &server{ctl: control.New(control.Config{Store: st, Blob: bl})}
	by := outboard.Caller{Key: "apikey_01test", Name: "test", Role: "admin"}
	const kind = "multipart/form-data; boundary=b"
	file := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"one.txt\"\r\nContent-Type: " +
		"text/plain\r\n\r\n0123456789\r\n"
	expires := "--b\r\nContent-Disposition: form-data; name=\"expires_in_seconds\"\r\n\r\n3600\r\n"
	f.Add(kind, []byte(file+expires+"--b--\r\n"))
	f.Add(kind, []byte(expires+file+"--b--"))
	f.Add(kind, []byte(file+file+"--b--"))
	f.Add(kind, []byte(expires+"--b--"))
	f.Add(kind, []byte(file[:len(file)-8]))
	f.Add(kind, []byte("--b\r\nContent-Disposition: form-data; name=\"file\"; "+
		"filename*=UTF-8''a%2f..%2fb%00\r\nContent-Type: text/html; charset=\"\r\n\r\nx\r\n--b--"))
	f.Add("multipart/form-data", []byte(file))
	f.Add("application/json", []byte("{}"))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		r := httptest.NewRequest("POST", "/v1/files", bytes.NewReader(body))
		r.Header.Set("Content-Type", kind)
		v, err := s.uploadFile(&request{Request: r, w: httptest.NewRecorder(), by: by})
		if err != nil {
			if kind := outboard.KindOf(err); kind != outboard.Invalid && kind != outboard.TooLarge {
				t.Errorf("%s: %v", kind, err)
			}
			return
		}
		shown := v.(fileOut)
		got, err := s.ctl.File(t.Context(), by, outboard.FileID(shown.ID))
		if err != nil || got.Filename != shown.Filename || got.Blob.Size != shown.Size || got.Filename == "" {
			t.Errorf("%+v is stored as %+v, %v", shown, got, err)
		}
		if err := s.ctl.DeleteFile(t.Context(), by, outboard.FileID(shown.ID)); err != nil {
			t.Error(err)
		}
	})
}
