package outboard

// What parts of a conversation take in memory beyond their text, by their sizes in Go and what refers to them.
const (
	messageSize = 256
	blockSize   = 256
	stateSize   = 4 << 10
)

// Size is about how much memory the state takes: what it holds, not what was read for it. It does not depend on
// the history's length how long that takes to say.
func (s *State) Size() int64 {
	n := stateSize + s.said + s.draft.size() + s.Config.Agent.Size()
	n += blockSize * int64(len(s.Config.Resources)+len(s.Metadata)+len(s.rewinds))
	for i := range s.Waiting {
		n += messageSize + 2*int64(len(s.Waiting[i].Event.Data)) // the event and its payload
	}
	for _, c := range s.Calls {
		n += messageSize + int64(len(c.Requested.Input))
		if c.Finished != nil {
			n += blockSize
		}
	}
	return n
}

// Size is about how much memory the agent takes.
func (a *Agent) Size() int64 {
	n := int64(len(a.System))
	for _, set := range a.Tools {
		n += blockSize + int64(len(set.Description)+len(set.InputSchema)) + blockSize*int64(len(set.Configs))
	}
	return n
}

// Size is about how much memory the config takes.
func (c *EnvConfig) Size() (n int64) {
	for _, h := range c.Networking.AllowedHosts {
		n += int64(len(h))
	}
	for _, r := range c.Networking.Rules {
		n += blockSize + int64(len(r.Host)+len(r.Path))
	}
	for _, list := range c.Packages {
		for _, p := range list {
			n += int64(len(p))
		}
	}
	return n
}

// size is about how much memory the message takes.
func (m *Message) size() int64 {
	n := messageSize + int64(len(m.Raw)) + sizeOf(m.Content)
	for _, u := range m.Uses {
		n += blockSize + int64(len(u.Input))
	}
	for _, r := range m.Results {
		n += blockSize + sizeOf(r.Content)
	}
	return n
}

// sizeOf is about how much memory blocks take.
func sizeOf(blocks []Content) int64 {
	var n int64
	for i := range blocks {
		b := &blocks[i]
		n += blockSize + int64(len(b.Text)+len(b.Title)+len(b.Context)) + sizeOf(b.Parts)
		if b.Source != nil {
			n += blockSize + int64(len(b.Source.Data)+len(b.Source.URL))
		}
	}
	return n
}
