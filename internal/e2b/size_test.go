package e2b

import (
	"net/http"
	"strings"
	"testing"
)

// If this fails, a template is taken whose sandboxes cannot be made, or its maker is told about a field that the client did not send.
func TestTemplateSize(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct{ body, want string }{
		{`{"name":"good","cpuCount":0.01,"memoryMB":8}`, ""},
		{`{"name":"default","cpuCount":0,"memoryMB":0}`, ""},
		{`{"name":"bad","cpuCount":0.000001}`, "cpuCount must be 0.01 to 1024"},
		{`{"name":"bad","cpuCount":-1}`, "cpuCount must be"},
		{`{"name":"bad","cpuCount":1025}`, "cpuCount must be"},
		{`{"name":"bad","memoryMB":7}`, "memoryMB must be 8 to 67108864, or 0 for the default, not 7"},
		{`{"name":"bad","memoryMB":-1}`, "memoryMB must be"},
		{`{"name":"bad","memoryMB":9000000000000000000}`, "memoryMB must be"},
	} {
		var e errorBody
		status := r.api("POST", "/v3/templates", c.body, &e)
		if c.want == "" && status != http.StatusAccepted || c.want != "" && (status != http.StatusBadRequest || !strings.Contains(e.Message, c.want)) {
			t.Errorf("%s: %d %+v, want %q", c.body, status, e, c.want)
		}
	}
	if status := r.api("GET", "/templates/aliases/bad", "", nil); status != http.StatusNotFound {
		t.Errorf("what was refused left a template behind: %d", status)
	}
}
