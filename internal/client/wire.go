package client

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Model is a model choice as the wire returns it.
type Model struct {
	ID string `json:"id"`
}

// Agent is an agent, or a session's snapshot of one.
type Agent struct {
	ID         string            `json:"id"`
	Version    int               `json:"version"`
	Name       string            `json:"name"`
	Model      Model             `json:"model"`
	Tools      json.RawMessage   `json:"tools"`
	Metadata   map[string]string `json:"metadata"`
	ArchivedAt *time.Time        `json:"archived_at"`
}

// Environment is an environment.
type Environment struct {
	ID         string          `json:"id"`
	Name       string          `json:"name"`
	Config     json.RawMessage `json:"config"`
	ArchivedAt *time.Time      `json:"archived_at"`
}

// Session is a session.
type Session struct {
	ID            string            `json:"id"`
	Status        string            `json:"status"`
	Title         string            `json:"title"`
	Metadata      map[string]string `json:"metadata"`
	Agent         Agent             `json:"agent"`
	EnvironmentID string            `json:"environment_id"`
	CreatedAt     time.Time         `json:"created_at"`
	UpdatedAt     time.Time         `json:"updated_at"`
	ArchivedAt    *time.Time        `json:"archived_at"`
	Usage         Usage             `json:"usage"`
	Stats         Stats             `json:"stats"`
	Resources     []Resource        `json:"resources"`
	Own           *SessionOwn       `json:"outboard"` // where it is asked for
}

// SessionOwn is what Outboard says of a session besides the wire.
type SessionOwn struct {
	ParentID string `json:"parent_id"`     // "" = not a fork
	ForkedAt int64  `json:"forked_at_seq"` // the last event shared with it
	Seq      int64  `json:"seq"`           // of its last event
	Owner    Owner  `json:"owner"`
}

// Owner is whose a session is.
type Owner struct {
	UserID string `json:"user_id"` // "" = it is no person's
	KeyID  string `json:"key_id"`
	Name   string `json:"name"` // of the key
}

// Usage counts tokens.
type Usage struct {
	Input     int64 `json:"input_tokens"`
	Output    int64 `json:"output_tokens"`
	CacheRead int64 `json:"cache_read_input_tokens"`
	ListCost  *struct {
		Amount string `json:"amount"` // in cents
	} `json:"list_cost"` // nil where nothing was priced
}

// Tokens is their sum.
func (u *Usage) Tokens() int64 { return u.Input + u.CacheRead + u.Output }

// Cost is the list cost in dollars, such as 0.12, and "" where nothing was priced.
func (u *Usage) Cost() string {
	if u.ListCost == nil {
		return ""
	}
	cents, err := strconv.ParseInt(u.ListCost.Amount, 10, 64)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d.%02d", cents/100, cents%100)
}

// Stats are a session's times.
type Stats struct {
	Duration float64 `json:"duration_seconds"`
	Active   float64 `json:"active_seconds"`
}

// Resource is a file mounted into a session.
type Resource struct {
	ID        string `json:"id,omitempty"`
	Type      string `json:"type"`
	FileID    string `json:"file_id"`
	MountPath string `json:"mount_path,omitempty"`
}

// File is a stored file.
type File struct {
	ID           string    `json:"id"`
	Filename     string    `json:"filename"`
	Size         int64     `json:"size_bytes"`
	Downloadable bool      `json:"downloadable"`
	CreatedAt    time.Time `json:"created_at"`
}

// NewSession is what a session is made from. Agent is a string id or an object of the wire.
type NewSession struct {
	Agent         any               `json:"agent"`
	EnvironmentID string            `json:"environment_id"`
	Title         string            `json:"title,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	Resources     []Resource        `json:"resources,omitempty"`
	VaultIDs      []string          `json:"vault_ids,omitempty"`
	InitialEvents []any             `json:"initial_events,omitempty"`
	Budget        any               `json:"budget,omitempty"`
}

// Overrides is the agent of a session that differs from the stored one.
type Overrides struct {
	Type  string `json:"type"` // agent_with_overrides
	ID    string `json:"id"`
	Model string `json:"model,omitempty"`
	Tools any    `json:"tools,omitempty"`
}

// Content is one block of a message; only text is of interest here.
type Content struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// Text joins the text blocks.
func Text(blocks []Content) string {
	var s strings.Builder
	for _, b := range blocks {
		if b.Type == "text" {
			s.WriteString(b.Text)
		}
	}
	return s.String()
}

// Event is one event of a session as the wire shows it. Raw is the whole object.
type Event struct {
	ID          string          `json:"id"`
	Type        string          `json:"type"`
	ProcessedAt time.Time       `json:"processed_at"`
	Seq         int64           `json:"seq"`         // of Outboard's own events, and of all when they are asked for
	ReceivedAt  time.Time       `json:"received_at"` // of a queued one, when Outboard's own events are asked for
	Raw         json.RawMessage `json:"-"`
}

// At is when the event was processed or, while it is queued, when it came; zero where that was not asked for.
func (e *Event) At() time.Time {
	if e.ProcessedAt.IsZero() {
		return e.ReceivedAt
	}
	return e.ProcessedAt
}

// Decode reads the event's fields into v.
func (e *Event) Decode(v any) error { return json.Unmarshal(e.Raw, v) }

// UnmarshalJSON keeps the whole object beside the common fields.
func (e *Event) UnmarshalJSON(b []byte) error {
	var plain struct {
		ID          string     `json:"id"`
		Type        string     `json:"type"`
		ProcessedAt *time.Time `json:"processed_at"`
		Seq         int64      `json:"seq"`
		ReceivedAt  time.Time  `json:"received_at"`
	}
	if err := json.Unmarshal(b, &plain); err != nil {
		return err
	}
	*e = Event{ID: plain.ID, Type: plain.Type, Seq: plain.Seq, ReceivedAt: plain.ReceivedAt,
		Raw: append(json.RawMessage(nil), b...)}
	if plain.ProcessedAt != nil {
		e.ProcessedAt = *plain.ProcessedAt
	}
	return nil
}

// MarshalJSON returns the whole object.
func (e Event) MarshalJSON() ([]byte, error) { return e.Raw, nil }

// UserMessage is the client event that says something to the session.
func UserMessage(text string) any {
	return map[string]any{"type": "user.message", "content": []Content{{Type: "text", Text: text}}}
}

// Interrupt is the client event that makes the session stop what it does.
func Interrupt() any { return map[string]any{"type": "user.interrupt"} }

// CustomResult is the client event that gives the result of a call of a tool that only clients have.
func CustomResult(call, text string) any {
	return map[string]any{"type": "user.custom_tool_result", "custom_tool_use_id": call,
		"content": []Content{{Type: "text", Text: text}}}
}

// Confirmation is the client event that answers an ask.
func Confirmation(call string, allow bool, message string) any {
	m := map[string]any{"type": "user.tool_confirmation", "tool_use_id": call, "result": "deny"}
	if allow {
		m["result"] = "allow"
	} else if message != "" {
		m["deny_message"] = message
	}
	return m
}
