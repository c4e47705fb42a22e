package outboard

import (
	"slices"
	"time"
)

// State is where a session is: the fold of its log. It is the only definition of that; the harness decides from
// it and the runner acts on it. A State belongs to one goroutine.
type State struct {
	Header

	Config  SessionConfig
	Turn    int   // number of the current or last turn
	TurnSeq int64 // seq of that turn's turn.started: what came after it belongs to the turn
	InTurn  bool  // a turn was started and has not ended for good (it may be parked or retrying)
	Waiting []Input
	History []*Message // nobody changes one

	Calls        []*Call   // of the last model response, in its order, until all have finished
	Request      EventID   // the model call in flight, or ""
	Attempt      int       // failed attempts of the model call that is due, since the last success
	FailingSince time.Time // when the first of them failed; it means nothing while there is none
	ModelCalls   int       // finished model calls of this turn
	Futile       int       // the newest of them in a row that made calls, and only such as cannot be made
	Context      int64     // tokens of the last model call, response included: how full the context is

	// the last response, but for its Raw, when it made no calls and nothing was said since: the turn is over
	Final       *ModelFinished
	Failed      *TurnFailed // the turn failed and has not ended yet
	Compactions int         // compactions in a row with at most one model call between two of them

	Sandbox    *SandboxReady // the machine in use, nil when none was made or it was lost
	Checkpoint CheckpointID  // the newest checkpoint
	Taint      Taint         // of everything it has read and done

	rewinds []Rewind // the conversation's rewinds that the fold was made for
	live    []span   // the parts of the log that the conversation has, from the current one on; nil = all of it

	draft  Message // assistant blocks appended before their ModelFinished
	shared bool    // a Clone has the same History: no element of it may be written to
	said   int64   // about what the History takes in memory
	fresh  int     // model calls since the last compaction
}

// Input is one waiting input event with its payload.
type Input struct {
	Event   Event
	Payload Payload
}

// Call is one tool call and how far it has come.
type Call struct {
	ID        CallID
	Requested CallRequested
	Answer    *InputConfirmation // a person's answer, once processed
	Offered   EventID            // under which a client was offered it, once an ask for it was allowed
	Started   *CallStarted       // the newest intent
	Finished  *CallFinished
}

// Allowed reports whether the call may start: by policy, or by a person's answer to an ask.
func (c *Call) Allowed() bool {
	return c.Requested.Decision == Allow || c.Requested.Decision == Ask && c.Answer != nil && c.Answer.Allow
}

// Expired reports whether the call asked for an answer that did not come in time.
func (c *Call) Expired(now time.Time) bool {
	r := &c.Requested
	return c.Finished == nil && c.Answer == nil && r.Decision == Ask && !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(now)
}

// Runnable reports whether it is the platform's turn: the call may start, or has, and it is not a client's by now.
func (c *Call) Runnable() bool {
	return c.Finished == nil && c.Allowed() && !c.ForClient()
}

// ForClient reports whether a client was shown the call as its own to run. A custom tool's is not before it was
// asked about: clients run whatever they are shown.
func (c *Call) ForClient() bool {
	return c.Requested.Kind == "custom" && (c.Requested.Decision == Allow || c.Offered != "")
}

// WaitsForClient reports whether only a client can move the call: an unanswered ask, or a custom tool's result.
func (c *Call) WaitsForClient() bool {
	return c.Finished == nil && (c.Requested.Decision == Ask && c.Answer == nil || c.ForClient())
}

// WaitsAs is the id by which a client moves the call that waits for it.
func (c *Call) WaitsAs() EventID {
	if c.Offered != "" {
		return c.Offered
	}
	return c.ID
}

// Message is one entry of the conversation as the model sees it.
//
// Role "user": Content. "system": Content, a mid-conversation system message. "note": Content, something the
// platform tells the model (a lost sandbox). "summary": Content, stands for everything before it. "assistant":
// Provider, Raw (or RawBlob), Content and Uses. "tool": Results.
type Message struct {
	Role     string
	Seq      int64 // of the event that completed it
	Content  []Content
	Provider string
	Model    string
	Raw      Raw
	RawBlob  *BlobRef
	Uses     []ToolUse
	Results  []ToolResult
}

// ToolUse is a call as the model made it.
type ToolUse struct {
	ID    string // the provider's
	Call  CallID
	Name  string
	Input Raw
	Blob  *BlobRef
}

// ToolResult is a call's result as the model gets it.
type ToolResult struct {
	ToolUseID string
	Call      CallID
	Content   []Content
	IsError   bool
}

// Apply advances the state by one event, which must be the next one. ErrRewound leaves the state as it was; see there.
func (s *State) Apply(e *Event) error {
	if e.Seq != s.Head+1 {
		return Errorf(Internal, "folding session %s: event %d after %d", e.Session, e.Seq, s.Head)
	}
	if s.ID == "" {
		s.ID, s.Thread = e.Session, e.Thread
	}
	p, err := e.payload()
	if err != nil {
		return err
	}
	if r, ok := p.(*SessionRewound); ok && r.Conversation && !s.foreseen(e.Seq) {
		return ErrRewound
	}
	if err := Project(&s.Header, e); err != nil {
		return err
	}
	switch {
	case e.Type.IsInput():
		s.Waiting = append(s.Waiting, Input{*e, p})
	case s.alive(e.Seq):
		s.apply(e, p)
	default:
		s.pass(p)
	}
	return nil
}

func (s *State) apply(e *Event, p Payload) {
	switch p := p.(type) {
	case *SessionCreated:
		s.Config = p.Config
		s.Phase = PhaseIdle
	case *SessionUpdated:
		s.update(p)
	case *SessionForked:
		s.forked(e, p)
	case *SessionRewound:
		s.rewound(e, p)
	case *InputProcessed:
		s.process(e, p.Input)
	case *TurnStarted:
		s.Turn, s.TurnSeq, s.InTurn, s.ModelCalls, s.Attempt, s.Futile = p.Turn, e.Seq, true, 0, 0, 0
		s.Final, s.Failed = nil, nil
	case *TurnEnded:
		s.InTurn = p.Stop.Type == "requires_action" || p.Stop.Type == StopBudget
		s.Attempt, s.Final, s.Failed = 0, nil, nil
	case *TurnFailed:
		s.Failed = p
	case *TurnRetrying:
		s.Attempt, s.FailingSince = p.Attempt, p.Since
	case *SandboxReady:
		s.Sandbox = p
	case *SandboxLost:
		s.lose(e, p)
	case *CheckpointCreated:
		s.Checkpoint = p.Checkpoint
	case *ContextCompacted:
		s.History, s.said = nil, 0
		s.say(&Message{Role: "summary", Seq: e.Seq, Content: []Content{Text(p.Summary)}})
		s.Context, s.Attempt, s.fresh = 0, 0, 0
		s.Compactions++
	default:
		s.applyModel(e, p)
	}
}

// applyModel folds the events of model responses and calls.
func (s *State) applyModel(e *Event, p Payload) {
	switch p := p.(type) {
	case *ModelStarted:
		s.Request, s.draft, s.Final = e.ID, Message{Role: "assistant", Model: p.Model}, nil
	case *ModelFailed:
		s.Request, s.draft = "", Message{}
		if p.Pictures {
			s.leaveOut()
		}
	case *AgentMessage:
		s.draft.Content = append(s.draft.Content, p.Content...)
	case *CallRequested:
		s.draft.Uses = append(s.draft.Uses, ToolUse{p.ToolUseID, e.ID, p.Name, p.Input, p.InputBlob})
		s.Calls = append(s.Calls, &Call{ID: e.ID, Requested: *p})
	case *ModelFinished:
		s.respond(e, p)
	case *CallOffered:
		if c := s.Call(p.Call); c != nil {
			c.Offered = e.ID
		}
	case *CallStarted:
		if c := s.Call(p.Call); c != nil {
			c.Started = p
		}
	case *CallFinished:
		s.finish(e, p)
	}
}

// respond ends a model call with the draft as its response.
func (s *State) respond(e *Event, p *ModelFinished) {
	m := s.draft
	m.Seq, m.Provider, m.Raw, m.RawBlob = e.Seq, p.Provider, p.Raw, p.RawBlob
	s.say(&m)
	s.Request, s.draft, s.Attempt = "", Message{}, 0
	s.ModelCalls++
	if s.Futile++; len(m.Uses) == 0 || slices.ContainsFunc(s.Calls,
		func(c *Call) bool { return !c.Requested.Futile() }) {
		s.Futile = 0
	}
	if s.fresh++; s.fresh > 1 {
		s.Compactions = 0
	}
	s.Context = p.Usage.Input + p.Usage.CacheRead + p.Usage.CacheWrite5m + p.Usage.CacheWrite1h + p.Usage.Output
	if len(m.Uses) == 0 {
		final := *p
		final.Raw, final.RawBlob = nil, nil // which the conversation has
		s.Final = &final
	}
}

// say adds to the conversation.
func (s *State) say(m *Message) {
	s.History = append(s.History, m)
	s.said += m.size()
}

// Call returns an open call of the last response, or nil.
func (s *State) Call(id CallID) *Call {
	for _, c := range s.Calls {
		if c.ID == id {
			return c
		}
	}
	return nil
}

// finish records an outcome, gives the result to the conversation, and drops the batch once all its calls have
// finished.
func (s *State) finish(e *Event, p *CallFinished) {
	c := s.Call(p.Call)
	if c == nil || c.Finished != nil {
		return // the store refuses a second outcome; see call_outcome in internal/store
	}
	c.Finished = p
	s.Taint = s.Taint.Or(p.Taint)
	i := len(s.History)
	for i > 0 && s.History[i-1].Role != "assistant" {
		i--
	}
	if i < len(s.History) && s.shared {
		s.History, s.shared = slices.Clone(s.History), false
	}
	m := Message{Role: "tool"}
	if i == len(s.History) || s.History[i].Role != "tool" {
		s.History = slices.Insert(s.History, i, nil)
		s.said += messageSize
	} else {
		m = *s.History[i]
	}
	s.History[i] = &m
	m.Seq = e.Seq
	m.Results = append(slices.Clip(m.Results), ToolResult{c.Requested.ToolUseID, c.ID, p.Content, p.IsError})
	s.said += blockSize + sizeOf(p.Content)
	for _, c := range s.Calls {
		if c.Finished == nil {
			return
		}
	}
	s.Calls = nil
}

// process takes an input out of the inbox and lets it have its effect.
func (s *State) process(e *Event, id EventID) {
	for i, in := range s.Waiting {
		if in.Event.ID != id {
			continue
		}
		s.Waiting = append(s.Waiting[:i:i], s.Waiting[i+1:]...)
		switch p := in.Payload.(type) {
		case *InputMessage:
			s.say(&Message{Role: "user", Seq: e.Seq, Content: p.Content})
			s.Final = nil
		case *InputSystem:
			s.say(&Message{Role: "system", Seq: e.Seq, Content: p.Content})
			s.Final = nil
		case *InputConfirmation:
			if c := s.Call(p.Call); c != nil && c.Answer == nil {
				c.Answer = p
			}
		}
		return
	}
}

// lose forgets the machine and leaves the model a note about it.
func (s *State) lose(e *Event, p *SandboxLost) {
	s.Sandbox = nil
	text := "The sandbox was lost (" + p.Reason + "). Its running processes and shell state are gone"
	if p.Restore != "" {
		text += "; files come back as they were at the last checkpoint."
	} else {
		text += "; no checkpoint existed, so the workspace starts empty."
	}
	s.say(&Message{Role: "note", Seq: e.Seq, Content: []Content{Text(text)}})
	s.Checkpoint = p.Restore
}

func (s *State) update(p *SessionUpdated) {
	if p.Tools != nil {
		s.Config.Agent.Tools = *p.Tools
	}
	if p.MCPServers != nil {
		s.Config.Agent.MCPServers = *p.MCPServers
	}
	if p.Resources != nil {
		s.Config.Resources = *p.Resources
	}
	if p.Budget != nil {
		s.Config.Budget = *p.Budget
	}
}

// Clone returns a copy that can be advanced without changing s, in a time that does not depend on the length of
// the history. Payloads are shared, since nobody changes one; so is the history, until the copy adds to it.
func (s *State) Clone() *State {
	s.shared = true
	c := *s
	c.Waiting, c.History, c.Calls = slices.Clone(s.Waiting), slices.Clip(s.History), slices.Clone(s.Calls)
	for i, call := range c.Calls {
		c.Calls[i] = new(*call)
	}
	c.draft.Content, c.draft.Uses = slices.Clip(s.draft.Content), slices.Clip(s.draft.Uses)
	return &c
}

// Assume applies an event that is not in the log yet, made by NewEvent, as if it had been appended next. It is
// for looking ahead on a Clone: what is assumed is not durable, and nothing outside may depend on it.
func (s *State) Assume(e Event) {
	e.Session, e.Seq, e.Time = s.ID, s.Head+1, s.LastAt.Add(EventSpacing)
	if err := s.Apply(&e); err != nil {
		panic("outboard: assuming " + string(e.Type) + ": " + err.Error()) // NewEvent's events always decode
	}
}

// Fold applies all events of a log to a new state. It is for tests and tools; the runner folds as it reads.
func Fold(events []Event) (*State, error) {
	var rewinds []Rewind
	for i := range events {
		if events[i].Type != TypeSessionRewound {
			continue
		}
		p, err := events[i].Decode()
		if err != nil {
			return nil, err
		}
		if r := p.(*SessionRewound); r.Conversation {
			rewinds = append(rewinds, Rewind{events[i].Seq, r.To})
		}
	}
	s, err := NewState(rewinds)
	if err != nil {
		return nil, err
	}
	for i := range events {
		if err := s.Apply(&events[i]); err != nil {
			return nil, err
		}
	}
	return s, nil
}
