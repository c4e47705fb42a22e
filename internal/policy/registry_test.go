package policy

import (
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// Broken if the action of a tool changes its groups, so that rules about all tools, or about all that leave, no
// longer hold for it.
func TestSchemaHasEveryTool(t *testing.T) {
	const applies = " appliesTo { principal: [Session], resource: [Tool], context: Context };\n"
	for name, groups := range map[string]string{"bash": `"tool"`, "read": `"tool"`, "write": `"tool"`, "edit": `"tool"`,
		"glob": `"tool"`,
		"grep": `"tool"`, "web_fetch": `"tool", "leaves"`, "web_search": `"tool", "leaves"`} {
		if line := `action "` + name + `" in [` + groups + "]" + applies; strings.Count(Schema, line) != 1 {
			t.Errorf("the schema does not have %s", line)
		}
	}
	for _, tool := range registry.All() {
		if _, ok := theSchema().resource[tool.Name]; !ok {
			t.Errorf("no rule can speak of %s", tool.Name)
		}
	}
}
