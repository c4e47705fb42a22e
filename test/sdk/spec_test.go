package sdk

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// spec validates responses against the OpenAPI document that a Go SDK ships.
type spec struct {
	paths    map[string]any
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
}

const specURL = "mem:///openapi.json"

// loadSpec reads the document out of a module's directory.
func loadSpec(t *testing.T, module string) *spec {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("finding module %s: %v", module, err)
	}
	f, err := os.Open(filepath.Join(strings.TrimSpace(string(dir)), "scripts", "mock-spec.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(z)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020) // what OpenAPI 3.1 schemas are
	c.AssertFormat()
	if err := c.AddResource(specURL, doc); err != nil {
		t.Fatal(err)
	}
	paths, _ := doc.(map[string]any)["paths"].(map[string]any)
	if len(paths) < 50 {
		t.Fatalf("module %s: the OpenAPI document has %d paths", module, len(paths))
	}
	return &spec{paths: paths, compiler: c, compiled: map[string]*jsonschema.Schema{}}
}

// validate checks one response body against what the document says about its operation and status.
func (s *spec) validate(e *exchange) error {
	template := s.template(e)
	if template == "" {
		return fmt.Errorf("the document has no path for it")
	}
	op, _ := s.paths[template].(map[string]any)[strings.ToLower(e.method)].(map[string]any)
	responses, _ := op["responses"].(map[string]any)
	status := strconv.Itoa(e.status)
	if responses[status] == nil {
		status = status[:1] + "XX"
	}
	response, _ := responses[status].(map[string]any)
	content, _ := response["content"].(map[string]any)
	if content["application/json"] == nil {
		return fmt.Errorf("%s %s declares no JSON response with status %d", e.method, template, e.status)
	}
	schema, err := s.schema("paths", template, strings.ToLower(e.method), "responses", status, "content",
		"application/json", "schema")
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(e.body))
	if err != nil {
		return err
	}
	return schema.Validate(v)
}

// template finds the path of the document that a request took. Beta operations are listed with ?beta=true,
// whether or not the SDK's generation still sends it.
func (s *spec) template(e *exchange) string {
	plain := ""
	for t := range s.paths {
		path, query, _ := strings.Cut(t, "?")
		if !sameShape(path, e.path) {
			continue
		}
		if query == "beta=true" {
			return t
		}
		plain = t
	}
	return plain
}

func sameShape(template, path string) bool {
	a, b := strings.Split(template, "/"), strings.Split(path, "/")
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] && !strings.HasPrefix(a[i], "{") {
			return false
		}
	}
	return true
}

// schema compiles the schema at a place in the document.
func (s *spec) schema(place ...string) (*jsonschema.Schema, error) {
	var ptr strings.Builder
	for _, p := range place {
		ptr.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(p))
	}
	at := specURL + "#" + (&url.URL{Fragment: ptr.String()}).EscapedFragment()
	if sch := s.compiled[at]; sch != nil {
		return sch, nil
	}
	sch, err := s.compiler.Compile(at)
	s.compiled[at] = sch
	return sch, err
}

// Fails if the validator accepts what the document forbids: then every other proof here would be worthless.
func TestValidatorRefuses(t *testing.T) {
	s := loadSpec(t, "github.com/anthropics/anthropic-sdk-go/v2")
	get := func(body string) error {
		return s.validate(&exchange{method: "GET", path: "/v1/sessions/sesn_1/threads", status: 200,
			body: []byte(body)})
	}
	if err := get(`{"data":[],"next_page":null}`); err != nil {
		t.Errorf("a right body is refused: %v", err)
	}
	for _, body := range []string{`{"data":{}}`, `{"data":[{"type":"session_thread"}]}`, `{"data":[],"surplus":1}`} {
		if get(body) == nil {
			t.Errorf("a wrong body is accepted: %s", body)
		}
	}
}
