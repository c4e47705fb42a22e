package sdk

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// Fails if an operation of the wire is not known here at all: what is not built answers 501, so that a client
// can tell it from an address that it got wrong.
func TestEveryOperationIsKnown(t *testing.T) {
	url, key := serve(t)
	for _, module := range []string{"github.com/anthropics/anthropic-sdk-go",
		"github.com/anthropics/anthropic-sdk-go/v2"} {
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
	// the test can tell
	for method, path := range map[string]string{"GET": "/v1/nothing", "DELETE": "/v1/agents/none_01"} {
		if ask(t, url, key, method, path) == "" {
			t.Errorf("%s %s seems to be an operation", method, path)
		}
	}
}

// ask says how the server answers an operation that it does not know, "" for one that it does.
func ask(t *testing.T, url, key, method, path string) string {
	t.Helper()
	answer := send(t, url, key, method, path)
	if strings.HasPrefix(answer, "405 ") || strings.Contains(answer, "there is nothing at") {
		return answer
	}
	return ""
}

// send makes a request and returns the status and the body of its answer.
func send(t *testing.T, url, key, method, path string) string {
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
	return resp.Status + " " + string(b)
}

// Fails if a query parameter that an official client may send is refused as unknown, or one that none sends is not.
func TestEveryQueryParameterIsKnown(t *testing.T) {
	base, key := serve(t)
	for _, module := range []string{"github.com/anthropics/anthropic-sdk-go",
		"github.com/anthropics/anthropic-sdk-go/v2"} {
		doc, known := loadSpec(t, module), 0
		for template, methods := range doc.paths {
			path, _, _ := strings.Cut(template, "?")
			path = placeholder.ReplaceAllString(path, "none_01")
			operations, _ := methods.(map[string]any)
			for method, op := range operations {
				if !strings.Contains("get post delete put patch", method) {
					continue
				}
				for _, name := range append(doc.queryParameters(t, operations, op), "beta") {
					if b := unknownParameter(t, base, key, strings.ToUpper(method), path, name); b != "" {
						t.Errorf("%s: %s %s?%s: %s", module, method, path, name, b)
					}
					known++
				}
			}
		}
		if known < 150 {
			t.Errorf("%s: only %d parameters were sent", module, known)
		}
	}
	if b := unknownParameter(t, base, key, "GET", "/v1/agents", "nonesuch"); !strings.Contains(b, "nonesuch: unknown") {
		t.Errorf("a parameter that there is not: %s", b) // the test can tell
	}
}

// queryParameters are the names of an operation's query parameters, its path's included.
func (s *spec) queryParameters(t *testing.T, path map[string]any, op any) (names []string) {
	t.Helper()
	own, _ := op.(map[string]any)["parameters"].([]any)
	shared, _ := path["parameters"].([]any)
	for _, p := range append(shared, own...) {
		m, _ := p.(map[string]any)
		if m["$ref"] != nil {
			t.Fatalf("a parameter is given elsewhere: %v", m["$ref"])
		}
		if m["in"] == "query" {
			names = append(names, m["name"].(string))
		}
	}
	return names
}

// unknownParameter returns the answer of a server that does not know a query parameter, "" from one that does.
func unknownParameter(t *testing.T, base, key, method, path, name string) string {
	t.Helper()
	answer := send(t, base, key, method, path+"?"+url.Values{name: {"x"}}.Encode())
	if strings.Contains(answer, "unknown query parameter") {
		return answer
	}
	return ""
}
