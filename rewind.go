package outboard

import (
	"math"
	"slices"
	"strings"
)

// SessionForked begins what a fork adds to the log it shares with its parent: everything before it is the
// parent's. It is also how a session begins anew that was imported from a file. What was open at that point
// stays behind: waiting inputs, asks, the machine.
type SessionForked struct {
	Parent     SessionID     `json:"parent"` // of an import, the session's id where it was exported
	Seq        int64         `json:"seq"`    // the last shared event
	Checkpoint CheckpointID  `json:"checkpoint,omitempty"`
	Config     SessionConfig `json:"config"`           // the parent's at Seq, without its vaults
	Import     string        `json:"import,omitempty"` // digest of the file's manifest, when it came out of one
	// of an import: what its file is, where nobody who is trusted has signed it
	Taint Taint `json:"taint,omitzero"`
}

// EventType implements Payload.
func (*SessionForked) EventType() EventType { return TypeSessionForked }

// RefID implements Payload.
func (*SessionForked) RefID() EventID { return "" }

// SessionRewound takes a session back to where it stood right after event To: what the model remembers, the
// machine, or both. Events after To stay in the log. To is a position at which State.Settled held.
type SessionRewound struct {
	To           int64 `json:"to"`
	Conversation bool  `json:"conversation,omitempty"`
	Machine      bool  `json:"machine,omitempty"`
	// with Machine: what the next machine starts from; "" = as the session began
	Checkpoint CheckpointID `json:"checkpoint,omitempty"`
	Sandbox    SandboxID    `json:"sandbox,omitempty"` // with Machine: the one that was given up, "" = none
	By         string       `json:"by,omitempty"`      // the caller's name
}

// EventType implements Payload.
func (*SessionRewound) EventType() EventType { return TypeSessionRewound }

// RefID implements Payload.
func (*SessionRewound) RefID() EventID { return "" }

// Rewind is one session.rewound that took the conversation back: the event at Seq, to the position To.
type Rewind struct{ Seq, To int64 }

// ErrRewound is what State.Apply returns for a rewind of the conversation that the state was not made for: a
// fold cannot go back. The caller reads the log's rewinds and folds again from NewState.
var ErrRewound = Errorf(Conflict, "the conversation was rewound; fold the log again")

// span is a part of a log: after < seq <= upto.
type span struct{ after, upto int64 }

// NewState returns the state before the first event of a log whose conversation was rewound by these, in order
// of Seq. The state it comes to is that of the whole log: where the log is folded up to an event only, give the
// rewinds up to that event. Internal for rewinds that no log can have.
func NewState(rewinds []Rewind) (*State, error) {
	for i, r := range rewinds {
		if r.To < 1 || r.To >= r.Seq || i > 0 && r.Seq <= rewinds[i-1].Seq {
			return nil, Errorf(Internal, "a log cannot be rewound to %d by event %d", r.To, r.Seq)
		}
	}
	if len(rewinds) == 0 {
		return new(State), nil
	}
	return &State{rewinds: slices.Clone(rewinds), live: liveSpans(rewinds)}, nil
}

// liveSpans returns the parts of the log that the conversation consists of. A rewind to a position in a part
// that had itself been given up before brings that part back.
func liveSpans(rewinds []Rewind) []span {
	var live []span
	upto := int64(math.MaxInt64)
	for i := len(rewinds) - 1; i >= 0; i-- {
		if r := rewinds[i]; r.Seq <= upto {
			live = append(live, span{r.Seq - 1, upto})
			upto = r.To
		}
	}
	live = append(live, span{0, upto})
	slices.Reverse(live)
	return live
}

// alive reports whether the conversation has the next event. Positions are asked for in order.
func (s *State) alive(seq int64) bool {
	for len(s.live) > 0 && seq > s.live[0].upto {
		s.live = s.live[1:]
	}
	return len(s.live) == 0 || seq > s.live[0].after
}

// foreseen reports whether the state was made for the conversation's rewind at seq.
func (s *State) foreseen(seq int64) bool {
	return slices.ContainsFunc(s.rewinds, func(r Rewind) bool { return r.Seq == seq })
}

// Settled reports whether nothing is half done: no model call is in flight, and every call has its outcome. A
// session can be forked at such a position, and rewound to it.
func (s *State) Settled() bool { return s.Request == "" && len(s.Calls) == 0 }

// pass folds an event that the conversation has given up. Its effects outside the conversation stand: on the
// machine, the configuration, the inbox and the count of turns.
func (s *State) pass(p Payload) {
	switch p := p.(type) {
	case *SessionUpdated:
		s.update(p)
	case *SessionForked:
		s.fork(p)
	case *SessionRewound:
		s.back(p)
	case *InputProcessed:
		s.Waiting = slices.DeleteFunc(slices.Clone(s.Waiting), func(in Input) bool { return in.Event.ID == p.Input })
	case *TurnStarted:
		s.Turn = p.Turn
	case *SandboxReady:
		s.Sandbox = p
	case *SandboxLost:
		s.Sandbox, s.Checkpoint = nil, p.Restore
	case *CheckpointCreated:
		s.Checkpoint = p.Checkpoint
	case *CallFinished:
		s.Taint = s.Taint.Or(p.Taint)
	}
}

// fork leaves behind what does not come along: the machine, waiting inputs, the parent's open turn and its
// configuration.
func (s *State) fork(p *SessionForked) {
	s.Config, s.Sandbox, s.Checkpoint, s.Waiting, s.Taint = p.Config, nil, p.Checkpoint, nil, s.Taint.Or(p.Taint)
	s.settle()
}

// back changes the machine, where a rewind asks for it.
func (s *State) back(p *SessionRewound) {
	if p.Machine {
		s.Sandbox, s.Checkpoint = nil, p.Checkpoint
	}
}

// settle forgets what is under way.
func (s *State) settle() {
	s.Calls, s.Request, s.draft = nil, "", Message{}
	s.InTurn, s.Attempt, s.Final, s.Failed = false, 0, nil, nil
}

// forked is a session.forked of the conversation.
func (s *State) forked(e *Event, p *SessionForked) {
	had := s.Sandbox != nil || s.Checkpoint != ""
	s.fork(p)
	if had {
		s.note(e, "This session was forked from another one at this point, and has a machine of its own.",
			filesAt(p.Checkpoint),
			"Processes and shell state did not come along.")
	}
}

// rewound is a session.rewound of the conversation: what came after To was passed over.
func (s *State) rewound(e *Event, p *SessionRewound) {
	had := s.Sandbox != nil
	if p.Conversation {
		s.settle()
	}
	s.back(p)
	switch {
	case p.Machine && p.Conversation && had:
		s.note(e, "The user took this session back to this point.", filesAt(p.Checkpoint),
			"Processes and shell state are gone.")
	case p.Machine && !p.Conversation:
		s.note(e, "The user took the machine back to an earlier state.", filesAt(p.Checkpoint),
			"What was changed after that is undone, and processes and shell state are gone.")
	case p.Conversation && !p.Machine && had:
		s.note(e, "The user took this conversation back to this point, but not the machine: files may have changed "+
			"in what you do not see.")
	}
}

// filesAt says what a machine starts with.
func filesAt(c CheckpointID) string {
	if c == "" {
		return "The workspace is as it was when the session began."
	}
	return "Files are as they were at that point."
}

// note tells the model something.
func (s *State) note(e *Event, sentences ...string) {
	s.say(&Message{Role: "note", Seq: e.Seq, Content: []Content{Text(strings.Join(sentences, " "))}})
}
