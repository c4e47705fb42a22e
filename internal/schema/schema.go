// Package schema holds the input of a tool to the JSON Schema that its author gave.
//
// Invariants:
//   - Schemas come from users and inputs from models, so neither is trusted. A schema refers to
//     nothing outside itself, its patterns are RE2, and its size, its depth and the work of one
//     check are bounded.
//   - An error is a sentence of bounded length that both a person and a model can act on.
//   - A check depends on the schema and the input alone: the same pair always gets the same text.
//
// Keywords are those of draft 2020-12, or of the older draft that "$schema" names. "format" is a
// remark and never a reason to refuse. It never loads anything.
//
// Start reading at Compile.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// MaxBytes bounds one schema. Nothing states a limit for it; the largest that tools come with have some 20 KiB.
	MaxBytes = 64 << 10
	// maxNodes bounds the objects and booleans of a schema, and maxRefs their number times that of the
	// references among them: to compile takes time in proportion to it.
	maxNodes = 3000
	maxRefs  = 1 << 20
	// maxPaths bounds the paths of all of them together, which the compiled form holds.
	maxPaths = 1 << 20
	// maxSchemaDepth and maxChain bound how deeply schemas nest, by writing and by reference: together with
	// maxInputDepth they bound the stack of a check.
	maxSchemaDepth = 64
	maxChain       = 64
	// maxInputDepth bounds how deeply an input nests.
	maxInputDepth = 256
	// maxExponent and maxDigits bound a number: it is computed with exactly.
	maxExponent = 400
	maxDigits   = 400
	// maxProgram bounds the patterns of a schema together, in instructions of their compiled form.
	maxProgram = 20_000
	// maxWork bounds one check, in steps of a microsecond or two: combined schemas can multiply into more work
	// than any machine has. An input of 500 KB takes about half of it. The deeper an input nests the more a step
	// takes, in time and memory.
	maxWork = 1 << 19
)

// base is the address of every schema. It is taken off what is shown.
const base = "outboard://tool/input_schema"

// Schema is a compiled schema. It may be used by several goroutines, which take turns.
type Schema struct {
	mu   sync.Mutex // over root's use: meter counts for one check at a time
	root *jsonschema.Schema
	work meter
}

// Compile makes a schema from its JSON text. The error says in one sentence what is wrong with it and where.
func Compile(text []byte) (s *Schema, err error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("it has %d bytes, over the limit of %d", len(text), MaxBytes)
	}
	doc, err := decode(text)
	if err != nil {
		return nil, err
	}
	if err := measure(doc); err != nil {
		return nil, err
	}
	defer func() { // of the compiler, on a schema that it did not foresee
		if p := recover(); p != nil {
			s, err = nil, errors.New("it cannot be compiled")
		}
	}()
	s = new(Schema)
	c := jsonschema.NewCompiler()
	c.UseLoader(nothing{})
	c.UseRegexpEngine((&patterns{work: &s.work}).compile)
	if err := c.AddResource(base, doc); err != nil {
		return nil, explain(err)
	}
	if s.root, err = c.Compile(base); err != nil {
		return nil, explain(err)
	}
	if err := s.work.fit(s.root); err != nil {
		return nil, err
	}
	return s, nil
}

// Validate checks an input. The error says in one sentence what is wrong and where, as "/path: what", for a
// model to read.
func (s *Schema) Validate(input []byte) (err error) {
	v, err := decode(input)
	if err != nil {
		return err
	}
	depth, err := plain(v, maxInputDepth)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		switch p := recover(); p.(type) {
		case nil:
		case spent:
			err = errors.New("it takes too much work to check it against the tool's input_schema; make it smaller " +
				"or simpler")
		default: // of the validator, on what it did not foresee
			err = errors.New("it cannot be checked against the tool's input_schema")
		}
	}()
	s.work.left = maxWork / (1 + depth/8)
	if err := s.root.Validate(v); err != nil {
		return explain(err)
	}
	return nil
}

// decode reads one JSON value, with its numbers as they are written.
func decode(text []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("it is more than one JSON value")
	}
	return v, nil
}

// nothing is what a schema may load.
type nothing struct{}

// Load implements jsonschema.URLLoader.
func (nothing) Load(string) (any, error) {
	return nil, errors.New("nothing outside the schema is loaded")
}

// inside takes the schema's own address off a location in it: what is left is a JSON pointer.
func inside(location string) string {
	return strings.TrimPrefix(strings.TrimPrefix(location, base), "#")
}
