package policy

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/cedar-policy/cedar-go"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// MaxTimeout bounds how long an approval may wait.
const MaxTimeout = 30 * 24 * time.Hour

// Request is one action that a session wants to take for its human.
type Request struct {
	Session     outboard.SessionID
	Owner       outboard.Owner
	Agent       outboard.AgentID
	Environment outboard.EnvironmentID
	Depth       int    // of delegation: 0 = started by a person
	Action      string // a tool's name, or a constant of this package
	Role        string // of whom the session acts for; the engine sets it
	Resource    string // the id of the resource entity: a tool, a host, a credential, an environment, an agent
	Context     Context
}

// Context is what policies read. Each field is a key of the schema's Context; all but Left are always passed on,
// set or not.
type Context struct {
	Tool    string
	Input   string // the whole input, as compact JSON with sorted keys
	Command string // of bash
	// of a file tool what it opens, of a search where it begins: absolute; of an HTTP request its path
	Path       string
	URL        string // of web_fetch and of an HTTP request, in its one form (URL)
	Scheme     string
	Host       string // in lower case, without a trailing dot
	Port       int
	Method     string
	Permission outboard.Permission // the agent's own, for a tool
	Verdict    outboard.Decision   // of the judge of an auto permission
	Networking string              // unrestricted, limited or none
	Trusted    bool                // a host of a request is marked as trusted for private data
	Taint      outboard.Taint
	// Left is what the budgets over the session leave; see outboard.LeftOf. nil = nobody can tell: a rule that
	// asks cannot be evaluated, which is a deny.
	Left     *outboard.Spend
	Now      time.Time
	Approved bool // a person allowed this very request
	Granted  bool // a grant covers it
	Digest   string
}

// entityType makes the type names of the schema.
const (
	typeOrg         cedar.EntityType = "Org"
	typeUser        cedar.EntityType = "User"
	typeAgent       cedar.EntityType = "Agent"
	typeEnvironment cedar.EntityType = "Environment"
	typeSession     cedar.EntityType = "Session"
	typeAction      cedar.EntityType = "Action"
)

func uid(t cedar.EntityType, id string) cedar.EntityUID {
	return cedar.EntityUID{Type: t, ID: cedar.String(id)}
}

// entities are the session, whom it acts for, and the actions; everything else has no attributes.
type entities struct {
	session cedar.Entity
	user    cedar.Entity
	actions cedar.EntityMap
}

// Get implements cedar.EntityGetter.
func (e *entities) Get(u cedar.EntityUID) (cedar.Entity, bool) {
	if u == e.session.UID {
		return e.session, true
	}
	if u == e.user.UID {
		return e.user, true
	}
	return e.actions.Get(u)
}

// cedar is the request in Cedar's terms. An action that the schema does not know is an error.
func (r *Request) cedar() (cedar.Request, *entities, error) {
	s := theSchema()
	kind, ok := s.resource[r.Action]
	if !ok {
		return cedar.Request{}, nil, fmt.Errorf("the action %q is not known", clip(r.Action))
	}
	org := string(r.Owner.Org)
	if org == "" {
		org = outboard.DefaultOrg
	}
	me, human := uid(typeSession, string(r.Session)), uid(typeUser, string(r.Owner.Key))
	if r.Owner.User != "" {
		human = uid(typeUser, string(r.Owner.User))
	}
	user := cedar.Entity{UID: human, Parents: cedar.NewEntityUIDSet(uid(typeOrg, org)),
		Attributes: cedar.NewRecord(cedar.RecordMap{"role": cedar.String(r.Role), "organization": cedar.String(org)})}
	e := &entities{actions: s.actions, user: user, session: cedar.Entity{
		UID: me,
		Parents: cedar.NewEntityUIDSet(uid(typeOrg, org), uid(typeUser, string(r.Owner.Key)), human,
			uid(typeAgent, string(r.Agent)),
			uid(typeEnvironment, string(r.Environment))),
		Attributes: cedar.NewRecord(cedar.RecordMap{
			"owner": cedar.String(r.Owner.Name), "agent": cedar.String(r.Agent), "environment": cedar.String(r.Environment),
			"depth": cedar.Long(r.Depth), "user": human,
		}),
	}}
	return cedar.Request{Principal: me, Action: uid(typeAction, r.Action), Resource: uid(kind, r.Resource),
		Context: r.Context.record()}, e, nil
}

func (c *Context) record() cedar.Record {
	approvals := cedar.NewSet()
	if c.Approved {
		approvals = cedar.NewSet(cedar.String(c.Digest))
	}
	now := c.Now.UTC()
	m := cedar.RecordMap{
		"tool": cedar.String(c.Tool), "input": cedar.String(c.Input), "command": cedar.String(c.Command), "path": cedar.String(c.Path),
		"url": cedar.String(c.URL), "scheme": cedar.String(c.Scheme), "host": cedar.String(c.Host), "port": cedar.Long(c.Port),
		"method": cedar.String(c.Method), "permission": cedar.String(c.Permission), "verdict": cedar.String(c.Verdict),
		"networking": cedar.String(c.Networking), "trusted": cedar.Boolean(c.Trusted),
		"taint": cedar.NewRecord(cedar.RecordMap{"private": cedar.Boolean(c.Taint.Private),
			"untrusted": cedar.Boolean(c.Taint.Untrusted),
			"exfil":     cedar.Boolean(c.Taint.Exfil)}),
		"now": cedar.NewDatetime(now), "hour": cedar.Long(now.Hour()), "weekday": cedar.Long(now.Weekday()),
		"approved": cedar.Boolean(c.Approved), "granted": cedar.Boolean(c.Granted), "digest": cedar.String(c.Digest), "approvals": approvals,
	}
	if c.Left != nil {
		m["budget"] = budget(c.Left)
	}
	return cedar.NewRecord(m)
}

// budget is what is left, rounded down. Without a limit it is the largest number there is, so that a rule about
// little left does not need to ask whether there is one.
func budget(left *outboard.Spend) cedar.Record {
	none := outboard.LeftOf(nil, outboard.Spend{})
	cents := int64(left.Cost / outboard.Cent)
	if left.Cost == none.Cost {
		cents = int64(none.Cost)
	}
	return cedar.NewRecord(cedar.RecordMap{"limited": cedar.Boolean(left.Cost != none.Cost),
		"left_cents":  cedar.Long(cents),
		"left_tokens": cedar.Long(left.Tokens), "left_steps": cedar.Long(left.Steps)})
}

// ForCall fills in what a tool call says: the action, the resource and the arguments, with what it opens in its
// one form. The rest is the caller's.
func (r *Request) ForCall(call *outboard.CallRequested, input outboard.Raw) {
	r.Action, r.Resource = call.Name, call.Name
	switch call.Kind {
	case "custom":
		r.Action = ActionCustom
	case "mcp":
		r.Action = ActionMCP
	}
	c := &r.Context
	c.Tool, c.Permission, c.Verdict = call.Name, call.Policy, call.Verdict
	if call.Kind == "custom" { // the wire gives it none: its client decides by running it
		c.Permission = outboard.AlwaysAllow
	}
	var args map[string]any
	if json.Unmarshal(input, &args) != nil {
		c.Input = string(input)
		return
	}
	opens := ""
	if call.Kind == "builtin" {
		if opens = call.Opens; opens == "" {
			opens, _ = Opens(call.Name, input, "") // the caller refuses what has none
		}
		if opens != "" {
			At(call.Name, args, opens)
		}
	}
	if b, err := json.Marshal(args); err == nil {
		c.Input = string(b)
	}
	if call.Kind != "builtin" {
		return
	}
	switch t, _ := registry.Lookup(call.Name); t.Subject {
	case registry.Command:
		c.Command, _ = args[t.Target].(string)
		return
	case registry.Address:
	default:
		c.Path = opens
		return
	}
	c.Method = "GET"
	if u, err := url.Parse(opens); err == nil && opens != "" {
		c.URL, c.Scheme, c.Host, c.Port, c.Path = opens, u.Scheme, Host(u.Hostname()), port(u), u.EscapedPath()
	}
}

func port(u *url.URL) int {
	if n, err := strconv.Atoi(u.Port()); err == nil {
		return n
	}
	return map[string]int{"http": 80, "https": 443}[u.Scheme]
}

// Target is what a grant's resource is compared with, and what a list of approvals shows beside the action: the
// command, the path or the address; else the resource itself.
func (r *Request) Target() string {
	c := &r.Context
	switch {
	case c.Command != "":
		return c.Command
	case r.Action == ActionHTTP:
		return c.Host + c.Path
	case c.URL != "":
		return c.URL
	case c.Path != "":
		return c.Path
	}
	return r.Resource
}

// Actions returns every action that can be asked for, sorted.
func Actions() []string {
	var out []string
	for a := range theSchema().resource {
		out = append(out, a)
	}
	slices.Sort(out)
	return out
}
