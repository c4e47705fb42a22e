package schema

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/outboard-dev/outboard/internal/text"
)

func compile(t testing.TB, text string) *Schema {
	t.Helper()
	s, err := Compile([]byte(text))
	if err != nil {
		t.Fatalf("compiling %s: %v", text, err)
	}
	return s
}

// Fails if an input that does not fit is let through or explained with something else, or one that fits is refused.
func TestValidate(t *testing.T) {
	for _, c := range []struct{ name, schema, good, bad, want string }{
		{"required", `{"type":"object","required":["city"]}`, `{"city":1}`, `{}`, `/city: is required`},
		{"type", `{"properties":{"n":{"type":"integer"}}}`, `{"n":3.0}`, `{"n":"3"}`,
			`/n: must be integer, not string`},
		{"two types", `{"properties":{"n":{"type":["integer","null"]}}}`, `{"n":null}`, `{"n":[]}`,
			`/n: must be null or integer, not array`},
		{"several", `{"required":["b","a"],"properties":{"n":{"type":"string"}}}`, `{"a":1,"b":1,"n":""}`, `{"n":1}`,
			`/a: is required; /b: is required; /n: must be string, not number`},
		{"unknown", `{"properties":{"a":{}},"additionalProperties":false}`, `{"a":1}`, `{"b":1}`,
			`/b: is not a known field`},
		{"enum", `{"properties":{"u":{"enum":["c","f",1]}}}`, `{"u":"f"}`, `{"u":"k"}`,
			`/u: must be one of "c", "f", 1, not "k"`},
		{"const", `{"properties":{"u":{"const":{"a":1}}}}`, `{"u":{"a":1.0}}`, `{"u":2}`, `/u: must be {"a":1}, not 2`},
		{"pattern", `{"properties":{"id":{"type":"string","pattern":"^[a-z]+$"}}}`, `{"id":"ab"}`, `{"id":"a1"}`,
			`/id: must match the pattern ^[a-z]+$, which "a1" does not`},
		{"nested", `{"properties":{"a":{"items":{"properties":{"b":{"minLength":2}}}}}}`, `{"a":[{"b":"xx"}]}`,
			`{"a":[{"b":"xx"},{"b":"x"}]}`,
			`/a/1/b: must have at least 2 characters, not 1`},
		{"numbers", `{"properties":{"n":{"minimum":1,"exclusiveMaximum":1.5,"multipleOf":0.25}}}`, `{"n":1.25}`,
			`{"n":1.6}`,
			`/n: must be a multiple of 0.25, not 1.6; /n: must be less than 1.5, not 1.6`},
		{"items", `{"properties":{"l":{"minItems":1,"uniqueItems":true}}}`, `{"l":[1]}`, `{"l":[1,1.0]}`,
			`/l: must have no item twice, and items 0 and 1 are equal`},
		{"ref", `{"properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"boolean"}}}`, `{"a":true}`, `{"a":1}`,
			`/a: must be boolean, not number`},
		{"recursion", `{"properties":{"next":{"$ref":"#"}},"additionalProperties":false}`, `{"next":{"next":{}}}`,
			`{"next":{"next":{"x":1}}}`,
			`/next/next/x: is not a known field`},
		{"types by anyOf", `{"properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]}}}`, `{"a":null}`,
			`{"a":1}`, `/a: must be string or null, not number`},
		{"forms", `{"properties":{"a":{"oneOf":[{"required":["p","q"]},{"required":["r"]}]}}}`, `{"a":{"r":1}}`,
			`{"a":{}}`,
			`/a: fits none of the 2 forms it may have; by the nearest, /a/r: is required`},
		{"both forms", `{"oneOf":[{"required":["p"]},{"required":["r"]}]}`, `{"r":1}`, `{"p":1,"r":1}`,
			`/: fits more than one`},
		{"not", `{"not":{"required":["p"]}}`, `{}`, `{"p":1}`, `/: does not satisfy not`},
		{"names", `{"propertyNames":{"maxLength":2}}`, `{"ab":1}`, `{"abc":1}`,
			`/: the name "abc" is not allowed: /: must have at most 2 characters, not 3`},
		{"depends", `{"dependentRequired":{"a":["b"]}}`, `{"a":1,"b":1}`, `{"a":1}`,
			`/b: is required, because "a" is given`},
		{"draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"items":[{"type":"string"}]}}}`, `{"a":["x",1]}`, `{"a":[1]}`,
			`/a/0: must be string, not number`},
		{"root", `{"type":"object"}`, `{}`, `[]`, `/: must be object, not array`},
		{"no JSON", `{"type":"object"}`, `{}`, `{"a":`, `it is not JSON`},
		{"two values", `{"type":"object"}`, `{} `, `{} {}`, `more than one JSON value`},
		{"large exponent", `{"type":"object"}`, `{"a":1e300}`, `{"a":1e999999}`, `the number 1e999999 is too large`},
		{"long number", `{"type":"object"}`, `{"a":` + strings.Repeat("9", 300) + `}`, `{"a":` +
			strings.Repeat("9", 3000) + `}`, `too exact`},
		{"deep", `{"type":"object"}`, `{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`,
			`{"a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`, `nests too deeply`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := compile(t, c.schema)
			if err := s.Validate([]byte(c.good)); err != nil {
				t.Errorf("%s is refused: %v", c.good, err)
			}
			err := s.Validate([]byte(c.bad))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v; want %q", text.Clip(c.bad, 80), err, c.want)
			}
		})
	}
}

// Fails if a format, of whatever draft, refuses anything: models and schemas do not agree on them.
func TestFormatsAreRemarks(t *testing.T) {
	for _, draft := range []string{"http://json-schema.org/draft-07/schema#",
		"https://json-schema.org/draft/2020-12/schema"} {
		for _, format := range []string{"date", "uuid", "regex", "email", "of-our-own"} {
			s := compile(t, fmt.Sprintf(`{"$schema":%q,"properties":{"a":{"type":"string","format":%q}}}`, draft,
				format))
			if err := s.Validate([]byte(`{"a":"((("}`)); err != nil {
				t.Errorf("%s, %s: %v", draft, format, err)
			}
			if s.Validate([]byte(`{"a":1}`)) == nil {
				t.Errorf("%s, %s: the type is not checked", draft, format)
			}
		}
	}
}

// Fails if a schema that cannot be used is taken, or refused without saying what is wrong and where.
func TestCompileRefuses(t *testing.T) {
	wide := func(n int) string {
		return `{"type":"object","properties":{` + strings.TrimSuffix(strings.Repeat(`"%d":{},`, n), ",") + `}}`
	}
	numbered := func(format string, n int) string {
		list := make([]any, n)
		for i := range list {
			list[i] = i
		}
		return fmt.Sprintf(format, list...)
	}
	for _, c := range []struct{ name, good, bad, want string }{
		{"type", `{"properties":{"a":{"type":"string"}}}`, `{"properties":{"a":{"type":"text"}}}`,
			`/properties/a/type: `},
		{"type says which", `{}`, `{"type":"text"}`, `must be one of "array", "boolean", "integer"`},
		{"required", `{"required":[]}`, `{"required":"a"}`, `/required: must be array, not string`},
		{"pattern", `{"pattern":"^a$"}`, `{"properties":{"a":{"pattern":"(?=a)"}}}`,
			`/properties/a/pattern: is not a pattern of RE2`},
		{"pattern of names", `{"patternProperties":{"^a":{}}}`, `{"patternProperties":{"(?<!a)b":{}}}`, `RE2`},
		{"bomb of a pattern", `{"pattern":"(a{10}){10}"}`,
			`{"pattern":"([a-z][0-9][a-z][0-9][a-z][0-9][a-z][0-9][a-z][0-9]){1000}"}`, `too large`},
		{"bomb of patterns", `{"pattern":"a{1000}"}`, `{"allOf":[` +
			strings.TrimSuffix(strings.Repeat(`{"pattern":"a{1000}"},`, 30), ",") + `]}`, `too large`},
		{"file", `{"$ref":"#/$defs/a","$defs":{"a":{}}}`, `{"$ref":"file:///etc/passwd"}`,
			`"file:///etc/passwd", and nothing outside the schema is loaded`},
		{"remote", `{"$id":"http://a.test/s","$ref":"#/$defs/a","$defs":{"a":{}}}`,
			`{"properties":{"a":{"$ref":"http://127.0.0.1:1/x"}}}`, `nothing outside`},
		{"relative", `{}`, `{"$ref":"other.json"}`, `nothing outside`},
		{"draft of one's own", `{"$schema":"https://json-schema.org/draft/2020-12/schema"}`,
			`{"$schema":"http://a.test/meta"}`, `nothing outside`},
		{"missing ref", `{}`, `{"$ref":"#/$defs/a"}`, `refers to "/$defs/a", which is not there`},
		{"missing anchor", `{"$anchor":"a","properties":{"x":{"$ref":"#a"}}}`, `{"$ref":"#a"}`, `which is not there`},
		{"endless ref", `{"properties":{"a":{"$ref":"#"}}}`, `{"$ref":"#"}`, `without end`},
		{"endless pair", `{}`, `{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"anyOf":[{"$ref":"#"}]}}}`,
			`without end`},
		{"dynamic ref", `{}`, `{"$dynamicAnchor":"a","properties":{"x":{"$dynamicRef":"#a"}}}`, `use $ref`},
		{"metaschema", `{}`, `{"properties":{"x":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}}`,
			`use $ref`},
		{"number", `{"minimum":1e300}`, `{"minimum":1e9999999}`, `too large`},
		{"deep", strings.Repeat(`{"items":`, 50) + `{}` + strings.Repeat(`}`, 50), strings.Repeat(`{"items":`, 70) +
			`{}` + strings.Repeat(`}`, 70), `nests too deeply`},
		{"wide", numbered(wide(1000), 1000), numbered(wide(4000), 4000), `objects and booleans`},
		{"large", `{}`, `{"title":"` + strings.Repeat("a", MaxBytes) + `"}`, `over the limit of 65536`},
		{"references", `{}`, numbered(`{"anyOf":[`+strings.TrimSuffix(strings.Repeat(`{"$ref":"#/x/%d"},`, 1200),
			",")+`]}`, 1200), `too many references`},
		{"no JSON", `{}`, `{`, `it is not JSON`},
		{"no schema", `true`, `[]`, `must be boolean or object, not array`},
	} {
		t.Run(c.name, func(t *testing.T) {
			compile(t, c.good)
			_, err := Compile([]byte(c.bad))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v; want %q", text.Clip(c.bad, 100), err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), base) {
				t.Errorf("%v names an address that nobody knows", err)
			}
		})
	}
}

// multiplying is a schema that asks about one value 2^n times.
func multiplying(n int, with string) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range n {
		fmt.Fprintf(&b, with, i, i+1, i+1)
		b.WriteByte(',')
	}
	fmt.Fprintf(&b, `"d%d":{"required":["x"]}}}`, n)
	return b.String()
}

// Fails if a schema or an input that multiplies into endless work holds the server up.
func TestWorkIsBounded(t *testing.T) {
	ones := strings.TrimSuffix(strings.Repeat("1,", 300_000), ",")
	var long strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&long, "%d,", i)
	}
	for _, c := range []struct{ name, schema, input, small string }{
		{"allOf", multiplying(30, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`), `{"x":1}`, ``},
		{"anyOf", multiplying(30, `"d%d":{"anyOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`), `{}`, `{"x":1}`},
		{"under not", `{"not":` +
			strings.ReplaceAll(multiplying(25,
				`"d%d":{"dependentSchemas":{"a":{"$ref":"#/$defs/d%d"},"b":{"$ref":"#/$defs/d%d"}}}`), "#/$defs", "#/not/$defs") + `}`,
			`{"a":1,"b":2}`, ``},
		{"draft 7", strings.Replace(multiplying(30, `"d%d":{"oneOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`),
			"{",
			`{"$schema":"http://json-schema.org/draft-07/schema#",`, 1), `{}`, ``},
		{"by depth", `{"anyOf":[{"properties":{"a":{"$ref":"#"}},"required":["z"]},{"properties":{"a":{"$ref":"#"}},"required":["y"]}]}`,
			strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100), `{"z":1}`},
		{"enum", `{"properties":{"l":{"items":{"enum":[` + long.String() + `"z"]}}}}`, `{"l":[` +
			strings.Repeat("9999999,", 50_000) + `1]}`, `{"l":["z"]}`},
		{"pattern", `{"properties":{"s":{"pattern":"(a?){500}b$"}}}`, `{"s":"` + strings.Repeat("a", 2<<20) + `"}`,
			`{"s":"ab"}`},
		{"many", `{"properties":{"l":{"items":{"anyOf":[{"type":"string"},{"type":"null"},{"type":"array"},{"type":"object"},{"required":["a"],"type":"boolean"}]}}}}`,
			`{"l":[` + ones + `]}`, `{"l":["a"]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := compile(t, c.schema)
			begin := time.Now()
			err := s.Validate([]byte(c.input))
			if err == nil || !strings.Contains(err.Error(), "too much work") {
				t.Errorf("got %v", err)
			}
			t.Logf("took %v", time.Since(begin))
			if c.small != "" {
				if err := s.Validate([]byte(c.small)); err != nil {
					t.Errorf("%s afterwards: %v", c.small, err)
				}
			}
		})
	}
	t.Run("large and plain", func(t *testing.T) {
		s := compile(t, `{"type":"object","properties":{"l":{"items":{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string","maxLength":9}}}}}}`)
		if err := s.Validate([]byte(`{"l":[` + strings.Repeat(`{"n":1,"s":"abc"},`, 30_000) + `{}]}`)); err != nil {
			t.Error(err)
		}
	})
}

// Fails if to compile the worst schema of the size that is allowed holds the server up.
func TestCompileIsBounded(t *testing.T) {
	var flat, refs, defs strings.Builder
	for i := range 2990 {
		fmt.Fprintf(&flat, `"%d":{},`, i)
	}
	for i := range 700 {
		fmt.Fprintf(&refs, `{"$ref":"#/x/%d"},`, i)
		fmt.Fprintf(&defs, `"%d":{},`, i)
	}
	for name, text := range map[string]string{
		"flat": `{"properties":{` + flat.String() + `"z":{}}}`,
		"long name": `{"properties":{"` + strings.Repeat("k", 300) + `":{"properties":{` + flat.String()[:20_000] +
			`"z":{}}}}}`,
		"refs": `{"anyOf":[` + refs.String() + `{}],"x":{` + defs.String() + `"z":{}}}`,
	} {
		begin := time.Now()
		compile(t, text)
		t.Logf("%s, %d bytes: %v", name, len(text), time.Since(begin))
	}
}

// Fails if a sentence grows with what it is about, or carries foreign bytes that a terminal or a log would act on.
func TestSentencesAreBounded(t *testing.T) {
	s := compile(t, `{"properties":{"e":{"enum":["`+strings.Repeat("é",
		5000)+`"]},"p":{"pattern":"^`+strings.Repeat("b", 3000)+`"}},"additionalProperties":false}`)
	err := s.Validate([]byte(`{"e":"` + strings.Repeat("ü", 100_000) + `\u001b[31m","p":"x","` +
		strings.Repeat("k", 100_000) + `":1,"\u001b]0;":1,"a":1,"b":1,"c":1}`))
	if err == nil {
		t.Fatal("it fits")
	}
	text := err.Error()
	if len(text) > maxText+40 || !utf8.ValidString(text) || strings.ContainsRune(text, 0x1b) ||
		!strings.Contains(text, "more") {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

// Fails if one schema cannot be used by several sessions at once, or answers differently each time.
func TestConcurrentAndDeterministic(t *testing.T) {
	s := compile(t, `{"required":["a","b","c","d","e","f"],"properties":{"g":{"type":"string"}},"additionalProperties":false}`)
	input := []byte(`{"g":1,"h":2,"i":3}`)
	want := s.Validate(input).Error()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if err := s.Validate(input); err == nil || err.Error() != want {
					t.Errorf("%v; want %s", err, want)
				}
			}
		})
	}
	wg.Wait()
}

// Fails if a cache compiles what it has, forgets what is in use, or grows without end.
func TestCache(t *testing.T) {
	var c Cache
	text := []byte(`{"type":"object"}`)
	first, fresh, err := c.Compile(text)
	if err != nil || !fresh {
		t.Fatalf("fresh %v, %v", fresh, err)
	}
	if _, fresh, err := c.Compile([]byte(`{"type":1}`)); err == nil || !fresh {
		t.Errorf("a bad one: fresh %v, %v", fresh, err)
	}
	if _, fresh, err := c.Compile([]byte(`{"type":1}`)); err == nil || fresh {
		t.Errorf("a bad one again: fresh %v, %v", fresh, err)
	}
	for i := range 5 * maxCached / perSchema {
		if _, _, err := c.Compile(fmt.Appendf(nil, `{"title":"%d"}`, i)); err != nil {
			t.Fatal(err)
		}
		if again, fresh, _ := c.Compile(text); fresh || again != first {
			t.Fatalf("what is in use was forgotten after %d", i)
		}
	}
	if n := len(c.young) + len(c.old); n > 2*maxCached/perSchema {
		t.Errorf("%d schemas are kept", n)
	}
	if _, fresh, _ := c.Compile([]byte(`{"title":"1"}`)); !fresh {
		t.Error("what is long out of use is kept")
	}
}

// Fails if some schema and input make the package panic or give an empty reason.
func FuzzSchema(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"type":"string","pattern":"^a"}},"required":["a"]}`, `{"a":"b"}`)
	f.Add(`{"$ref":"#/$defs/x","$defs":{"x":{"oneOf":[{"const":1},{"enum":[1,"2",null]}]}}}`, `3`)
	f.Add(`{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":["b"],"c":{"not":{}}}}`,
		`{"a":1e5,"c":[]}`)
	f.Add(`{"unevaluatedProperties":false,"if":{"required":["a"]},"then":{"properties":{"a":{}}}}`, `{"a":{"b":[[]]}}`)
	f.Fuzz(func(t *testing.T, text, input string) {
		s, err := Compile([]byte(text))
		if err != nil {
			if err.Error() == "" || len(err.Error()) > 2*maxText {
				t.Errorf("compiling: %d bytes", len(err.Error()))
			}
			return
		}
		first, second := s.Validate([]byte(input)), s.Validate([]byte(input))
		if first == nil != (second == nil) || first != nil && first.Error() != second.Error() {
			t.Errorf("%v, then %v", first, second)
		}
	})
}
