package outboard

import "slices"

// Base is where a session stood at some position of its log, all but the conversation: with the rest of the log
// it is enough to fold on from there. A summary's event carries the base of a position shortly before it, so
// that a fold of a long log need not read what the summary stands for. It says nothing that the log does not,
// and a log whose summaries have none is folded from its beginning.
type Base struct {
	Header      Header         `json:"header"` // Head is the position
	Config      SessionConfig  `json:"config"`
	Turn        int            `json:"turn,omitempty"`
	TurnSeq     int64          `json:"turn_seq,omitempty"`
	InTurn      bool           `json:"in_turn,omitempty"`
	ModelCalls  int            `json:"model_calls,omitempty"`
	Futile      int            `json:"futile,omitempty"`
	Compactions int            `json:"compactions,omitempty"`
	Fresh       int            `json:"fresh,omitempty"`   // model calls since the last summary
	Waiting     []int64        `json:"waiting,omitempty"` // positions of the inputs that waited
	Final       *ModelFinished `json:"final,omitempty"`
	Sandbox     *SandboxReady  `json:"sandbox,omitempty"`
	Checkpoint  CheckpointID   `json:"checkpoint,omitempty"`
	Taint       Taint          `json:"taint,omitzero"`
}

// maxBaseInputs bounds the waiting inputs a base names; each is read by itself.
const maxBaseInputs = 32

// Base returns the state's base, nil where something is half done or so much waits that the log is better read.
func (s *State) Base() *Base {
	if !s.Settled() || s.Failed != nil || len(s.draft.Content) > 0 || len(s.draft.Uses) > 0 ||
		len(s.Waiting) > maxBaseInputs {
		return nil
	}
	b := &Base{Header: s.Header, Config: s.Config, Turn: s.Turn, TurnSeq: s.TurnSeq, InTurn: s.InTurn,
		ModelCalls: s.ModelCalls,
		Futile:     s.Futile, Compactions: s.Compactions, Fresh: s.fresh, Final: s.Final, Sandbox: s.Sandbox, Checkpoint: s.Checkpoint, Taint: s.Taint}
	for _, in := range s.Waiting {
		b.Waiting = append(b.Waiting, in.Event.Seq)
	}
	return b
}

// Base returns what a summary's event carries, nil when that is nothing, or cannot be a position of the log
// before the event.
func (e *Event) Base() (*Base, error) {
	p, err := e.payload()
	if err != nil {
		return nil, err
	}
	c, ok := p.(*ContextCompacted)
	if !ok || c.Base == nil || c.Base.Header.Head < 1 || c.Base.Header.Head >= e.Seq {
		return nil, nil
	}
	return c.Base, nil
}

// Rebase takes a state that NewState has just made to the base of a summary's event, from where the log is
// folded on. It reports false, and leaves the state as it was, where the conversation has given the summary or
// the base up. waiting are the events that the base names.
func (s *State) Rebase(summary *Event, b *Base, waiting []Event) (bool, error) {
	if len(s.live) > 0 && !slices.ContainsFunc(s.live,
		func(p span) bool { return b.Header.Head > p.after && summary.Seq <= p.upto }) {
		return false, nil
	}
	inputs := make([]Input, len(waiting))
	for i := range waiting {
		p, err := waiting[i].payload()
		if err != nil {
			return false, err
		}
		inputs[i] = Input{waiting[i], p}
	}
	s.Header, s.ID, s.Thread = b.Header, summary.Session, summary.Thread // a fork's are not its parent's
	s.Config, s.Turn, s.TurnSeq, s.InTurn, s.ModelCalls, s.Futile = b.Config, b.Turn, b.TurnSeq, b.InTurn, b.ModelCalls, b.Futile
	s.Compactions, s.fresh, s.Waiting, s.Final = b.Compactions, b.Fresh, inputs, b.Final
	s.Sandbox, s.Checkpoint, s.Taint = b.Sandbox, b.Checkpoint, b.Taint
	return true, nil
}
