package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// Trust is what is known of a log from outside of it.
type Trust struct {
	Checkpoints []Checkpoint // with valid signatures
	Leaves      io.Reader    // the leaves as they were written, one after the other; nil = not known
}

// Report is what Verify found out.
type Report struct {
	Size     int64     `json:"size"` // records that were read and are good
	Root     tlog.Hash `json:"root"`
	Signed   int64     `json:"signed"`   // how many of them a checkpoint covers
	Redacted int64     `json:"redacted"` // how many of them have had fields taken out
	Bad      *Finding  `json:"bad,omitempty"`
}

// Finding is the first record at which a log is not what was written.
type Finding struct {
	Num  int64  `json:"num"`
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// The kinds of Finding.
const (
	Missing   = "missing"   // records were taken out, before others or at the end
	Repeated  = "repeated"  // a record stands where another belongs
	Changed   = "changed"   // a record says something else than when it was written
	Replaced  = "replaced"  // record and hashes were made to fit each other, and are not those that were witnessed
	Forked    = "forked"    // the log is another one than the one that was signed
	Unwitness = "witness"   // the witness's own files were changed
	Silent    = "redaction" // fields were taken out, and no record says so
)

// verifier is the state of Verify.
type verifier struct {
	trust     Trust
	leaves    *bufio.Reader
	tree      Tree
	report    Report
	witnessed int64           // leaves read
	redacted  []int64         // in order
	announced map[int64]bool  // by records of ActionRedact
	signed    map[int64][]int // checkpoints by size
}

// Verify reads a log from its first record on and compares it with itself and with what is known from outside.
// An error is one of reading; what is wrong with the log is in the report.
func Verify(log iter.Seq2[Entry, error], trust Trust) (report Report, err error) {
	v := &verifier{trust: trust, announced: map[int64]bool{}, signed: map[int64][]int{}}
	defer func() { report.Root = v.tree.Root() }()
	if trust.Leaves != nil {
		v.leaves = bufio.NewReaderSize(trust.Leaves, 64<<10)
	}
	for i, c := range trust.Checkpoints {
		v.signed[c.Size] = append(v.signed[c.Size], i)
	}
	for e, err := range log {
		if err != nil {
			return v.report, err
		}
		bad, err := v.next(&e)
		if err != nil {
			return v.report, err
		}
		if bad != nil {
			v.report.Bad = bad
			return v.report, nil
		}
	}
	bad, err := v.end()
	v.report.Bad = bad
	return v.report, err
}

func found(num int64, kind, format string, args ...any) *Finding {
	return &Finding{Num: num, Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// those are some of the log as the subject of a sentence.
func those(first, last int64) string {
	if first == last {
		return fmt.Sprintf("record %d is", first)
	}
	return fmt.Sprintf("records %d to %d are", first, last)
}

// next judges one record.
func (v *verifier) next(e *Entry) (*Finding, error) {
	num := v.tree.Size() + 1
	switch {
	case e.Num > num:
		return found(num, Missing, "%s missing", those(num, e.Num-1)), nil
	case e.Num < num:
		return found(num, Repeated, "where record %d belongs stands another number %d", num, e.Num), nil
	}
	leaf, err := Leaf(&e.AuditRecord, e.Proof)
	if err != nil {
		return found(num, Changed, "record %d was changed: %v", num, err), nil
	}
	fits := bytes.HasPrefix(e.Hashes, leaf[:])
	was, known, err := v.leaf()
	if err != nil {
		return nil, err
	}
	switch {
	case known && was != leaf && fits:
		return found(num, Replaced, "record %d is not the one that was written: it and its hash were replaced",
			num), nil
	case known && was != leaf, !fits:
		return found(num, Changed, "record %d was changed after it was written", num), nil
	}
	if !bytes.Equal(v.tree.Add(leaf), e.Hashes) {
		return found(num, Changed, "the hashes kept with record %d were changed", num), nil
	}
	v.report.Size++
	if e.IsRedacted() {
		v.redacted = append(v.redacted, num)
		v.report.Redacted++
	}
	v.announce(e)
	return v.compare(), nil
}

// leaf returns the next leaf that was witnessed.
func (v *verifier) leaf() (h tlog.Hash, known bool, err error) {
	if v.leaves == nil {
		return h, false, nil
	}
	_, err = io.ReadFull(v.leaves, h[:])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // a leaf cut short was being written
		v.leaves = nil
		return h, false, nil
	}
	v.witnessed++
	return h, err == nil, err
}

// announce remembers which redactions a record speaks of.
func (v *verifier) announce(e *Entry) {
	if e.Action != ActionRedact {
		return
	}
	var d Redaction
	if json.Unmarshal(e.Detail, &d) == nil {
		for _, n := range d.Records {
			v.announced[n] = true
		}
	}
}

// Redaction is the detail of a record of ActionRedact.
type Redaction struct {
	Why     string   `json:"why"`
	Fields  []string `json:"fields"`
	Records []int64  `json:"records"`
}

// compare holds the tree so far against the checkpoints of its size.
func (v *verifier) compare() *Finding {
	size := v.tree.Size()
	for _, i := range v.signed[size] {
		c := v.trust.Checkpoints[i]
		switch {
		case c.Root == v.tree.Root():
			v.report.Signed = max(v.report.Signed, size)
		case v.witnessed >= size: // the leaves agree with the log, and not with what was signed
			return found(1, Unwitness, "the leaves that were kept are not those that were signed at size %d: the "+
				"file was changed", size)
		default:
			return found(v.report.Signed+1, Forked, "the log is not the one that was signed at size %d: it differs "+
				"at record %d or later",
				size, v.report.Signed+1)
		}
	}
	return nil
}

// end looks for what should have come.
func (v *verifier) end() (*Finding, error) {
	size := v.tree.Size()
	most := size
	for _, c := range v.trust.Checkpoints {
		most = max(most, c.Size)
	}
	for {
		_, known, err := v.leaf()
		if err != nil {
			return nil, err
		}
		if !known {
			break
		}
		most = max(most, v.witnessed)
	}
	if most > size {
		return found(size+1, Missing, "%s gone that had been written: the log was truncated or rolled back",
			those(size+1, most)), nil
	}
	i := slices.IndexFunc(v.redacted, func(n int64) bool { return !v.announced[n] })
	if i >= 0 {
		return found(v.redacted[i], Silent, "fields of record %d were taken out, and no record says who did so",
			v.redacted[i]), nil
	}
	return nil, nil
}
