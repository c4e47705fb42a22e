package outboard

import (
	"slices"
	"strings"
	"time"
)

// Approval is a call that waits for a person, as a row: one per asked call, made in the commit that records the
// call. It names one exact request by its digest, is answered once, and lets that call alone run, once. One with
// Net is of a host instead.
type Approval struct {
	ID       ApprovalID `json:"id"`
	Session  SessionID  `json:"session_id"`
	Call     CallID     `json:"call"`
	Action   string     `json:"action"`
	Resource string     `json:"resource"`
	Digest   string     `json:"digest"` // of tool and input; what CallStarted.Digest must be
	// the canonical text a person is shown: all of it, nothing hidden
	Request   string        `json:"request"`
	Why       string        `json:"why"`                // it was stopped
	Rules     []string      `json:"rules,omitempty"`    // that stopped it
	Approver  Approver      `json:"approver,omitempty"` // who may answer
	Owner     KeyID         `json:"owner,omitempty"`    // of the session
	State     ApprovalState `json:"state"`
	CreatedAt time.Time     `json:"created_at"`
	ExpiresAt time.Time     `json:"expires_at"`
	Answer    *Answer       `json:"answer,omitempty"`  // of a closed one: who closed it and why, where that is known
	Net       *NetTarget    `json:"network,omitempty"` // of a host; then there is no Call
	Needs     int           `json:"needs,omitempty"`   // how many people must allow it, from 2; 0 = one
	Votes     []Vote        `json:"votes,omitempty"`   // of those who have, where it needs several
	Org       OrgID         `json:"-"`                 // whose it is
}

// ApprovalOf returns the id of the approval of a call.
func ApprovalOf(s SessionID, c CallID) ApprovalID {
	return DeriveID[ApprovalID](PrefixApproval, string(s), string(c))
}

// StateAt is where the approval stands: a pending one expires by the clock.
func (a *Approval) StateAt(now time.Time) ApprovalState {
	if a.State == ApprovalPending && !now.Before(a.ExpiresAt) {
		return ApprovalExpired
	}
	return a.State
}

// Answer is a person's decision about one call.
type Answer struct {
	Call    CallID    `json:"call"`
	Allow   bool      `json:"allow"`
	Key     KeyID     `json:"key"`
	Name    string    `json:"name"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at"`
}

// MaxNeeds bounds how many people one approval may need.
const MaxNeeds = 9

// Vote is one person's allow of an approval that needs several. It counts as long as whoever gave it may still answer.
type Vote struct {
	Key  KeyID     `json:"key"`
	Name string    `json:"name"`
	At   time.Time `json:"at"`
}

// Humans returns how many different people the callers surely are. One person counts once, whatever keys they
// use; and since whoever made a key has seen its secret, a key, its holder and its maker are one, and so are two
// keys that the same person made.
func Humans(callers []Caller) int {
	var groups [][]string // who may be the same person, by their names
	for _, c := range callers {
		one := []string{c.Person()}
		if c.Maker != "" {
			one = append(one, c.Maker)
		}
		groups = slices.DeleteFunc(groups, func(g []string) bool {
			same := slices.ContainsFunc(g, func(name string) bool { return slices.Contains(one, name) })
			if same {
				one = append(one, g...)
			}
			return same
		})
		groups = append(groups, one)
	}
	return len(groups)
}

// ApprovalState is where an approval stands.
type ApprovalState string

// The states. Closed: the call ended without an answer, by an interrupt or with its session, or a kill ended the
// question. A pending one past its ExpiresAt is expired whatever its row says.
const (
	ApprovalPending ApprovalState = "pending"
	ApprovalAllowed ApprovalState = "allowed"
	ApprovalDenied  ApprovalState = "denied"
	ApprovalExpired ApprovalState = "expired"
	ApprovalClosed  ApprovalState = "closed"
)

// Approver says who may answer an approval.
type Approver string

// The approvers. "" is ApproverAny.
const (
	ApproverAny   Approver = "any"   // whoever may send events to the session
	ApproverOther Approver = "other" // not the human the session acts for
	ApproverAdmin Approver = "admin" // an administrator
	// ApproverOtherAdmin is both at once.
	ApproverOtherAdmin Approver = "other_admin"
)

// Approvers are all of them, from the widest.
var Approvers = []Approver{ApproverAny, ApproverOther, ApproverAdmin, ApproverOtherAdmin}

// And is who may answer where two rules both want somebody.
func (a Approver) And(b Approver) Approver {
	switch {
	case a == b, b == "", b == ApproverAny && a != "":
		return a
	case a == "", a == ApproverAny:
		return b
	}
	return ApproverOtherAdmin // two different ones that are not "any": both hold
}

// May reports whether a caller may answer an approval. What is not known may nobody.
func (a Approver) May(by Caller, owner Owner) bool {
	switch a {
	case "", ApproverAny:
		return by.Approves()
	case ApproverOther:
		return by.Approves() && another(by, owner)
	case ApproverAdmin:
		return by.Role == RoleAdmin
	case ApproverOtherAdmin:
		return by.Role == RoleAdmin && another(by, owner)
	}
	return false
}

// another reports whether the caller is somebody else than the owner. Who made a key has seen its secret and can
// use it, so neither may the maker of the one answer for the other.
func another(by Caller, owner Owner) bool {
	a, b := by.Person(), owner.Person()
	return owner.Key != "" && by.Key != "" && by.Key != owner.Key && a != b && a != owner.Maker && b != by.Maker
}

// NetTarget is the host of an approval that is no call's: a request to it was refused, and did not wait.
type NetTarget struct {
	Host string `json:"host"`
	Port int    `json:"port,omitempty"` // 0 = 80 and 443
	// Policy says that rules of the policies asked, and an allow is a Grant for the resource; else the host is
	// on no list, and an allow is a NetGrant.
	Policy bool `json:"policy,omitempty"`
}

// Grant lets calls pass that would otherwise ask a person, for a while. It never lifts a deny.
type Grant struct {
	ID           GrantID   `json:"id"`
	Human        string    `json:"human,omitempty"`      // sessions of this owner, see Owner.Human; "" = of any
	Agent        AgentID   `json:"agent_id,omitempty"`   // sessions of this agent; "" = of any
	Session      SessionID `json:"session_id,omitempty"` // this task alone; "" = any. A fork is another task
	Actions      []string  `json:"actions"`              // "bash", "http.request"; "*" = all
	Resources    []string  `json:"resources"`            // exact, or up to a final "*"; see GrantQuery.Resource
	NotBefore    time.Time `json:"not_before,omitzero"`
	ExpiresAt    time.Time `json:"expires_at"`
	MaxUses      int       `json:"max_uses,omitempty"` // 0 = as many as it likes
	Uses         int       `json:"uses"`
	ApprovedBy   KeyID     `json:"approved_by"`
	ApprovedName string    `json:"approved_name"`
	Why          string    `json:"why"`
	CreatedAt    time.Time `json:"created_at"`
	RevokedAt    time.Time `json:"revoked_at,omitzero"`
	Votes        []Vote    `json:"votes,omitempty"` // of everybody who allowed it, where several had to
	Org          OrgID     `json:"-"`               // whose it is
}

// GrantQuery is one request that a grant may cover. Resource is what the action acts on, as the approval shows
// it: the command of bash, the path of a file tool, the address of web_fetch, "host" or "host/path" of an HTTP
// request.
type GrantQuery struct {
	Person   UserID // whom the session acts for; "" = a machine's key
	Key      KeyID  // that the session was made with
	Agent    AgentID
	Session  SessionID
	Action   string
	Resource string
	Now      time.Time
}

// Covers reports whether the grant lets the request pass at q.Now. A clock that went back makes a grant that was
// made later not cover yet.
func (g *Grant) Covers(q GrantQuery) bool {
	switch {
	case !g.RevokedAt.IsZero(), !q.Now.Before(g.ExpiresAt), q.Now.Before(g.NotBefore), q.Now.Before(g.CreatedAt):
		return false
	case g.MaxUses > 0 && g.Uses >= g.MaxUses:
		return false
	case g.Human != "" && g.Human != string(q.Person) && g.Human != string(q.Key), g.Agent != "" &&
		g.Agent != q.Agent, g.Session != "" && g.Session != q.Session:
		return false
	}
	return slices.ContainsFunc(g.Actions, func(a string) bool { return a == "*" || a == q.Action }) &&
		slices.ContainsFunc(g.Resources, func(r string) bool { return matches(r, q.Resource) })
}

// matches compares with a pattern whose last character may be a star. A star in it stands for text without
// control characters, so that a second line of a command does not ride on the first.
func matches(pattern, s string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	if !open {
		return pattern == s
	}
	rest, ok := strings.CutPrefix(s, prefix)
	return ok && !strings.ContainsFunc(rest, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// Narrow is the grant as a sub-agent of its holder may have it: the intersection of both, for the other session
// alone. It reports false when nothing is left.
func (g Grant) Narrow(o Grant) (Grant, bool) {
	n := g
	n.Session, n.Agent = o.Session, o.Agent
	n.Actions = common(g.Actions, o.Actions, func(a, b string) bool { return a == "*" || a == b })
	n.Resources = common(g.Resources, o.Resources, func(a, b string) bool {
		prefix, open := strings.CutSuffix(a, "*")
		return a == b || open && strings.HasPrefix(strings.TrimSuffix(b, "*"), prefix)
	})
	if o.NotBefore.After(n.NotBefore) {
		n.NotBefore = o.NotBefore
	}
	if o.ExpiresAt.Before(n.ExpiresAt) {
		n.ExpiresAt = o.ExpiresAt
	}
	if left := g.MaxUses - g.Uses; g.MaxUses > 0 {
		n.MaxUses = left
		if o.MaxUses > 0 {
			n.MaxUses = min(left, o.MaxUses)
		}
	} else {
		n.MaxUses = o.MaxUses
	}
	n.Uses = 0
	spent := g.MaxUses > 0 && n.MaxUses <= 0
	sameHuman := o.Human == "" || g.Human == "" || o.Human == g.Human
	if n.Human == "" {
		n.Human = o.Human
	}
	return n, len(n.Actions) > 0 && len(n.Resources) > 0 && n.NotBefore.Before(n.ExpiresAt) && !spent && sameHuman &&
		g.RevokedAt.IsZero()
}

// common keeps what both lists allow; wide(a, b) reports whether a allows all that b does.
func common(a, b []string, wide func(a, b string) bool) []string {
	var out []string
	add := func(s string) {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	for _, x := range a {
		for _, y := range b {
			switch {
			case wide(x, y):
				add(y)
			case wide(y, x):
				add(x)
			}
		}
	}
	return out
}
