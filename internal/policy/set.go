package policy

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"github.com/outboard-dev/outboard"
)

// Limits of one policy document. They keep the time of a decision and of a check bounded whoever writes the text.
const (
	MaxText     = 64 << 10 // bytes
	MaxPolicies = 500
	maxNesting  = 64 // of brackets: the parser, the check and the evaluation recurse
)

// Layer is one policy document, compiled. It does not change and is safe for concurrent use.
type Layer struct {
	level outboard.PolicyLevel
	rules []rule
	open  bool // it permits nothing by itself, so what it does not forbid passes
}

// rule is one policy of a layer.
type rule struct {
	id       string // "level/id"
	policy   *cedar.Policy
	ask      bool
	reason   string
	approver outboard.Approver
	needs    int // people who must allow; 0 = one
	timeout  time.Duration
}

// All lets Cedar walk the rules in the order of the text.
func (l *Layer) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for i := range l.rules {
			if !yield(cedar.PolicyID(l.rules[i].id), l.rules[i].policy) {
				return
			}
		}
	}
}

// Compile parses a document and checks it against the schema. Every mistake is kind Invalid and names the policy
// and the line.
//
// Annotations: @id names the policy in logs, @reason is what the model and a person read, and on a forbid
// @effect("ask") asks a person instead, @approver("any"|"other"|"admin"|"other_admin") says who may answer and
// @timeout("15m") how long that may take. Others are refused, because a misspelt one would change the meaning
// without a word.
func Compile(level outboard.PolicyLevel, text string) (l *Layer, err error) {
	defer func() {
		if v := recover(); v != nil { // of the parser, which is not ours
			l, err = nil, outboard.Errorf(outboard.Invalid, "the %s policy cannot be read: %v", level, v)
		}
	}()
	if len(text) > MaxText {
		return nil, outboard.Errorf(outboard.TooLarge, "the %s policy has %d bytes, over the limit of %d", level,
			len(text), MaxText)
	}
	if n := nesting(text); n > maxNesting {
		return nil, outboard.Errorf(outboard.Invalid, "the %s policy nests %d brackets, over the limit of %d", level, n,
			maxNesting)
	}
	list, err := cedar.NewPolicyListFromBytes(string(level), []byte(text))
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "reading the %s policy: %w", level, err)
	}
	if len(list) > MaxPolicies {
		return nil, outboard.Errorf(outboard.TooLarge, "the %s policy has %d policies, over the limit of %d", level,
			len(list), MaxPolicies)
	}
	l = &Layer{level: level, open: true}
	seen := map[string]bool{}
	for i, p := range list {
		r, err := newRule(level, i, p)
		if err == nil && seen[r.id] {
			err = errors.New("its id is used twice")
		}
		if err == nil {
			err = theSchema().validator.Policy(r.id, (*ast.Policy)(p.AST()))
		}
		if err != nil {
			return nil, outboard.Errorf(outboard.Invalid, "policy %s (line %d): %w", r.id, p.Position().Line, err).
				WithHint("outboard policy schema prints what a policy may speak of")
		}
		seen[r.id] = true
		l.open = l.open && p.Effect() == cedar.Forbid
		l.rules = append(l.rules, r)
	}
	return l, nil
}

// nesting is how deep brackets nest, or would if those in strings and comments counted as well.
func nesting(text string) (deepest int) {
	depth := 0
	for _, c := range []byte(text) {
		switch c {
		case '(', '[', '{':
			depth++
			deepest = max(deepest, depth)
		case ')', ']', '}':
			depth--
		}
	}
	return deepest
}

func newRule(level outboard.PolicyLevel, i int, p *cedar.Policy) (rule, error) {
	r := rule{id: fmt.Sprintf("%s/%d", level, i+1), policy: p, approver: outboard.ApproverAny}
	notes := p.Annotations()
	if id, ok := notes["id"]; ok {
		if !validName(string(id)) {
			return r, fmt.Errorf("@id must be 1 to 64 letters, digits, dots, dashes and underscores, not %q",
				clip(string(id)))
		}
		r.id = string(level) + "/" + string(id)
	}
	for key, v := range notes {
		value := string(v)
		if key != "id" && key != "reason" && p.Effect() == cedar.Permit {
			return r, fmt.Errorf("@%s is only for a forbid", key)
		}
		switch key {
		case "id":
		case "reason":
			if r.reason = value; len(value) > 1000 {
				return r, errors.New("@reason must have at most 1000 bytes")
			}
		case "effect":
			if r.ask = value == "ask"; !r.ask && value != "deny" {
				return r, fmt.Errorf("@effect must be ask or deny, not %q", clip(value))
			}
		case "approver":
			r.approver = outboard.Approver(value)
			if !slices.Contains(outboard.Approvers, r.approver) {
				return r, fmt.Errorf("@approver must be any, other, admin or other_admin, not %q", clip(value))
			}
		case "approvals":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > outboard.MaxNeeds {
				return r, fmt.Errorf("@approvals must be a number of people from 1 to %d, not %q", outboard.MaxNeeds,
					clip(value))
			}
			if n > 1 {
				r.needs = n
			}
		case "timeout":
			d, err := time.ParseDuration(value)
			if err != nil || d < time.Second || d > MaxTimeout {
				return r, fmt.Errorf("@timeout must be a duration from 1s to %v, not %q", MaxTimeout, clip(value))
			}
			r.timeout = d
		default:
			return r, fmt.Errorf("there is no annotation @%s; there are @id, @reason, @effect, @approver, "+
				"@approvals and @timeout", clip(string(key)))
		}
	}
	if r.needs > 1 {
		r.approver = r.approver.And(outboard.ApproverOther) // who asks is none of those who allow
	}
	return r, nil
}

func validName(s string) bool {
	return len(s) > 0 && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' ||
			r == '_')
	})
}

// Set is a stack of layers that a request must pass, every one of them. The zero Set denies everything. It does
// not change and is safe for concurrent use.
type Set struct {
	layers []*Layer
	broken error // why nothing may pass
	memo   memo
}

// NewSet stacks layers.
func NewSet(layers ...*Layer) *Set { return &Set{layers: layers} }

// With is the set with one more layer below.
func (s *Set) With(l *Layer) *Set {
	return &Set{layers: append(slices.Clone(s.layers), l), broken: s.broken}
}

// Text returns the text of a policy by its id, "" if the set has none of it.
func (s *Set) Text(id string) string {
	for _, l := range s.layers {
		for i := range l.rules {
			if l.rules[i].id == id {
				return string(l.rules[i].policy.MarshalCedar())
			}
		}
	}
	return ""
}

// Unwritten reports whether an id is that of a rule which no document has: that a level with permits has none
// for a request, or that the person a session acts for must still be there.
func Unwritten(id string) bool { return strings.HasSuffix(id, nothingPermits) || id == rulePerson }

const (
	nothingPermits = "/default" // behind the level
	rulePerson     = "platform/person"
)

// Broken is a set that denies everything, because of err, with an alarm.
func Broken(err error) *Set { return &Set{broken: err} }

// Verdict is the decision about one request.
type Verdict struct {
	Decision outboard.Decision
	Rules    []string          // that decided; of an allow the permits
	Reason   string            // why not, fit for the model and a person
	Alarm    string            // not "" when a policy could not be evaluated: somebody must look
	Approver outboard.Approver // of an ask: who may answer
	Needs    int               // of an ask: how many people must allow it, from 2; 0 = one
	Timeout  time.Duration     // of an ask: 0 = the default
	Met      bool              // it was an ask, and the request carries an approval or a grant
	// Away is why nobody could decide just now, as where the database is away: a deny that is not for good, and
	// is asked about again.
	Away error
}

// Decide is pure. A deny of any layer wins over an ask, an ask over an allow; whatever cannot be evaluated is a
// deny and an alarm, also where Cedar by itself would drop the policy and let the request pass.
func (s *Set) Decide(r *Request) (v Verdict) {
	defer func() {
		if p := recover(); p != nil {
			v = alarm("", fmt.Sprintf("the policies panicked: %v", p))
		}
	}()
	switch {
	case s == nil || s.broken == nil && len(s.layers) == 0:
		return alarm("", "no policies are loaded")
	case outboard.KindOf(s.broken) == outboard.Unavailable:
		v = alarm("", s.broken.Error())
		v.Away = outboard.Errorf(outboard.Unavailable, "%w", s.broken)
		return v
	case s.broken != nil:
		return alarm("", s.broken.Error())
	}
	v = Verdict{Decision: outboard.Allow}
	for _, reading := range r.readings() {
		q, entities, err := reading.cedar()
		if err != nil {
			return alarm("", err.Error())
		}
		for _, l := range s.layers {
			v = v.and(l.decide(q, entities))
		}
	}
	if v.Decision == outboard.Ask && (r.Context.Approved || r.Context.Granted) {
		v.Decision, v.Reason, v.Met = outboard.Allow, "", true
	}
	return v
}

// Check is Decide for a caller that cannot ask anybody: an ask is a deny.
func (s *Set) Check(r *Request) Verdict {
	v := s.Decide(r)
	if v.Decision == outboard.Ask {
		v.Decision = outboard.Deny
	}
	return v
}

func alarm(rule, why string) Verdict {
	v := Verdict{Decision: outboard.Deny, Alarm: why, Reason: "a policy could not be evaluated, so the request is " +
		"refused"}
	if rule != "" {
		v.Rules = []string{rule}
		v.Reason = "policy " + rule + " could not be evaluated, so the request is refused"
	}
	return v
}

// decide is the verdict of one layer.
func (l *Layer) decide(q cedar.Request, entities cedar.EntityGetter) Verdict {
	decision, diag := cedar.Authorize(l, entities, q)
	if len(diag.Errors) > 0 {
		e := diag.Errors[0]
		return alarm(string(e.PolicyID), fmt.Sprintf("policy %s: %s", e.PolicyID, e.Message))
	}
	if decision == cedar.Allow {
		v := Verdict{Decision: outboard.Allow}
		for _, d := range diag.Reasons {
			v.Rules = append(v.Rules, string(d.PolicyID))
		}
		return v
	}
	if len(diag.Reasons) == 0 {
		if l.open {
			return Verdict{Decision: outboard.Allow}
		}
		return Verdict{Decision: outboard.Deny, Rules: []string{string(l.level) + nothingPermits},
			Reason: fmt.Sprintf("no policy of the %s permits it", l.level)}
	}
	return l.forbidden(diag.Reasons)
}

// forbidden is an ask if every forbid that applies asks, else a deny by those that do not.
func (l *Layer) forbidden(reasons []cedar.DiagnosticReason) Verdict {
	var denies, asks []*rule
	for _, d := range reasons {
		i := slices.IndexFunc(l.rules, func(r rule) bool { return r.id == string(d.PolicyID) })
		if r := &l.rules[i]; r.ask {
			asks = append(asks, r)
		} else {
			denies = append(denies, r)
		}
	}
	v, by := Verdict{Decision: outboard.Deny}, denies
	if len(denies) == 0 {
		v, by = Verdict{Decision: outboard.Ask}, asks
	}
	for _, r := range by {
		v = v.and(Verdict{Decision: v.Decision, Rules: []string{r.id}, Reason: r.reason, Approver: r.approver,
			Needs: r.needs, Timeout: r.timeout})
	}
	if v.Reason == "" {
		v.Reason = "policy " + by[0].id + " forbids it"
		if v.Decision == outboard.Ask {
			v.Reason = "policy " + by[0].id + " wants a person to decide"
		}
	}
	return v
}

// weight orders decisions: the heavier of two wins.
var weight = map[outboard.Decision]int{outboard.Allow: 0, outboard.Ask: 1, outboard.Deny: 2}

// and is the narrower of two verdicts; of two alike, both.
func (v Verdict) and(o Verdict) Verdict {
	switch a, b := weight[v.Decision], weight[o.Decision]; {
	case a > b:
		return v
	case a < b:
		return o
	}
	v.Rules = append(v.Rules[:len(v.Rules):len(v.Rules)], o.Rules...)
	if o.Reason != "" && o.Reason != v.Reason {
		v.Reason = strings.TrimPrefix(v.Reason+"; "+o.Reason, "; ")
	}
	if o.Alarm != "" {
		v.Alarm = strings.TrimPrefix(v.Alarm+"; "+o.Alarm, "; ")
	}
	v.Approver, v.Needs = v.Approver.And(o.Approver), max(v.Needs, o.Needs)
	if v.Timeout == 0 || o.Timeout > 0 && o.Timeout < v.Timeout {
		v.Timeout = o.Timeout
	}
	return v
}
