package egress

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

const (
	ourPlaceholder = "sk-outboard0123456789abcdef0123456789abcdef01234567"
	theirKey       = "sk-attackers-own-key-0123456789"
)

func guarding() *Injection {
	return &Injection{RefuseBody: []string{"api_key", "client_secret"}, Replace: []Placeholder{{Placeholder: ourPlaceholder, Header: true}}}
}

// Broken if a key of the client's own leaves in a body, whole or in part, or if a body that has none is changed, held back or refused.
func TestForeignKeysInBodies(t *testing.T) {
	for name, c := range map[string]struct {
		body    string
		form    bool
		foreign bool
	}{
		"a member":               {`{"a":1,"api_key":"` + theirKey + `","b":2}`, false, true},
		"in another case":        {`{"API_Key" : "` + theirKey + `"}`, false, true},
		"deep":                   {`[[{"x":[1,{"client_secret":"` + theirKey + `"}]}]]`, false, true},
		"an escaped name":        {`{"api\u005fkey":"` + theirKey + `"}`, false, true},
		"an escaped value":       {`{"api_key":"` + strings.ReplaceAll(theirKey, "s", `\u0073`) + `"}`, false, true},
		"beside the placeholder": {`{"api_key":"` + ourPlaceholder + " " + theirKey + `"}`, false, true},
		"very long":              {`{"api_key":"` + strings.Repeat("k", 2*maxMember) + `"}`, false, true},
		"cut off":                {`{"api_key":"` + theirKey, false, true},
		"called a form":          {`{"api_key":"` + theirKey + `"}`, true, true},
		"a field":                {"a=1&api_key=" + theirKey + "&b=2", true, true},
		"the last field":         {"a=1&client_secret=" + theirKey, true, true},
		"an escaped field":       {"%61pi_key=" + strings.ReplaceAll(theirKey, "-", "%2D") + "&b", true, true},
		"the placeholder":        {`{"api_key":"` + ourPlaceholder + `","b":"` + theirKey + `"}`, false, false},
		"of a form":              {"client_secret=" + ourPlaceholder + "&a=" + theirKey, true, false},
		"a short one":            {`{"api_key":"none","c":"\\","api_key":""}`, false, false},
		"text about it":          {`{"text":"api_key","x":"` + theirKey + `","y":"say \"api_key\": \"` + theirKey + `\""}`, false, false},
		"another member's":       {`{"api_key":null,"x":"` + theirKey + `"}`, false, false},
		"a long text":            {`{"x":"` + strings.Repeat("y", 3*maxMember) + `","api_key":"no"}`, false, false},
		"not JSON":               {`--b api_key="` + theirKey + `"`, false, false},
		"nothing":                {"", true, false},
	} {
		for way, reader := range map[string]func(io.Reader) io.Reader{"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			got, err := io.ReadAll(guard(io.NopCloser(reader(strings.NewReader(c.body))), guarding(), c.form))
			if errors.Is(err, errForeign) != c.foreign || err != nil && !c.foreign {
				t.Errorf("%s, %s: %v", name, way, err)
			}
			if !c.foreign && string(got) != c.body {
				t.Errorf("%s, %s: %q", name, way, got)
			}
			if c.foreign && (bytes.Contains(got, []byte("sk-att")) || bytes.Contains(got, []byte("kkkk")) || bytes.Contains(got, []byte("u0073"))) {
				t.Errorf("%s, %s: %.100q was sent", name, way, got)
			}
		}
	}
	if body := io.NopCloser(strings.NewReader("x")); guard(body, &Injection{RefuseBody: []string{"api_key"}}, true) != body {
		t.Error("a host without a placeholder is looked at")
	}
}

// Broken if a body waits for what comes later: a client that sends a part and wants an answer to it would wait for ever.
func TestGuardedBodiesDoNotWait(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	g := guard(r, guarding(), false)
	for _, part := range []string{`{"api_key":"` + ourPlaceholder + `"}` + "\n", `{"messages":[{"text":"half a te`, `xt"}]}`} {
		go func() { _, _ = io.WriteString(w, part) }()
		got := make([]byte, len(part))
		if _, err := io.ReadFull(g, got); err != nil || string(got) != part {
			t.Errorf("%q: %q, %v", part, got, err)
		}
	}
}

// Broken if a body can make the gateway hold more of it than one value.
func FuzzGuarded(f *testing.F) {
	f.Add([]byte(`{"api_key":"`+theirKey+`"}`), false)
	f.Add([]byte("a=1&api_key=%73"), true)
	f.Add([]byte(`{"api_key":"\`), false)
	f.Fuzz(func(t *testing.T, body []byte, form bool) {
		g := guard(io.NopCloser(iotest.OneByteReader(bytes.NewReader(body))), guarding(), form).(*guarded)
		var got []byte
		for b := make([]byte, 1); ; {
			n, err := g.Read(b)
			got = append(got, b[:n]...)
			if len(g.wait) > maxMember+1 || len(g.text) > maxMember {
				t.Fatalf("it holds %d and %d bytes", len(g.wait), len(g.text))
			}
			if err != nil {
				break
			}
		}
		if !bytes.HasPrefix(body, got) || !errors.Is(g.err, errForeign) && !bytes.Equal(got, body) {
			t.Fatalf("%q became %q", body, got)
		}
	})
}
