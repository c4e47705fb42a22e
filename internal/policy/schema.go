package policy

import (
	"fmt"
	"strings"
	"sync"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// Actions that are not tools.
const (
	ActionHTTP       = "http.request"   // resource Host
	ActionCredential = "credential.use" // resource Credential
	ActionSandbox    = "sandbox.create" // resource Environment
	ActionSpawn      = "session.spawn"  // resource Agent
	ActionCustom     = "custom"         // a client-executed tool; resource Tool::"its name"
	ActionMCP        = "mcp"            // resource Tool::"server/name"
)

// Schema is the Cedar schema that every policy is checked against, with an action for each tool of the registry.
// Every key of Context is always set, so a policy that passes the check cannot meet a missing attribute; but for
// budget, which is missing while nobody can tell what is left. Group "tool" holds all tools, "leaves" all
// actions that can carry data outside.
var Schema = nouns + toolActions() + otherActions

// toolActions declares the actions of the built-in tools.
func toolActions() string {
	var b strings.Builder
	for _, t := range registry.All() {
		groups := `"tool"`
		if t.Leaves {
			groups += `, "leaves"`
		}
		fmt.Fprintf(&b, "action %q in [%s] appliesTo { principal: [Session], resource: [Tool], context: Context };\n",
			t.Name, groups)
	}
	return b.String()
}

const nouns = `
entity Org;
entity User in [Org] { role: String, organization: String };
entity Agent in [Org];
entity Environment;
entity Session in [User, Agent, Environment, Org] {
	owner: String, agent: String, environment: String, depth: Long, user: User
};
entity Tool;
entity Host;
entity Credential;

type Context = {
	tool: String, input: String, command: String, path: String,
	url: String, scheme: String, host: String, port: Long, method: String,
	permission: String, verdict: String, networking: String,
	trusted: Bool, // the host of an http.request is marked as trusted for private data
	taint: { private: Bool, untrusted: Bool, exfil: Bool },
	budget: { limited: Bool, left_cents: Long, left_tokens: Long, left_steps: Long },
	now: datetime, hour: Long, weekday: Long,
	approved: Bool, granted: Bool, digest: String, approvals: Set<String>
};

action "tool";
action "leaves";
`

const otherActions = `action "custom" in ["tool"] appliesTo { principal: [Session], resource: [Tool], context: Context };
action "mcp" in ["tool", "leaves"] appliesTo { principal: [Session], resource: [Tool], context: Context };
action "http.request" in ["leaves"] appliesTo { principal: [Session], resource: [Host], context: Context };
action "credential.use" appliesTo { principal: [Session], resource: [Credential], context: Context };
action "sandbox.create" appliesTo { principal: [Session], resource: [Environment], context: Context };
action "session.spawn" appliesTo { principal: [Session], resource: [Agent], context: Context };
`

// parsed is the schema, ready to validate with, and the action entities with their groups.
type parsed struct {
	validator *validate.Validator
	actions   cedar.EntityMap
	resource  map[string]cedar.EntityType // of each action that can be asked for
}

// theSchema parses Schema once. It panics if it is broken, which every test of this package would show.
var theSchema = sync.OnceValue(func() parsed {
	var s schema.Schema
	if err := s.UnmarshalCedar([]byte(Schema)); err != nil {
		panic(fmt.Sprintf("policy: the schema: %v", err))
	}
	r, err := s.Resolve()
	if err != nil {
		panic(fmt.Sprintf("policy: the schema: %v", err))
	}
	p := parsed{validator: validate.New(r), actions: cedar.EntityMap{}, resource: map[string]cedar.EntityType{}}
	for uid, a := range r.Actions {
		p.actions[uid] = a.Entity
		if a.AppliesTo != nil && len(a.AppliesTo.Resources) == 1 {
			p.resource[string(uid.ID)] = a.AppliesTo.Resources[0]
		}
	}
	return p
})
