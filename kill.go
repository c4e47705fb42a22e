package outboard

import (
	"cmp"
	"time"
)

// Kill stops what a scope covers, above every agent, until it is lifted. It is a row that all servers of a
// database see, and it can be a file in a server's data directory, for when there is no database.
type Kill struct {
	ID     KillID    `json:"id"`
	Scope  KillScope `json:"scope"`
	Target string    `json:"target,omitempty"` // "" of KillAll
	// who threw it; of KillAll and KillHost the server's operator, for everybody
	Org      OrgID     `json:"org,omitempty"`
	Level    KillLevel `json:"level"`
	Reason   string    `json:"reason,omitempty"`
	By       string    `json:"by,omitempty"` // a name
	At       time.Time `json:"at"`
	LiftedAt time.Time `json:"lifted_at,omitzero"`
	LiftedBy string    `json:"lifted_by,omitempty"`
}

// KillScope is what a kill covers.
type KillScope string

// The scopes.
const (
	KillSession KillScope = "session"
	KillAgent   KillScope = "agent"
	// for whom sessions act, or who made a box: a person, whatever key of theirs it was, or an API key
	KillOwner       KillScope = "owner"
	KillCredential  KillScope = "credential"
	KillHost        KillScope = "host"
	KillEnvironment KillScope = "environment"
	KillAll         KillScope = "all"
)

// KillScopes are all scopes.
var KillScopes = []KillScope{KillSession, KillAgent, KillOwner, KillCredential, KillHost, KillEnvironment, KillAll}

// KillLevel is how far a kill goes.
type KillLevel string

// The levels. Each does what those before it do: no new effect begins, open connections close, model calls are
// cut. Pause freezes what runs, and lifting it lets everything go on. Stop ends turns and approvals and destroys
// machines; a session can be used again after it is lifted. Revoke also ends for good what the scope names:
// sessions are archived, the owner's key, grants and credentials revoked.
const (
	KillPause  KillLevel = "pause"
	KillStop   KillLevel = "stop"
	KillRevoke KillLevel = "revoke"
)

// Rank orders levels; 0 is none of them.
func (l KillLevel) Rank() int {
	return map[KillLevel]int{KillPause: 1, KillStop: 2, KillRevoke: 3}[l]
}

// KillSubject is whoever wants to have an effect.
type KillSubject struct {
	Session     SessionID // "" for a box
	Agent       AgentID
	Owner       KeyID
	Person      UserID // whose key Owner is; "" = a program's
	Environment EnvironmentID
	Host        string       // of the process that asks
	Credential  CredentialID // that would be used
}

// Subject is a session as a kill sees it.
func (c *SessionConfig) Subject(id SessionID) KillSubject {
	return KillSubject{Session: id, Agent: c.Agent.ID, Owner: c.Owner.Key, Person: c.Owner.User,
		Environment: c.Environment}
}

// Covers reports whether the kill is in force for a subject.
func (k *Kill) Covers(s KillSubject) bool {
	if !k.LiftedAt.IsZero() {
		return false
	}
	is := func(id string) bool { return id != "" && id == k.Target }
	switch k.Scope {
	case KillAll:
		return true
	case KillSession:
		return is(string(s.Session))
	case KillAgent:
		return is(string(s.Agent))
	case KillOwner:
		return is(string(s.Owner)) || is(string(s.Person))
	case KillEnvironment:
		return is(string(s.Environment))
	case KillHost:
		return is(s.Host)
	case KillCredential:
		return is(string(s.Credential))
	}
	return true // a scope that a newer program wrote: nobody here knows whom it spares
}

// Error says what the kill means for somebody who wanted something.
func (k *Kill) Error() string {
	text := "the kill switch is thrown for " + string(k.Scope)
	if k.Target != "" {
		text += " " + k.Target
	}
	if k.Reason != "" {
		text += ": " + k.Reason
	}
	return text
}

// Closes is what the approvals that a kill ends say of it: who ended them and why. Nobody has answered.
func (k *Kill) Closes(at time.Time) *Answer {
	return &Answer{Name: "kill " + string(k.ID), Message: cmp.Or(k.Reason, "no reason was given"), At: at}
}
