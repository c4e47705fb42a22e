package llm

import (
	"sync"
	"weak"

	"github.com/outboard-dev/outboard"
)

// Bounds of what script models remember. It saves time and changes no answer: a position follows from the request alone.
const (
	// maxParsed bounds the scripts that are kept parsed, and maxParsedText the size of each.
	maxParsed     = 128
	maxParsedText = 16 << 10
	// maxCounted bounds the conversations whose size is known.
	maxCounted = 1024
)

// parsed are the scripts that messages held lately. A message is asked for its steps at every model call of its turn.
var parsed parses

type parses struct {
	mu   sync.Mutex
	kept map[string][]step
}

// steps parses a list of steps. The caller must not change them.
func (c *parses) steps(text string) ([]step, error) {
	c.mu.Lock()
	steps, ok := c.kept[text]
	c.mu.Unlock()
	if ok {
		return steps, nil
	}
	n, err := parseYAML([]byte(text))
	if err != nil {
		return nil, err
	}
	if steps, err = parseSteps(n); err != nil || len(text) > maxParsedText {
		return steps, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil || len(c.kept) >= maxParsed {
		c.kept = map[string][]step{} // what is still in use is back after one turn
	}
	c.kept[text] = steps
	return steps, nil
}

// counted are the sizes of conversations.
var counted counts

type counts struct {
	mu   sync.Mutex
	kept map[string]count
}

// count is the size of the first messages of a conversation, the last of which is the newest response: what comes before it does not
// change any more. The pointer keeps no conversation in memory.
type count struct {
	messages int
	last     weak.Pointer[outboard.Message]
	bytes    int64
}

// bytes is the size of what a request says, for deterministic usage.
func (c *counts) bytes(req Request) int64 {
	total := int64(len(req.System))
	for _, t := range req.Tools {
		total += int64(len(t.Name) + len(t.Description) + len(t.InputSchema))
	}
	c.mu.Lock()
	k := c.kept[req.CacheKey]
	c.mu.Unlock()
	if n := k.messages; req.CacheKey == "" || n == 0 || n > len(req.History) || k.last.Value() != req.History[n-1] {
		k = count{}
	}
	all := k.bytes
	for i := k.messages; i < len(req.History); i++ {
		m := req.History[i]
		all += messageBytes(m)
		if m.Role == "assistant" {
			k = count{messages: i + 1, last: weak.Make(m), bytes: all}
		}
	}
	if req.CacheKey != "" && k.messages > 0 {
		c.keep(req.CacheKey, k)
	}
	return total + all
}

func (c *counts) keep(key string, k count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.kept[key]; c.kept == nil || !ok && len(c.kept) >= maxCounted {
		c.kept = map[string]count{}
	}
	c.kept[key] = k
}

func messageBytes(m *outboard.Message) int64 {
	total := contentBytes(m.Content)
	for _, u := range m.Uses {
		total += int64(len(u.Name) + len(u.Input))
		if u.Blob != nil {
			total += u.Blob.Size
		}
	}
	for _, r := range m.Results {
		total += contentBytes(r.Content)
	}
	return total
}

func contentBytes(content []outboard.Content) int64 {
	var n int64
	for _, c := range content {
		n += int64(len(c.Text)+len(c.Title)+len(c.Context)) + contentBytes(c.Parts)
		if c.Blob != nil {
			n += c.Blob.Size
		}
		if s := c.Source; s != nil {
			n += int64(len(s.Data) + len(s.URL))
			if s.Blob != nil {
				n += s.Blob.Size
			}
		}
	}
	return n
}
