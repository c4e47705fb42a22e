package audit_test

import (
	"encoding/json"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
)

// If this fails, whoever takes exports in by the schema refuses them: an attribute that a class of OCSF must
// have is missing, or one is there that only a profile brings.
func TestExportIsWhatTheSchemaWants(t *testing.T) {
	for _, c := range []struct {
		action, resource string
		class            float64
		to               map[string]any
	}{
		{"key.create", "apikey_1", 6003, nil},
		{"http.request", "", 6003, nil}, // redacted
		{"http.request", "GET https://a.test:8443/x", 4002, map[string]any{"hostname": "a.test", "port": 8443.0}},
		{"http.request", "POST https://[2001:db8::1]/x", 4002, map[string]any{"hostname": "2001:db8::1"}},
	} {
		e := audit.Entry{AuditRecord: outboard.AuditRecord{Num: 7, Org: "default", Actor: "sesn_1", Action: c.action,
			Resource: c.resource, Decision: outboard.Allowed}}
		line, err := audit.Export(e, "v1")
		var ev map[string]any
		if err == nil {
			err = json.Unmarshal(line, &ev)
		}
		if err != nil {
			t.Fatal(err)
		}
		must := map[float64][]string{6003: {"actor", "api", "src_endpoint"},
			4002: {"http_request", "src_endpoint", "dst_endpoint"}}[c.class]
		for _, name := range append(must, "activity_id", "category_uid", "class_uid", "metadata", "severity_id", "time",
			"type_uid") {
			if ev[name] == nil {
				t.Errorf("%s %s: %s is missing: %s", c.action, c.resource, name, line)
			}
		}
		to, _ := ev["dst_endpoint"].(map[string]any)
		if len(to) != len(c.to) || to["hostname"] != c.to["hostname"] || to["port"] != c.to["port"] ||
			ev["class_uid"] != c.class {
			t.Errorf("%s %s: of class %v to %v", c.action, c.resource, ev["class_uid"], to)
		}
		if from := ev["src_endpoint"].(map[string]any); from["uid"] != "sesn_1" {
			t.Errorf("%s: from %v", c.action, from)
		}
		if profiles := ev["metadata"].(map[string]any)["profiles"].([]any); len(profiles) != 1 ||
			profiles[0] != "security_control" {
			t.Errorf("profiles: %v", profiles)
		}
	}
}
