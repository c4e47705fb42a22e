package form_test

import (
	"bytes"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/guest/form"
	"github.com/outboard-dev/outboard/internal/guest/form/formtest"
)

// everything has a field of every type there is.
type everything struct {
	Text   string
	Bytes  []byte
	Truth  bool
	Int    int
	Int64  int64
	Uint16 uint16
	Uint32 uint32
	Uint64 uint64
	MaybeN *int
	Texts  []string
	Names  map[string]string
	Raw    rawText
	List   []pair
	Maybe  *pair
}

type rawText string

type pair struct{ A, B string }

func (e *everything) Fields() []any {
	return []any{&e.Text, &e.Bytes, &e.Truth, &e.Int, &e.Int64, &e.Uint16, &e.Uint32, &e.Uint64, &e.MaybeN, &e.Texts,
		&e.Names, form.Raw(&e.Raw),
		form.List(&e.List), form.Maybe(&e.Maybe)}
}

func (p *pair) Fields() []any { return []any{&p.A, &p.B} }

func whole() *everything {
	e := new(everything)
	formtest.Fill(e)
	return e
}

// If this fails, a type of field is not what it was on the other side.
func TestEveryField(t *testing.T) {
	formtest.Whole(t, new(everything), new(pair))
	e := &everything{Int: -1, Int64: -1 << 63, Uint16: 1<<16 - 1, Uint32: 1<<32 - 1, Uint64: 1<<64 - 1, MaybeN: new(-7),
		Bytes: []byte{0, 255}}
	got := new(everything)
	if err := form.Decode(form.Encode(e), got); err != nil || !reflect.DeepEqual(e, got) {
		t.Errorf("%+v, %v", got, err)
	}
}

// If this fails, one side takes a message of another version, or one that is cut off or no message at all, for
// one that it understands.
func TestMessagesThatAreNone(t *testing.T) {
	text := form.Encode(whole())
	for n := range text {
		if form.Decode(text[:n], new(everything)) == nil {
			t.Errorf("the first %d of %d bytes are taken", n, len(text))
		}
	}
	if form.Decode(append(text, 0), new(everything)) == nil {
		t.Error("a message with something after it is taken")
	}
	for _, other := range []byte{text[0] - 1, text[0] + 1, '{', 0} {
		if form.Decode(append([]byte{other}, text[1:]...), new(everything)) == nil {
			t.Errorf("a message of form %d is taken", other)
		}
	}
}

type numbers struct {
	truth bool
	small uint16
	size  uint32
	text  string
}

func (n *numbers) Fields() []any { return []any{&n.truth, &n.small, &n.size, &n.text} }

// If this fails, a value that its field cannot have is cut to one that it can.
func TestValuesOutOfBounds(t *testing.T) {
	form0 := form.Encode(form.None{})
	for what, c := range map[string]struct {
		rest string
		ok   bool
	}{
		"the largest":          {"\x01\xff\xff\x03\xff\xff\xff\xff\x0f\x01x", true},
		"a truth of 2":         {"\x02\x00\x00\x00", false},
		"16 bits and one":      {"\x00\x80\x80\x04\x00\x00", false},
		"32 bits and one":      {"\x00\x00\x80\x80\x80\x80\x10\x00", false},
		"a number without end": {"\x00\x00" + strings.Repeat("\xff", 11), false},
		"a longer text":        {"\x00\x00\x00\x02x", false},
		"a text without end":   {"\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", false},
	} {
		if err := form.Decode(append(bytes.Clone(form0), c.rest...), new(numbers)); (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// If this fails, what a sandbox says reaches people, or a database, as text that is none; or the name of a file
// is not what it is.
func TestTextsOfOthers(t *testing.T) {
	const bad, good = "a\xffb", "a\uFFFDb"
	e := &everything{Text: bad, Bytes: []byte(bad), Texts: []string{bad}, Names: map[string]string{bad: bad}, Raw: bad,
		List:  []pair{{bad, bad}},
		Maybe: &pair{bad, "b"}}
	want := &everything{Text: good, Bytes: []byte(bad), Texts: []string{good}, Names: map[string]string{good: good},
		Raw:  bad,
		List: []pair{{good, good}}, Maybe: &pair{good, "b"}}
	got := new(everything)
	if err := form.DecodeText(form.Encode(e), got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	got = new(everything)
	if err := form.Decode(form.Encode(e), got); err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("of one who is trusted: %+v, %v", got, err)
	}
}

type many struct {
	texts []string
	pairs []pair
	names map[string]string
}

func (m *many) Fields() []any { return []any{&m.texts, form.List(&m.pairs), &m.names} }

// If this fails, a message makes the other side take many times its own size for what it only claims.
func TestClaims(t *testing.T) {
	zeros := make([]byte, 1<<20)
	for what, head := range map[string]string{
		"texts": "\x80\x80\x40", "pairs": "\x00\x80\x80\x40", "names": "\x00\x00\x80\x80\x40",
	} {
		data := append(form.Encode(form.None{}), head...)
		data = append(data, "\xff\xff\xff\x7f"...) // the first text is longer than what follows
		data = append(data, zeros...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if form.Decode(data, new(many)) == nil {
			t.Errorf("%s that are not there are taken", what)
		}
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 2<<20 { // one copy of it
			t.Errorf("for %s that are not there: %d bytes", what, after.TotalAlloc-before.TotalAlloc)
		}
	}
}

// If this fails, bytes from the other side of a sandbox's border crash this one, or a message is read as
// something that is not what it says.
func FuzzDecode(f *testing.F) {
	text := form.Encode(whole())
	f.Add(text)
	f.Add(text[:len(text)-1])
	f.Add(form.Encode(new(everything)))
	f.Add(form.Encode(&everything{Text: "\xff", Int: -1, Names: map[string]string{"": ""}}))
	f.Add([]byte(`{"op":"hello"}`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, decode := range map[string]func([]byte, form.Message) error{"Decode": form.Decode,
			"DecodeText": form.DecodeText} {
			got, again := new(everything), new(everything)
			if decode(data, got) != nil {
				continue
			}
			if err := decode(form.Encode(got), again); err != nil || !reflect.DeepEqual(got, again) {
				t.Errorf("%s: %x is read as %+v, and that as %+v, %v", name, data, got, again, err)
			}
		}
	})
}

// If this fails, each text of what a guest is told before it serves is a piece of memory of its own: there are
// dozens, and a guest's heap is new.
func TestTextsAreParts(t *testing.T) {
	data := form.Encode(&many{texts: slices.Repeat([]string{"text"}, 50)})
	n := testing.AllocsPerRun(10, func() {
		if err := form.Decode(data, new(many)); err != nil {
			t.Error(err)
		}
	})
	if n > 10 {
		t.Errorf("50 texts are read into %v pieces of memory", n)
	}
}
