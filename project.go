package outboard

import (
	"maps"
	"time"
)

// Project advances a header by one event. It is pure but for h, and it is the only code that writes the fields
// of a header that follow from the log; the store calls it for every event, in order, inside the transaction
// that appends. e.Seq and e.Time are set.
func Project(h *Header, e *Event) error {
	h.Head, h.LastAt, h.UpdatedAt = e.Seq, e.Time, e.Time
	switch {
	case e.Type.IsUrgent():
		h.Urgent++
		return nil
	case e.Type.IsInput():
		h.Inbox++
		return nil
	}
	switch e.Type {
	case TypeTurnStarted, TypeTurnResumed:
		h.run(e)
		return nil
	case TypeSessionArchived:
		h.rest(e, PhaseTerminated)
		h.ArchivedAt = e.Time
		return nil
	case TypeSessionForked:
		h.rest(e, PhaseIdle)
		h.Inbox, h.Urgent, h.Usage, h.Active, h.ArchivedAt = 0, 0, Usage{}, 0, time.Time{}
		return nil
	case TypeInputProcessed, TypeTurnRetrying, TypeTurnFailed, TypeTurnEnded, TypeModelFinished, TypeModelFailed, TypeContextCompacted,
		TypeSessionUpdated, TypeCallJudged:
		p, err := e.payload()
		if err != nil {
			return err
		}
		h.project(e, p)
	}
	return nil
}

func (h *Header) project(e *Event, p Payload) {
	switch p := p.(type) {
	case *InputProcessed:
		if p.Of.IsUrgent() {
			h.Urgent--
		} else {
			h.Inbox--
		}
	case *TurnRetrying:
		h.rest(e, PhaseRetrying)
		h.WakeAt, h.Usage = p.At, h.Usage.Add(p.Usage)
	case *TurnFailed:
		h.Usage = h.Usage.Add(p.Usage)
	case *TurnEnded:
		h.rest(e, PhaseIdle)
		stop := p.Stop
		h.Stop, h.WakeAt = &stop, p.WakeAt
	case *ModelFinished:
		h.Usage = h.Usage.Add(p.Usage)
	case *ModelFailed:
		h.Usage = h.Usage.Add(p.Usage)
	case *CallJudged:
		h.Usage = h.Usage.Add(p.Usage)
	case *ContextCompacted:
		h.Usage = h.Usage.Add(p.Usage)
	case *SessionUpdated:
		if p.Title != nil {
			h.Title = *p.Title
		}
		if p.Metadata != nil {
			h.Metadata = maps.Clone(p.Metadata)
		}
		if (p.Funded || p.Budget != nil) && h.Broke() {
			h.WakeAt = e.Time
		}
	}
}

// run marks the start of a running spell.
func (h *Header) run(e *Event) {
	if h.Phase != PhaseRunning {
		h.RunningSince = e.Time
	}
	h.Phase, h.Stop, h.WakeAt = PhaseRunning, nil, time.Time{}
}

// rest ends a running spell, if one was on, and enters phase.
func (h *Header) rest(e *Event, phase Phase) {
	if h.Phase == PhaseRunning {
		h.Active += e.Time.Sub(h.RunningSince)
	}
	h.Phase, h.Stop, h.WakeAt, h.RunningSince = phase, nil, time.Time{}, time.Time{}
}
