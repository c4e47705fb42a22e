package llm

import (
	"sync"
	"weak"

	"github.com/outboard-dev/outboard"
)

// Bounds of what script models remember. It saves time and changes no answer: a position follows from the
// request alone.
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

// counted are the sizes of conversations, located what script/steps has counted of their turns that are over.
var (
	counted prefixes[int64]
	located prefixes[counts]
)

// counts is what earlier turns leave of a position: their responses, and those since the newest user message.
type counts struct{ responses, since int }

// prefixes are what was found of the beginnings of conversations, so that a long one is not gone through at each
// model call.
type prefixes[T any] struct {
	mu   sync.Mutex
	kept map[string]prefix[T]
}

// prefix is what was found of the first messages of a conversation, the last of which is a response: what comes
// before it does not change any more. The pointers keep no conversation in memory.
type prefix[T any] struct {
	messages    int
	first, last weak.Pointer[outboard.Message]
	found       T
}

// of returns what is known of the beginning of a conversation; the zero prefix is nothing.
func (c *prefixes[T]) of(req Request) prefix[T] {
	if req.CacheKey == "" {
		return prefix[T]{}
	}
	c.mu.Lock()
	k := c.kept[req.CacheKey]
	c.mu.Unlock()
	if n := k.messages; n == 0 || n > len(req.History) || k.first.Value() != req.History[0] ||
		k.last.Value() != req.History[n-1] {
		return prefix[T]{}
	}
	return k
}

// keep remembers what was found of the first n messages of a conversation.
func (c *prefixes[T]) keep(req Request, n int, found T) {
	if req.CacheKey == "" || n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.kept[req.CacheKey]; c.kept == nil || !ok && len(c.kept) >= maxCounted {
		c.kept = map[string]prefix[T]{}
	}
	c.kept[req.CacheKey] = prefix[T]{n, weak.Make(req.History[0]), weak.Make(req.History[n-1]), found}
}

// requestBytes is the size of what a request says, for deterministic usage.
func requestBytes(req Request) int64 {
	total := int64(len(req.System))
	for _, t := range req.Tools {
		total += int64(len(t.Name) + len(t.Description) + len(t.InputSchema))
	}
	k := counted.of(req)
	all, kept, n := k.found, k.found, k.messages
	for i := k.messages; i < len(req.History); i++ {
		m := req.History[i]
		if all += messageBytes(m); m.Role == "assistant" {
			kept, n = all, i+1
		}
	}
	counted.keep(req, n, kept)
	return total + all
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
