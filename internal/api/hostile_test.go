package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/api"
)

// Fails if a key is taken from an address, where logs, histories and other sites read it, or if an answer to a
// request with a secret in it is compressed, so that its length tells of the secret.
func TestKeysStayOutOfAddresses(t *testing.T) {
	b := newBench(t)
	bare := func(r *http.Request) { r.Header.Del("X-Api-Key") }
	events := "/v1/sessions/" + b.session() + "/events/stream"
	for _, path := range []string{"/v1/agents", events} {
		for _, name := range []string{"api_key", "key", "token", "access_token", "x-api-key", "authorization"} {
			b.refused(401, "API key", "GET", path+"?"+url.Values{name: {b.key}}.Encode(), nil, bare)
		}
		b.refused(401, "API key", "GET", path, nil, bare,
			func(r *http.Request) { r.URL.User = url.UserPassword("key", b.key) })
		b.refused(401, "API key", "GET", path, nil, bare,
			func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "x-api-key", Value: b.key}) })
	}
	for _, ask := range []string{"gzip", "gzip, br, deflate, zstd"} {
		r := b.do("GET", "/v1/agents", nil, func(r *http.Request) { r.Header.Set("Accept-Encoding", ask) })
		// the control: with the key in a header it is an answer
		if r.status != 200 || r.header.Get("Content-Encoding") != "" || !json.Valid(r.body) {
			t.Errorf("asked for %s: %d, %s", ask, r.status, r.header.Get("Content-Encoding"))
		}
	}
}

// Fails if JSON that is small to send and large to read, or ambiguous, holds the server or is taken.
func TestJSONBombs(t *testing.T) {
	b := newBench(t)
	const n = 1 << 20
	deep := func(open, end string, n int) string { return strings.Repeat(open, n) + "1" + strings.Repeat(end, n) }
	var keys strings.Builder
	for i := range n {
		fmt.Fprintf(&keys, `"k%d":"v",`, i)
	}
	for name, body := range map[string]string{
		"deep lists":   `{"name":"a","model":"script/steps","metadata":{"a":` + deep("[", "]", n) + `}}`,
		"deep objects": `{"name":"a","model":"script/steps","metadata":{"a":` + deep(`{"a":`, "}", n) + `}}`,
		"deep where ignored": `{"events":[{"type":"user.message","content":[{"type":"text","text":"x","x":` +
			deep("[", "]", n) + `}]}]}`,
		"a million keys": `{"name":"a","model":"script/steps","metadata":{` +
			strings.TrimSuffix(keys.String(), ",") + `}}`,
		"a huge number": `{"name":"a","model":"script/steps","metadata":{"a":1e999999999}}`,
		"a long number": `{"name":"a","model":"script/steps","metadata":{"a":` + strings.Repeat("9", n) + `}}`,
		"a million tools": `{"name":"a","model":"script/steps","tools":[` +
			strings.TrimSuffix(strings.Repeat(`{},`, n), ",") + `]}`,
		"never ends": `{"name":"` + strings.Repeat("a", n),
		"two values": `{"name":"a","model":"script/steps"}{"name":"b","model":"script/steps"}`,
	} {
		for _, path := range []string{"/v1/agents", "/v1/sessions/" + b.session() + "/events"} {
			began := time.Now()
			var v any
			_ = json.Unmarshal([]byte(body), &v)
			floor := time.Since(began)
			began = time.Now()
			if r := b.do("POST", path, body); r.status/100 != 4 {
				t.Errorf("%s to %s: %d %.200s", name, path, r.status, r.body)
			} else if d := time.Since(began); d > 10*floor+10*time.Second {
				t.Errorf("%s to %s took %s, where reading it takes %s", name, path, d, floor)
			}
		}
	}
	b.ok("POST", "/v1/agents", `{"name":"a","model":"script/steps","metadata":{"a":"1"}}`) // the control
}

// Fails if any route takes a body that two readers read in two ways, or one of its neighbours is not read at all.
func TestAmbiguousJSON(t *testing.T) {
	b := newBench(t)
	raw := []string{"POST /v1/files", "POST /v1/outboard/import", "POST /v1/outboard/images/import",
		"PUT /v1/boxes/{box}/files/content",
		"POST /v1/boxes/{box}/processes/{pid}/input"} // not JSON
	for name, body := range map[string]string{
		"half a pair":               `{"x":"\ud800"}`,
		"the other half":            `{"x":["\udc00 a"]}`,
		"halves in the wrong order": `{"x":{"y":"\udc00\ud800"}}`,
		"half a pair and a letter":  `{"x":"\ud83d\u0041"}`,
		"half a pair as a name":     `{"\ud800":1}`,
		"a name twice":              `{"x":1,"x":1}`,
		"a name twice, within":      `{"x":[1,{"y":{"z":1,"a":2,"z":1}}]}`,
		"a name twice, escaped":     `{"x":{"y":1,"\u0079":1}}`,
		"not UTF-8":                 "{\"x\":\"\xff\"}",
		"an overlong form":          "{\"x\":\"\xc0\x80\"}",
		"a surrogate in UTF-8":      "{\"x\":\"\xed\xa0\x80\"}",
	} {
		for _, route := range api.Routes() {
			method, path, _ := strings.Cut(route, " ")
			if method != "POST" && method != "PUT" || slices.Contains(raw, route) ||
				slices.Contains(api.Unbuilt(), route) || strings.Contains(path, "/work") {
				continue
			}
			r := b.do(method, filled(path), body)
			if said := r.str("error.message"); r.status != 400 || !strings.Contains(said, "surrogate") &&
				!strings.Contains(said, "given twice") && !strings.Contains(said, "UTF-8") {
				t.Errorf("%s to %s: %d %s", name, route, r.status, r.body)
			}
		}
	}
	// the control
	whole := b.ok("POST", "/v1/agents",
		`{"name":"\ud83d\ude00 \\ud800 \u00e9","model":"m","metadata":{"a":"1","A":"2","\u0062":"\\"}}`)
	if whole.str("name") != "😀 \\ud800 é" || whole.str("metadata.b") != `\` {
		t.Errorf("made %s", whole.body)
	}
	for word, body := range map[string]string{
		"tools[0].input_schema.a: given twice":        `{"name":"a","model":"m","tools":[{"type":"custom","name":"t","description":"d","input_schema":{"type":"object","a":1,"a":2}}]}`,
		"metadata.k: given twice":                     `{"name":"a","model":"m","metadata":{"k":"1","k":"2"}}`,
		"system: a string has half of a surrogate":    `{"name":"a","model":"m","system":"\ud800"}`,
		"config.outboard.networking.rules[0].Host: u": `{"name":"a","config":{"type":"cloud","outboard":{"networking":{"rules":[{"host":"a.test","Host":"b.test"}]}}}}`,
	} {
		path := "/v1/agents"
		if strings.Contains(word, "config") {
			path = "/v1/environments"
		}
		b.refused(400, word, "POST", path, body)
	}
}

// filled is a route's path with ids that are nobody's.
func filled(path string) string {
	for _, name := range []string{"agent", "environment", "session", "thread", "event", "resource", "file", "vault",
		"credential", "policy", "approval", "grant", "user", "key"} {
		path = strings.ReplaceAll(path, "{"+name+"}", map[string]string{"agent": "agent", "environment": "env",
			"session": "sesn", "thread": "sthr", "event": "sevt",
			"resource": "sesrsc", "file": "file", "vault": "vlt", "credential": "vcrd", "policy": "pol", "approval": "apr", "grant": "grant", "user": "user", "key": "apikey"}[name]+"_01x")
	}
	return strings.NewReplacer("{pid}", "1", "{budget}", "bgt_01x", "{sandbox}", "sbx_01x", "{ssh_key}", "sshkey_01x",
		"{kill}", "kill_01x", "{box}", "boxaaaaaaaaaaaaaaaaaaaa",
		"{template}", "t", "{build}", "b", "{organization}", "org_01x", "{model...}", "m").Replace(path)
}

// Fails if a body of many small values holds a route for long: the time must be of the order of reading it.
func TestManyValues(t *testing.T) {
	b := newBench(t)
	list := func(v string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(v+",", (30<<20)/(len(v)+1)), ",") + "]"
	}
	var names strings.Builder
	for i := range 2_500_000 {
		fmt.Fprintf(&names, `"%x":0,`, i)
	}
	for name, body := range map[string]string{
		"numbers": `{"name":"k","scopes":` + list("0") + `}`, "strings": `{"name":"k","scopes":` + list(`""`) +
			`}`, "lists": `{"name":"k","scopes":` + list("[]") + `}`,
		"names": `{"name":"k","scopes":{` + strings.TrimSuffix(names.String(), ",") +
			`}}`, "a number": `{"name":"k","scopes":[` + strings.Repeat("1", 30<<20) + `]}`,
	} {
		for _, path := range []string{"/v1/outboard/keys", "/v1/agents", "/v1/sessions"} {
			measure := func() (took, floor time.Duration) {
				began := time.Now()
				if r := b.do("POST", path, body); r.status != 400 || !strings.Contains(r.str("error.message"),
					"more than") {
					t.Errorf("%s to %s: %d %.200s", name, path, r.status, r.body)
				}
				took = time.Since(began)
				began = time.Now()
				json.Valid([]byte(body))
				return took, time.Since(began)
			}
			took, floor := measure()
			for range 4 { // other programs of the machine can slow one of the two: what is slow by itself is slow again
				if took <= 10*floor+time.Second {
					break
				}
				took, floor = measure()
			}
			if took > 10*floor+time.Second {
				t.Errorf("%s to %s took %s, where to check its syntax takes %s", name, path, took, floor)
			}
		}
	}
}
