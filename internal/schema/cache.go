package schema

import (
	"crypto/sha256"
	"sync"
)

const (
	// maxCached bounds the text of the schemas a Cache keeps, twice over. Compiled, a schema takes up to some
	// fifty times as much.
	maxCached = 1 << 20
	// perSchema is what each counts beside its text.
	perSchema = 1 << 10
)

// Cache keeps compiled schemas by their text, and those that do not compile with the reason. What is in use
// stays. The zero value is empty and ready; it is safe for concurrent use.
type Cache struct {
	mu         sync.Mutex
	young, old map[[sha256.Size]byte]compiled
	size       int // of the texts of young
}

type compiled struct {
	schema *Schema
	err    error
	size   int
}

// Compile is the package's Compile, remembered. Fresh reports whether it had to be made.
func (c *Cache) Compile(text []byte) (s *Schema, fresh bool, err error) {
	key := sha256.Sum256(text)
	c.mu.Lock()
	known, ok := c.young[key]
	if !ok {
		if known, ok = c.old[key]; ok {
			c.keep(key, known)
		}
	}
	c.mu.Unlock()
	if ok {
		return known.schema, false, known.err
	}
	known.size = len(text) + perSchema
	known.schema, known.err = Compile(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(key, known)
	return known.schema, true, known.err
}

func (c *Cache) keep(key [sha256.Size]byte, k compiled) {
	if c.young == nil || c.size+k.size > maxCached {
		c.young, c.old, c.size = map[[sha256.Size]byte]compiled{}, c.young, 0
	}
	c.size += k.size
	c.young[key] = k
}
