package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Fails if a key is taken from an address, where logs, histories and other sites read it, or if an answer to a request with a secret in
// it is compressed, so that its length tells of the secret.
func TestKeysStayOutOfAddresses(t *testing.T) {
	b := newBench(t)
	bare := func(r *http.Request) { r.Header.Del("X-Api-Key") }
	events := "/v1/sessions/" + b.session() + "/events/stream"
	for _, path := range []string{"/v1/agents", events} {
		for _, name := range []string{"api_key", "key", "token", "access_token", "x-api-key", "authorization"} {
			b.refused(401, "API key", "GET", path+"?"+url.Values{name: {b.key}}.Encode(), nil, bare)
		}
		b.refused(401, "API key", "GET", path, nil, bare, func(r *http.Request) { r.URL.User = url.UserPassword("key", b.key) })
		b.refused(401, "API key", "GET", path, nil, bare, func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "x-api-key", Value: b.key}) })
	}
	for _, ask := range []string{"gzip", "gzip, br, deflate, zstd"} {
		r := b.do("GET", "/v1/agents", nil, func(r *http.Request) { r.Header.Set("Accept-Encoding", ask) })
		if r.status != 200 || r.header.Get("Content-Encoding") != "" || !json.Valid(r.body) { // the control: with the key in a header it is an answer
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
		"deep lists":         `{"name":"a","model":"script/steps","metadata":{"a":` + deep("[", "]", n) + `}}`,
		"deep objects":       `{"name":"a","model":"script/steps","metadata":{"a":` + deep(`{"a":`, "}", n) + `}}`,
		"deep where ignored": `{"events":[{"type":"user.message","content":[{"type":"text","text":"x","x":` + deep("[", "]", n) + `}]}]}`,
		"a million keys":     `{"name":"a","model":"script/steps","metadata":{` + strings.TrimSuffix(keys.String(), ",") + `}}`,
		"a huge number":      `{"name":"a","model":"script/steps","metadata":{"a":1e999999999}}`,
		"a long number":      `{"name":"a","model":"script/steps","metadata":{"a":` + strings.Repeat("9", n) + `}}`,
		"a million tools":    `{"name":"a","model":"script/steps","tools":[` + strings.TrimSuffix(strings.Repeat(`{},`, n), ",") + `]}`,
		"never ends":         `{"name":"` + strings.Repeat("a", n),
		"two values":         `{"name":"a","model":"script/steps"}{"name":"b","model":"script/steps"}`,
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
