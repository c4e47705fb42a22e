package egress_test

import (
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outboard-dev/outboard/internal/egress"
)

// call is a message of gRPC with one field.
func call(text string) string {
	message := string(binary.AppendUvarint([]byte{0x0a}, uint64(len(text)))) + text
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
}

// Broken if a key of the client's own reaches a host that has a placeholder in a call of gRPC, or if honest
// calls do not arrive, message by message, with what the server says between them.
func TestForeignKeyInACall(t *testing.T) {
	const ph, foreign = "sk-outboard0123456789abcdef0123456789abcdef01234567", "sk-attackers-own-key-0123456789"
	r := newRig(t, rules(anyPort("a.test"), anyPort("b.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			RefuseBody: []string{"api_key"}, RefuseShapes: []string{"sk-"}, Replace: []egress.Placeholder{{Placeholder: ph,
				Value: "the-real-key", Header: true}}}}))
	var leaked atomic.Bool
	r.mux.HandleFunc("/echo.Service/Talk", func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_ = http.NewResponseController(w).EnableFullDuplex()
		for buf := make([]byte, 4<<10); ; {
			n, err := q.Body.Read(buf)
			if strings.Contains(string(buf[:n]), foreign) && strings.HasPrefix(q.Host, "a.test") {
				leaked.Store(true)
			}
			_, _ = w.Write(buf[:n])
			_ = http.NewResponseController(w).Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set("Grpc-Status", "0")
	})
	talk := func(host, kind string, header http.Header, messages ...string) (status int, got string) {
		out, in := io.Pipe()
		q, err := http.NewRequestWithContext(t.Context(), "POST", r.https(host, "/echo.Service/Talk"), out)
		if err != nil {
			t.Fatal(err)
		}
		q.Header = header.Clone()
		q.Header.Set("Content-Type", kind)
		go func() { _, _ = io.WriteString(in, messages[0]) }()
		resp, err := r.client(true).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		defer in.Close()
		for i, m := range messages { // the next one goes when this one has come back
			if i > 0 {
				go func() { _, _ = io.WriteString(in, m) }()
			}
			b := make([]byte, len(m))
			n, err := io.ReadFull(resp.Body, b)
			if got += string(b[:n]); err != nil {
				return resp.StatusCode, got
			}
		}
		in.Close()
		rest, err := io.ReadAll(resp.Body)
		if resp.StatusCode == http.StatusOK && (err != nil || resp.Trailer.Get("Grpc-Status") != "0") {
			t.Errorf("the end: %v, %v", err, resp.Trailer)
		}
		return resp.StatusCode, got + string(rest)
	}
	for _, kind := range []string{"application/grpc", "application/grpc+proto", "application/connect+proto"} {
		honest := []string{call("hello"), call("Bearer " + ph), call(strings.Repeat("long ", 20_000)), call("")}
		if status, got := talk("a.test", kind, http.Header{}, honest...); status != 200 ||
			got != strings.Join(honest, "") {
			t.Errorf("%s, the control: %d, %d bytes", kind, status, len(got))
		}
		if status, got := talk("a.test", kind, http.Header{}, call(foreign)); status != 403 ||
			!strings.Contains(got, "outboard") {
			t.Errorf("%s: %d %q", kind, status, got)
		}
		if _, got := talk("a.test", kind, http.Header{}, call("hello"), call(foreign)); got != call("hello") {
			t.Errorf("%s, the second message: %q", kind, got)
		}
		if status, got := talk("b.test", kind, http.Header{}, call(foreign), call("x")); status != 200 ||
			got != call(foreign)+call("x") {
			t.Errorf("%s, a host without a placeholder: %d %q", kind, status, got)
		}
	}
	for name, c := range map[string]struct {
		kind   string
		header http.Header
	}{
		"in base64":     {"application/grpc-web-text", http.Header{}},
		"snappy":        {"application/grpc", http.Header{"Grpc-Encoding": {"snappy"}}},
		"two encodings": {"application/grpc", http.Header{"Grpc-Encoding": {"identity", "gzip"}}},
		"one for each": {"application/grpc", http.Header{"Grpc-Encoding": {"identity"},
			"Connect-Content-Encoding": {"gzip"}}},
		"of several ones": {"application/grpc", http.Header{"Grpc-Encoding": {"gzip, deflate"}}},
	} {
		if status, got := talk("a.test", c.kind, c.header, call("hello")); status != 415 {
			t.Errorf("%s: %d %q", name, status, got)
		}
	}
	if status, got := talk("a.test", "application/grpc", http.Header{"Grpc-Encoding": {"identity"}},
		call("hello")); status != 200 || got != call("hello") {
		t.Errorf("the control: %d %q", status, got)
	}
	if leaked.Load() {
		t.Error("a key of the client's own has arrived")
	}
}
