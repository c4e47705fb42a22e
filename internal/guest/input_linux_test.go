package guest

import (
	"encoding/json"
	"reflect"
	"testing"
)

// inputs are such as models write, and such as they had better not.
var inputs = []string{
	`{"argv":["/bin/true"]}`, `{"argv":["a","b c"],"env":{"N":"v","M":""},"cwd":"/x"}`, ` { "argv" : [ "a" , "b" ] } `, `{}`, `{"argv":[]}`, `{"env":{}}`,
	`{"command":"echo hi"}`, `{"command":"a\nb\t\"\\\/\b\f\r","restart":true,"timeout_ms":0}`, `{"command":"\u003e \u00e9 é 漢 😀","timeout_ms":120000}`,
	`{"restart":false,"command":"x"}`, `{"command":"a","timeout_ms":999999999999999999}`,
	// What is left to encoding/json: some of it is read, some refused.
	``, ` `, `null`, `[]`, `"x"`, `{`, `{}}`, `{}x`, "{}\x00", "\x00{}", `{"argv":["a",]}`, `{"argv":["a"],}`, `{"argv":["a" "b"]}`, `{"argv":[1]}`, `{"argv":[null]}`,
	`{"argv":null,"env":null,"cwd":null}`, `{"ARGV":["a"],"Cwd":"x","Command":"y"}`, `{"argv":["a"],"argv":["b"]}`, `{"env":{"a":"b"},"env":{"c":"d"}}`,
	`{"env":{"a":"b","a":"c"}}`, `{"env":{"a":1}}`, `{"other":[{"argv":["x"]}],"argv":["a"]}`, `{"command":"\ud83d\ude00 \ud83d x"}`, `{"command":"\u00"}`,
	`{"command":"\u00zz"}`, `{"command":"\x"}`, `{"command":"`, `{"command":"\`, `{"command":"a` + "\n" +
		`b"}`, "{\"command\":\"\xff\"}", "{\"command\":\"\\n\xff\"}",
	`{"command":1}`, `{"restart":1}`, `{"restart":truex}`, `{"restart":tru`, `{"timeout_ms":-1}`, `{"timeout_ms":1.0}`, `{"timeout_ms":1e3}`, `{"timeout_ms":01}`,
	`{"timeout_ms":9223372036854775808}`, `{"timeout_ms":"1"}`, `{"timeout_ms":}`, `{"command" "x"}`, `{command:"x"}`, `{"command":"x";"restart":true}`,
	`{"\u0063ommand":"x"}`,
}

// readsAsJSON fails the test where an input is read as something else than encoding/json makes of it, or refused
// in other words.
func readsAsJSON(t *testing.T, input string) {
	t.Helper()
	var exec execInput
	var bash bashInput
	execErr, bashErr := json.Unmarshal([]byte(input), &exec), json.Unmarshal([]byte(input), &bash)
	if got, err := readExec([]byte(input)); !reflect.DeepEqual(got, exec) || !reflect.DeepEqual(err, execErr) {
		t.Errorf("exec %q: %#v, %v; want %#v, %v", input, got, err, exec, execErr)
	}
	if got, err := readBash([]byte(input)); got != bash || !reflect.DeepEqual(err, bashErr) {
		t.Errorf("bash %q: %#v, %v; want %#v, %v", input, got, err, bash, bashErr)
	}
}

// If this fails, a program is run with other arguments than the model gave, or one that it gave none for.
func TestInputsAreJSON(t *testing.T) {
	for _, input := range inputs {
		readsAsJSON(t, input)
	}
}

// If this fails, inputs as models write them are not plain, and the first call of each sandbox pays for the
// tables of encoding/json.
func TestPlainInputs(t *testing.T) {
	for _, input := range inputs[:11] {
		p := scanner{rest: []byte(input)}
		p.object(func(name string) {
			switch name {
			case "argv":
				p.texts()
			case "env":
				p.names()
			case "restart":
				p.truth()
			case "timeout_ms":
				p.number()
			default:
				p.text()
			}
		})
		if !p.whole() {
			t.Errorf("%s is left to encoding/json", input)
		}
	}
}

// If this fails, some input means one thing to whoever judged the call, who reads it with encoding/json, and
// another to the guest that runs it.
func FuzzInputs(f *testing.F) {
	for _, input := range inputs {
		f.Add(input)
	}
	f.Fuzz(func(t *testing.T, input string) { readsAsJSON(t, input) })
}
