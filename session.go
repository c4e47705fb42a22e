package outboard

import "time"

// SessionConfig is what a session was started with, after overrides: immutable but for the fields
// session.updated names.
type SessionConfig struct {
	Agent       Agent         `json:"agent"`
	Environment EnvironmentID `json:"environment_id"`
	Env         EnvConfig     `json:"env"`
	Resources   []Resource    `json:"resources,omitempty"`
	VaultIDs    []string      `json:"vault_ids,omitempty"`
	Owner       Owner         `json:"owner,omitzero"`   // for whom the session acts
	Budget      Cost          `json:"budget,omitempty"` // most list cost of the session and its forks; 0 = no bound
}

// Resource is something mounted into a session's sandbox. Kind is "file" (FileID, MountPath, Origin).
type Resource struct {
	ID        ResourceID `json:"id"`
	Kind      string     `json:"kind"`
	File      FileID     `json:"file_id,omitempty"` // the session's own copy
	Origin    FileID     `json:"origin,omitempty"`  // the uploaded file it was copied from
	MountPath string     `json:"mount_path,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
}

// Phase is where a session's only thread stands. It is the stored form of the wire's status.
type Phase string

// The phases. Idle covers waiting for a message and waiting for an answer (Header.Stop tells which).
const (
	PhaseIdle       Phase = "idle"
	PhaseRunning    Phase = "running"
	PhaseRetrying   Phase = "rescheduling"
	PhaseTerminated Phase = "terminated"
)

// StopReason says why a session went idle.
type StopReason struct {
	Type     string    `json:"type"` // end_turn, requires_action, retries_exhausted, budget_reached, refusal
	EventIDs []EventID `json:"event_ids,omitempty"`
}

// Header is a session's row: everything a list, a claim or a permission check needs without reading the log. The store
// keeps it in step with the log by applying Project in the transaction that appends.
type Header struct {
	ID     SessionID   `json:"id"`
	Thread ThreadID    `json:"thread_id"` // the primary thread
	Head   int64       `json:"head"`      // seq of the last event, 0 before the first
	LastAt time.Time   `json:"last_at"`   // time of the last event
	Phase  Phase       `json:"phase"`
	Stop   *StopReason `json:"stop,omitempty"` // set while idle after a turn
	Inbox  int         `json:"inbox"`          // messages not yet processed
	Urgent int         `json:"urgent"`         // interrupts and answers not yet processed
	// a timer: when a retrying session, or a parked one, becomes claimable
	WakeAt        time.Time         `json:"wake_at,omitzero"`
	Usage         Usage             `json:"usage"`
	Active        time.Duration     `json:"active"`                 // sum of finished running spells
	RunningSince  time.Time         `json:"running_since,omitzero"` // start of the current one
	Title         string            `json:"title,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	AgentID       AgentID           `json:"agent_id"`
	AgentVersion  int               `json:"agent_version"`
	EnvironmentID EnvironmentID     `json:"environment_id"`
	CreatedAt     time.Time         `json:"created_at"`
	UpdatedAt     time.Time         `json:"updated_at"`
	ArchivedAt    time.Time         `json:"archived_at,omitzero"`
	Org           OrgID             `json:"-"`      // whose it is; the store fills it in
	User          UserID            `json:"-"`      // the person it acts for, "" = a machine's key
	Epoch         int64             `json:"epoch"`  // raised by every claim
	Worker        WorkerID          `json:"worker"` // who holds the lease, or ""
}

// Parked reports whether the session waits for answers to its calls.
func (h *Header) Parked() bool {
	return h.Phase == PhaseIdle && h.Stop != nil && h.Stop.Type == "requires_action"
}

// Broke reports whether the session waits for a budget to be raised.
func (h *Header) Broke() bool {
	return h.Phase == PhaseIdle && h.Stop != nil && h.Stop.Type == StopBudget
}

// StopBudget is the stop of a turn whose next model call no budget pays for. The turn goes on when one is raised.
const StopBudget = "budget_reached"

// Runnable reports whether a worker should claim the session now: it has input to take, a turn to continue, or a
// timer that is due: its retry, or the end of the time to answer an ask. Messages do not disturb a parked or a
// retrying session; answers and interrupts do.
func (h *Header) Runnable(now time.Time) bool {
	switch {
	case h.Phase == PhaseTerminated:
		return false
	case h.Urgent > 0, h.Phase == PhaseRunning:
		return true
	case h.Phase == PhaseRetrying:
		return !h.WakeAt.After(now)
	}
	if h.Parked() || h.Broke() {
		return !h.WakeAt.IsZero() && !h.WakeAt.After(now)
	}
	return h.Inbox > 0
}

// Sandbox is the row of one disposable machine. fleet is its only writer.
type Sandbox struct {
	ID          SandboxID     `json:"id"`
	Session     SessionID     `json:"session_id"` // "" for a raw sandbox
	Environment EnvironmentID `json:"environment_id,omitempty"`
	Owner       KeyID         `json:"owner,omitempty"`  // who made its session, or the box
	Person      UserID        `json:"person,omitempty"` // whose key that is; "" = a program's
	Provider    string        `json:"provider"`
	Host        string        `json:"host"`                 // which machine holds it
	Generation  string        `json:"generation"`           // random, new at every birth, never copied by a restore
	State       string        `json:"state"`                // creating, live, stopping, stopped, destroyed
	Why         string        `json:"why,omitempty"`        // it was stopped or killed
	Checkpoint  CheckpointID  `json:"checkpoint,omitempty"` // the one it was restored from
	CreatedAt   time.Time     `json:"created_at"`
	UpdatedAt   time.Time     `json:"updated_at"`
}

// Checkpoint is a saved workspace state bound to a position in the log. It begins as layers on the host that
// made it, and is durable when what changed is stored: Delta is a tar of what changed since Parent. A durable
// checkpoint's ancestors are durable.
type Checkpoint struct {
	ID      CheckpointID `json:"id"`
	Session SessionID    `json:"session_id"`
	Seq     int64        `json:"seq"`              // head of the log when it was taken
	Call    CallID       `json:"call,omitempty"`   // the call it follows
	Parent  CheckpointID `json:"parent,omitempty"` // "" when Delta is the whole workspace
	Depth   int          `json:"depth"`            // number of ancestors
	Prior   CheckpointID `json:"prior,omitempty"`  // the state before it, which Parent need not be
	// has its layers and is to store its Delta; "" once that is done, or can never be
	Host string `json:"host,omitempty"`
	// zero until it is durable; a size without a digest is more than can be stored
	Delta     BlobRef   `json:"delta,omitzero"`
	CreatedAt time.Time `json:"created_at"`
	DurableAt time.Time `json:"durable_at,omitzero"`
	// it was given up, as one of many old ones; soon after Delta is zero
	ThinnedAt time.Time `json:"thinned_at,omitzero"`
}

// Durable reports whether the checkpoint can be restored on any host.
func (c *Checkpoint) Durable() bool { return c.Delta.Digest != "" }

// Lost says why the checkpoint will never be durable, with what to do about it; nil = it is, or will be.
func (c *Checkpoint) Lost() error {
	switch {
	case c.Thinned():
		return Errorf(Conflict, "checkpoint %s is not kept: it was one of many old ones", c.ID).
			WithHint("choose another: outboard checkpoint ls")
	case c.Durable() || c.Host != "":
		return nil
	case c.TooLarge():
		return Errorf(Unavailable, "checkpoint %s is not stored: what changed up to it is more than the %d GiB that "+
			"can be", c.ID, c.Delta.Size>>30).
			WithHint("the session goes on with its sandbox; remove large files from its workspace, and a later " +
				"checkpoint is stored again")
	}
	return Errorf(Unavailable, "checkpoint %s was lost with the host that had it", c.ID)
}

// Thinned reports whether the checkpoint was given up as one of many old ones. Nothing may begin with it.
func (c *Checkpoint) Thinned() bool { return !c.ThinnedAt.IsZero() }

// TooLarge reports whether the checkpoint will never be durable because it, or one that it builds on, changed
// more than can be stored.
func (c *Checkpoint) TooLarge() bool { return c.Host == "" && !c.Durable() && c.Delta.Size > 0 }

// File is stored bytes with a name. Session is set for files that belong to a session: copies of uploads mounted
// into it (Downloadable false) and deliverables harvested from /mnt/session/outputs (Downloadable true).
type File struct {
	ID           FileID    `json:"id"`
	Filename     string    `json:"filename"`
	MediaType    string    `json:"mime_type"`
	Blob         BlobRef   `json:"blob"`
	Downloadable bool      `json:"downloadable"`
	Session      SessionID `json:"session_id,omitempty"`
	Path         string    `json:"path,omitempty"` // below the outputs directory, for harvested files
	CreatedAt    time.Time `json:"created_at"`
	ExpiresAt    time.Time `json:"expires_at,omitzero"`
	Org          OrgID     `json:"-"` // whose it is
}
