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
	return &Injection{RefuseBody: []string{"api_key", "client_secret"}, RefuseShapes: []string{"sk-", "ghp_", "AIza"},
		Replace: []Placeholder{{Placeholder: ourPlaceholder, Header: true}}}
}

// Broken if a key of the client's own leaves in a body, whole or in part, or if a body that has none is changed,
// held back or refused.
func TestForeignKeysInBodies(t *testing.T) {
	for name, c := range map[string]struct {
		body    string
		form    bool
		foreign bool
	}{
		"a member":        {`{"a":1,"api_key":"` + theirKey + `","b":2}`, false, true},
		"in another case": {`{"API_Key" : "` + theirKey + `"}`, false, true},
		"deep":            {`[[{"x":[1,{"client_secret":"` + theirKey + `"}]}]]`, false, true},
		"an escaped name": {`{"api\u005fkey":"` + theirKey + `"}`, false, true},
		"an escaped value": {`{"api_key":"` + strings.ReplaceAll(theirKey, "s", `\u0073`) + `"}`, false,
			true},
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
		"text about it": {`{"text":"api_key","x":"` + theirKey + `","y":"say \"api_key\": \"` + theirKey +
			`\""}`, false, false},
		"another member's":           {`{"api_key":null,"x":"` + theirKey + `"}`, false, false},
		"a long text":                {`{"x":"` + strings.Repeat("y", 3*maxMember) + `","api_key":"no"}`, false, false},
		"a field behind a semicolon": {"a=1;api_key=" + theirKey, true, true},
		"not JSON":                   {`--b api_key="` + theirKey + `"`, false, false},
		"nothing":                    {"", true, false},
	} {
		for way, reader := range map[string]func(io.Reader) io.Reader{"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			got, err := io.ReadAll(guard(io.NopCloser(reader(strings.NewReader(c.body))), guarding(),
				format{form: c.form}))
			if errors.Is(err, errForeign) != c.foreign || err != nil && !c.foreign {
				t.Errorf("%s, %s: %v", name, way, err)
			}
			if !c.foreign && string(got) != c.body {
				t.Errorf("%s, %s: %q", name, way, got)
			}
			if c.foreign && (bytes.Contains(got, []byte("sk-att")) || bytes.Contains(got, []byte("kkkk")) ||
				bytes.Contains(got, []byte("u0073"))) {
				t.Errorf("%s, %s: %.100q was sent", name, way, got)
			}
		}
	}
	if body := io.NopCloser(strings.NewReader("x")); guard(body, &Injection{RefuseBody: []string{"api_key"}},
		format{form: true}) != body {
		t.Error("a host without a placeholder is looked at")
	}
}

// parted is a body of parts, as "head CR LF CR LF value" each.
func parted(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("--bBb\r\n" + p + "\r\n")
	}
	return b.String() + "--bBb--\r\n"
}

// Broken if a key of the client's own leaves in a part of a body, or if an honest body in parts is changed, held
// back or refused.
func TestForeignKeysInParts(t *testing.T) {
	part := func(name, value string) string {
		return `Content-Disposition: form-data; name="` + name + "\"\r\n\r\n" + value
	}
	file := "Content-Disposition: form-data; name=\"f\"; filename=\"\xc3\xa4.bin\"\r\nContent-Type: " +
		"application/octet-stream\r\n\r\n\x00\xff\r\n-\r\n--bB\r\n" + theirKey
	for name, c := range map[string]struct {
		body string
		want error
	}{
		"a part":          {parted(part("a", "1"), part("api_key", theirKey), part("b", "2")), errForeign},
		"in another case": {parted(part("API_KEY", theirKey)), errForeign},
		"with a file's name": {parted(strings.Replace(part("api_key", theirKey), `"api_key"`,
			`"api_key"; filename="x"`, 1)), errForeign},
		"by lines of Unix": {strings.ReplaceAll(parted(part("a", "1"), part("api_key", theirKey)), "\r\n", "\n"),
			errForeign},
		"behind a preamble":      {"text\r\n" + parted(part("api_key", theirKey)), errForeign},
		"behind the last one":    {parted(part("a", "1")) + parted(part("api_key", theirKey)), errForeign},
		"very long":              {parted(part("api_key", strings.Repeat("k", 2*maxMember))), errForeign},
		"cut off":                {"--bBb\r\n" + part("api_key", theirKey), errForeign},
		"beside the placeholder": {parted(part("api_key", ourPlaceholder+"\r\n"+theirKey)), errForeign},
		"JSON in a part":         {parted(part("a", `{"api_key":"`+theirKey+`"}`)), errForeign},
		"a folded head": {parted(strings.Replace(part("api_key", theirKey), "; name", ";\r\n name", 1)),
			errForeign},
		"a name in pieces": {parted(strings.Replace(part("api_key", theirKey), `name="api_key"`,
			`name*0="api_"; name*1="key"`, 1)), errForeign},
		"two names": {parted(strings.Replace(part("a", theirKey), `name="a"`, `name="a"; name="api_key"`,
			1)), errUnread},
		"two dispositions": {parted("Content-Disposition: form-data; name=\"a\"\r\n" + part("api_key", theirKey)),
			errUnread},
		"an encoded part": {parted("Content-Transfer-Encoding: base64\r\n" +
			part("api_key", "c2stYXR0YWNrZXJz")), errUnread},
		"a head without end": {"--bBb\r\nX: " + strings.Repeat("x", 2*maxPartHead), errUnread},
		"the placeholder":    {parted(part("api_key", ourPlaceholder), part("b", theirKey), file), nil},
		"a short one":        {parted(part("client_secret", "none"), part("api_key", "")), nil},
		"text about it":      {parted(part("a", "api_key="+theirKey+"\r\n\r\n"+part("api_key", theirKey))), nil},
		"JSON with none":     {parted(part("a", `{"api_key":"`+ourPlaceholder+`","x":"`+theirKey+`"}`)), nil},
		"no parts":           {"--bBb--\r\n", nil},
		"nothing":            {"", nil},
	} {
		for way, reader := range map[string]func(io.Reader) io.Reader{"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			got, err := io.ReadAll(guard(io.NopCloser(reader(strings.NewReader(c.body))), guarding(),
				format{boundary: "bBb"}))
			if !errors.Is(err, c.want) {
				t.Errorf("%s, %s: %v, want %v", name, way, err, c.want)
			}
			if c.want == nil && string(got) != c.body {
				t.Errorf("%s, %s: %q", name, way, got)
			}
			if c.want != nil && (bytes.Contains(got, []byte("sk-att")) || bytes.Contains(got, []byte("kkkk")) ||
				bytes.Contains(got, []byte("c2st"))) {
				t.Errorf("%s, %s: %.100q was sent", name, way, got)
			}
		}
	}
}

// sentFrames is a WebSocket's other end.
type sentFrames struct {
	bytes.Buffer
	closed bool
}

func (s *sentFrames) Close() error { s.closed = true; return nil }

// masked is a frame as a client sends it.
func masked(fin bool, op byte, payload string) []byte {
	b := wsFrame(fin, op, payload)
	head := len(b) - len(payload)
	b[1] |= 0x80
	mask := []byte{0xa5, 0x22, 0x5c, 0x7b}
	out := append(bytes.Clone(b[:head]), mask...)
	for i := range len(payload) {
		out = append(out, payload[i]^mask[i%4])
	}
	return out
}

// Broken if a key of the client's own leaves in the messages of a WebSocket, whole or in part, or if honest ones
// are changed, held back or refused.
func TestForeignKeysInFrames(t *testing.T) {
	join := func(list ...[]byte) []byte { return bytes.Join(list, nil) }
	said := `{"type":"auth","api_key":"` + theirKey + `"}`
	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"a text":     {masked(true, 1, said), errForeign},
		"bytes":      {masked(true, 2, said), errForeign},
		"not masked": {wsFrame(true, 1, said), errFrames},
		"behind another": {join(masked(true, 1, `{"a":1}`), masked(true, 9, "ping"), masked(true, 1, said)),
			errForeign},
		"over frames": {join(masked(false, 1, said[:30]), masked(true, 9, "ping"), masked(false, 0, ""),
			masked(true, 0, said[30:])), errForeign},
		"a byte per frame": {append(perByte(said[:len(said)-1],
			func(s string) []byte {
				return masked(false, map[bool]byte{true: 1}[s == "{"],
					s)
			}), masked(true, 0, "}")...), errForeign},
		"a long one": {masked(true, 1, `{"x":"`+strings.Repeat("x", 70_000)+`","api_key":"`+theirKey+`"}`),
			errForeign},
		"cut off by the last": {masked(true, 1, said[:len(said)-2]), errForeign},
		"compressed":          {append([]byte{0xc1}, masked(true, 1, "x")[1:]...), errFrames},
		"no frames":           {[]byte(said), errFrames},
		"a ping in pieces":    {masked(false, 9, "ping"), errFrames},
		"pings while a key waits": {join(masked(false, 1, said[:30]),
			bytes.Repeat(masked(true, 9, strings.Repeat("p", 100)), maxSending/100)), errUnread},
		"the rest of no message": {masked(true, 0, "x"), errFrames},
		"a message in another":   {join(masked(false, 1, "x"), masked(true, 1, "y")), errFrames},
		"one behind the end":     {join(masked(true, 8, ""), masked(true, 1, "y")), errFrames},
		"the placeholder": {join(masked(true, 1, `{"api_key":"`+ourPlaceholder+`"}`), masked(true, 9, said),
			masked(true, 8, "\x03\xe8")), nil},
		"text": {join(masked(true, 1, "say "+said), masked(true, 2, "\x00\x01"+theirKey),
			masked(true, 1, ""), masked(false, 1, `{"x":"`), masked(true, 0, theirKey+`"}`)), nil},
	} {
		for way, size := range map[string]int{"at once": len(c.in), "byte by byte": 1} {
			to, refused := new(sentFrames), error(nil)
			s := &sending{ReadWriteCloser: to, inj: guarding(), refused: func(why error) { refused = why }}
			var err error
			for at := 0; at < len(c.in) && err == nil; at += size {
				_, err = s.Write(c.in[at:min(at+size, len(c.in))])
			}
			if !errors.Is(err, c.want) || !errors.Is(refused, c.want) || to.closed != (c.want != nil) {
				t.Errorf("%s, %s: %v, told %v, closed %v", name, way, err, refused, to.closed)
			}
			if c.want == nil && !bytes.Equal(to.Bytes(), c.in) {
				t.Errorf("%s, %s: %q", name, way, to.Bytes())
			}
			if plain := unmasked(to.Bytes()); c.want == errForeign && strings.Contains(plain, "sk-") {
				t.Errorf("%s, %s: %.100q was sent", name, way, plain)
			}
		}
	}
}

// unmasked is what frames that masked has made say.
func unmasked(b []byte) string {
	var out []byte
	for len(b) > 6 && b[1]&0x80 != 0 {
		n, size := 2, int(b[1]&0x7f)
		if size == 126 {
			n, size = 4, int(b[2])<<8|int(b[3])
		} else if size == 127 {
			n, size = 10, int(b[7])<<16|int(b[8])<<8|int(b[9])
		}
		mask := b[n : n+4]
		b = b[n+4:]
		for i := range min(size, len(b)) {
			out = append(out, b[i]^mask[i%4])
		}
		b = b[min(size, len(b)):]
	}
	return string(out) + string(b)
}

// Broken if a whole message waits for the next one: the other side would wait for it too.
func TestGuardedFramesDoNotWait(t *testing.T) {
	to := new(sentFrames)
	s := &sending{ReadWriteCloser: to, inj: guarding()}
	for _, part := range [][]byte{masked(true, 1, `{"api_key":"`+ourPlaceholder+`"}`),
		masked(false, 1, `{"text":"half a te`), masked(true, 9, "ping"), masked(true, 0, `xt"}`), masked(true, 1,
			`{"api_key":"none`)} {
		if _, err := s.Write(part); err != nil || !bytes.HasSuffix(to.Bytes(), part) {
			t.Errorf("%q: %q, %v", part, to.Bytes(), err)
		}
	}
}

// Broken if frames of a client can end the gateway, make it hold more than it may, or arrive changed.
func FuzzSending(f *testing.F) {
	f.Add(masked(true, 1, `{"api_key":"`+theirKey+`"}`))
	f.Add(append(masked(false, 1, `{"api_key":"x`), masked(true, 0, `y"}`)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		to := new(sentFrames)
		s := &sending{ReadWriteCloser: to, inj: guarding(), refused: func(error) {}}
		for i := range in {
			if _, err := s.Write(in[i : i+1]); err != nil {
				break
			}
			if len(s.wait) > maxSending+1 || len(s.head) > 14 {
				t.Fatalf("it holds %d and %d bytes", len(s.wait), len(s.head))
			}
		}
		if !bytes.HasPrefix(in, to.Bytes()) || s.err == nil && to.Len()+len(s.wait) != len(in) {
			t.Fatalf("%q became %q", in, to.Bytes())
		}
	})
}

// Broken if a body in parts can end the gateway, make it hold more than one value, or arrive changed.
func FuzzParts(f *testing.F) {
	f.Add([]byte(parted("Content-Disposition: form-data; name=\"api_key\"\r\n\r\n" + theirKey)))
	f.Add([]byte("--bBb\n\n{\"api_key\":\"x\n--bBb--"))
	f.Fuzz(func(t *testing.T, body []byte) {
		g := guard(io.NopCloser(iotest.OneByteReader(bytes.NewReader(body))), guarding(),
			format{boundary: "bBb"}).(*guarded)
		var got []byte
		for b := make([]byte, 1); ; {
			n, err := g.Read(b)
			got = append(got, b[:n]...)
			if len(g.wait) > maxPartHead+1 || len(g.text) > maxMember {
				t.Fatalf("it holds %d and %d bytes", len(g.wait), len(g.text))
			}
			if err != nil {
				break
			}
		}
		if !bytes.HasPrefix(body, got) || g.err == io.EOF && !bytes.Equal(got, body) {
			t.Fatalf("%q became %q", body, got)
		}
	})
}

// Broken if a body waits for what comes later: a client that sends a part and wants an answer to it would wait
// for ever.
func TestGuardedBodiesDoNotWait(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	g := guard(r, guarding(), format{})
	for _, part := range []string{`{"api_key":"` + ourPlaceholder + `"}` + "\n", `{"messages":[{"text":"half a te`,
		`xt"}]}`} {
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
		g := guard(io.NopCloser(iotest.OneByteReader(bytes.NewReader(body))), guarding(), format{form: form}).(*guarded)
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
