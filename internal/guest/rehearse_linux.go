package guest

import "encoding/json"

// rehearsal is a message of each kind that comes with a call, and what it is read into.
func rehearsal() []rehearsed {
	return []rehearsed{
		{`{"op":"start","arg":{}}`, new(requestHead)},
		{`{"key":"k","epoch":1,"generation":"g","digest":"d","op":"exec","input":{},"output_limit":1}`, new(Start)},
		{`{"argv":["a"],"env":{"n":"v"}}`, new(execInput)},
		{`{"command":"c"}`, new(bashInput)},
	}
}

type rehearsed struct {
	text string
	into any
}

// rehearse does with nothing what every call does, while nobody waits, or the host is about to ask. encoding/json makes tables of a type
// when it first meets it, and looks for the methods of each field when it first fills one; the journal's checksum has tables; the buffer
// for output may be what the heap has to grow for. It is a good part of what a sandbox's first call takes.
func rehearse() {
	for _, r := range rehearsal() {
		_ = json.Unmarshal([]byte(r.text), r.into) // cannot fail
	}
	_, _ = json.Marshal(Result{Key: "k", State: StateDone, ExitCode: new(int), Output: []byte{0}})               // likewise
	_, _ = encodeRecord(record{Type: recDone, Key: "k", Done: &outcome{Cause: causeExited, ExitCode: new(int)}}) // likewise
	giveBuffer(takeBuffer())
}
