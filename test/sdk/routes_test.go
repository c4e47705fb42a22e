package sdk

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// Fails if an operation of the wire is not known here at all: what is not built answers 501, so that a client can tell it from an address
// that it got wrong.
func TestEveryOperationIsKnown(t *testing.T) {
	url, key := serve(t)
	for _, module := range []string{"github.com/anthropics/anthropic-sdk-go", "github.com/anthropics/anthropic-sdk-go/v2"} {
		known := 0
		for template, methods := range loadSpec(t, module).paths {
			path, _, _ := strings.Cut(template, "?")
			path = placeholder.ReplaceAllString(path, "none_01")
			operations, _ := methods.(map[string]any)
			for method := range operations {
				if !strings.Contains("get post delete put patch", method) {
					continue // parameters and the like
				}
				if answer := ask(t, url, key, strings.ToUpper(method), path); answer != "" {
					t.Errorf("%s: %s %s: %s", module, method, path, answer)
				}
				known++
			}
		}
		if known < 100 {
			t.Errorf("%s: only %d operations were asked for", module, known)
		}
	}
	for method, path := range map[string]string{"GET": "/v1/nothing", "DELETE": "/v1/agents/none_01"} { // the test can tell
		if ask(t, url, key, method, path) == "" {
			t.Errorf("%s %s seems to be an operation", method, path)
		}
	}
}

// ask says how the server answers an operation that it does not know, "" for one that it does.
func ask(t *testing.T, url, key, method, path string) string {
	t.Helper()
	body := io.Reader(http.NoBody)
	if method != http.MethodGet && method != http.MethodDelete {
		body = strings.NewReader("{}")
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode == http.StatusMethodNotAllowed || strings.Contains(string(b), "there is nothing at") {
		return resp.Status + " " + string(b)
	}
	return ""
}
