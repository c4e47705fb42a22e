package guest

import (
	"bytes"
	"encoding/json"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// helloHead is the head of the request by which a host asks a guest who it is. It and the head of its answer are
// JSON in every version of the protocol, so that a host and a guest that do not understand each other can tell.
var helloHead = []byte(`{"op":"hello","arg":null}`)

// requestHead is the head of a request.
type requestHead struct {
	Op   string
	Arg  []byte // a message, whose type is the operation's business
	More bool   // data frames follow
}

// newHead encodes the head of a request. Arg is nil where the operation has none.
func newHead(op string, arg form.Message, more bool) []byte {
	if op == opHello {
		return helloHead
	}
	h := requestHead{Op: op, More: more}
	if arg != nil {
		h.Arg = form.Encode(arg)
	}
	return form.Encode(&h)
}

// readHead decodes it.
func readHead(b []byte) (h requestHead, err error) {
	if bytes.Equal(b, helloHead) {
		return requestHead{Op: opHello}, nil
	}
	err = form.DecodeText(b, &h)
	return h, err
}

// readHello decodes the answer of a guest of any version.
func readHello(head []byte) (h Hello, err error) {
	err = json.Unmarshal(head, &h)
	return h, err
}

// Fields returns those of the head of a request.
func (h *requestHead) Fields() []any { return []any{&h.Op, &h.Arg, &h.More} }

// Fields returns what is sent of a call; its input is the body.
func (s *Start) Fields() []any {
	return []any{&s.Key, &s.Epoch, &s.Generation, &s.Digest, &s.Op, &s.Shell, &s.TimeoutMs, &s.OutputLimit}
}

// Fields returns what is sent of an outcome; its output is the body.
func (r *Result) Fields() []any {
	return []any{&r.Key, &r.State, &r.Cause, &r.ExitCode, &r.Truncated, &r.FullPath, &r.DurationUs}
}

// Fields returns those of a refusal.
func (e *Error) Fields() []any { return []any{&e.Code, &e.Message} }

// Fields returns those of a request to save.
func (s *Save) Fields() []any { return []any{&s.Epoch, &s.Base, &s.Next} }

// Fields returns those of its answer.
func (s *Saved) Fields() []any { return []any{&s.Changed, &s.Full, &s.Entries, &s.Bytes} }

func (a *keyArg) Fields() []any { return []any{&a.Key, &a.Epoch} }

func (a *waitArg) Fields() []any { return []any{&a.Key, &a.Epoch, &a.Lines} }

func (a *loadArg) Fields() []any { return []any{&a.Label} }

func (a *fileArg) Fields() []any { return []any{&a.Path, &a.Mode, &a.ReadOnly} }

func (a *dialArg) Fields() []any { return []any{&a.Port} }

func (a *fsArg) Fields() []any {
	return []any{form.Raw(&a.Path), &a.User, &a.Whole, form.Raw(&a.To), &a.Depth, &a.Offset, &a.Length, &a.Attrs,
		&a.Recursive}
}

// Fields returns what is sent of a name's description.
func (e *Entry) Fields() []any {
	return []any{form.Raw(&e.Path), &e.Kind, &e.Size, &e.Mode, &e.Owner, &e.Group, &e.ModTime, form.Raw(&e.Target),
		&e.Attrs}
}

func (a *processStart) Fields() []any {
	p := &a.ProcessStart
	return []any{&p.Argv, &p.Env, &p.Cwd, &p.User, &p.Stdin, form.Maybe(&p.Terminal), &p.Tag, &p.TimeoutMs, &p.Program,
		&p.Patient, &p.HangUp,
		&a.Attach}
}

// Fields returns those of a terminal's size.
func (s *Size) Fields() []any { return []any{&s.Cols, &s.Rows} }

// Fields returns those of a process's name.
func (r *ProcessRef) Fields() []any { return []any{&r.Pid, &r.Tag} }

func (a *processAttach) Fields() []any { return append(a.ProcessRef.Fields(), &a.From) }

func (a *processControl) Fields() []any {
	return append(append(a.ProcessRef.Fields(), a.Size.Fields()...), &a.Signal)
}

// Fields returns what is sent of a process's end.
func (e *ProcessExit) Fields() []any { return []any{&e.Code, &e.Signal, &e.Timeout} }
