package outboard

import (
	"cmp"
	"time"
)

// Policy is one version of a policy document: Cedar text that narrows what sessions may do. A save makes a new
// version; the latest one of each level and target is in force. Empty text has no effect.
type Policy struct {
	ID        PolicyID    `json:"id"` // the same for all versions of a level and target
	Level     PolicyLevel `json:"level"`
	Target    string      `json:"target,omitempty"` // an agent's or a session's id; "" for the organization
	Version   int         `json:"version"`          // from 1
	Text      string      `json:"text"`
	CreatedAt time.Time   `json:"created_at"`
	CreatedBy string      `json:"created_by"` // the caller's name
	Org       OrgID       `json:"-"`          // whose it is
}

// PolicyLevel says whose policy it is. A call must pass every level, so a lower one can only narrow.
type PolicyLevel string

// The levels, from the highest. Platform is built in, operator is in the server's configuration; the others are rows.
const (
	LevelPlatform     PolicyLevel = "platform"
	LevelOperator     PolicyLevel = "operator"
	LevelOrganization PolicyLevel = "organization"
	LevelAgent        PolicyLevel = "agent"
	LevelSession      PolicyLevel = "session"
)

// PolicyRow returns the id of the policy of a level and target. At the level of the organization the target is
// its id, or "" for the default one.
func PolicyRow(level PolicyLevel, target string) PolicyID {
	return DeriveID[PolicyID](PrefixPolicy, string(level), target)
}

// Owner is whom a session acts for: the person, and the API key that made it.
type Owner struct {
	Org  OrgID  `json:"org,omitempty"`
	User UserID `json:"user,omitempty"` // "" = a machine's key
	Key  KeyID  `json:"key,omitempty"`
	Name string `json:"name,omitempty"`
	// Maker is who made the key and knows it too, as Key.Maker.
	Maker string `json:"maker,omitempty"`
}

// Person is who stands behind the owner; see Caller.Person.
func (o Owner) Person() string { return cmp.Or(string(o.User), o.Maker, string(o.Key)) }

// Human is what a grant for the owner names: the person, who has another key after each sign-in, or a machine's key.
func (o Owner) Human() string { return cmp.Or(string(o.User), string(o.Key)) }

// Taint is what a session has been in touch with. Its bits are never taken back: not by a compaction, not in a fork.
type Taint struct {
	// it has read private data: mounted files, memory, what a credential opened
	Private   bool `json:"private,omitempty"`
	Untrusted bool `json:"untrusted,omitempty"` // it has read what strangers wrote
	Exfil     bool `json:"exfil,omitempty"`     // something it did could carry data outside
}

// Or is both taints.
func (t Taint) Or(o Taint) Taint {
	return Taint{t.Private || o.Private, t.Untrusted || o.Untrusted, t.Exfil || o.Exfil}
}
