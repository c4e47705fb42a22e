package bridge

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
)

// If this fails, a client with a wrong method is told that there is no such path, or is not told which method there is.
func TestOtherMethods(t *testing.T) {
	s := New(Config{})
	for _, c := range []struct {
		method, path, allow string
		status              int
	}{
		{"PUT", "/bridge/v1/sandbox", "POST", 405}, {"POST", "/bridge/v1/sandbox/boxa", "DELETE", 405}, {"PUT",
			"/bridge/v1/sandbox/boxa/exec", "POST", 405},
		{"POST", "/bridge/v1/sandbox/boxa/file/a/b", "GET, PUT", 405}, {"GET", "/bridge/v1/sandbox/boxa/tunnel/80",
			"DELETE, POST", 405},
		{"GET", "/bridge/v1/nowhere", "", 404}, {"GET", "/bridge/v1/sandbox/boxa/exec/more", "", 404}, // the controls
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		var e errorBody
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error == "" || e.Code == "" {
			t.Errorf("%s %s answers %s", c.method, c.path, w.Body)
		}
		if w.Code != c.status || w.Header().Get("Allow") != c.allow || c.status == 405 &&
			!strings.Contains(e.Error, strings.Split(c.allow, ", ")[0]) {
			t.Errorf("%s %s: %d %q %+v, want %d", c.method, c.path, w.Code, w.Header().Get("Allow"), e, c.status)
		}
	}
}
