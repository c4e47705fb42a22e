package guest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/guest/form"
	"github.com/outboard-dev/outboard/internal/guest/form/formtest"
)

var updateLayout = flag.Bool("update", false, "write what a golden file is to be")

// messages are all that are sent, or written to a journal, by position.
func messages() []form.Message {
	return []form.Message{new(requestHead), new(Start), new(Result), new(Error), new(Save), new(Saved), new(keyArg),
		new(waitArg), new(loadArg), new(fileArg),
		new(dialArg), new(fsArg), new(Entry), new(processStart), new(processAttach), new(processControl), new(ProcessRef), new(ProcessExit),
		new(Size), new(record), new(outcome), new(boot.Config), new(boot.Identity), new(boot.Bind), new(boot.Dir), new(boot.Uplink)}
}

// layouts describes all that host and guest, or a guest and the journal of the one before, know by its place alone.
func layouts() string {
	var b strings.Builder
	fmt.Fprintf(&b, "version %d\n", ProtocolVersion)
	for _, m := range messages() {
		fmt.Fprintln(&b, formtest.Layout(m))
	}
	for k := kindRequest; k <= kindLine; k++ {
		fmt.Fprintf(&b, "frame %d: %x\n", k,
			appendFrame(nil, frame{kind: k, id: 0x01020304, head: []byte("head"), body: []byte("body")}))
	}
	kinds := []kind{kindRequest, kindResponse, kindFailure, kindData, kindEnd, kindCredit, kindCancel, kindLine}
	fmt.Fprintf(&b, "request, response, failure, data, end, credit, cancel, line: %d\n", kinds)
	fmt.Fprintf(&b, "started, stdout, stderr, terminal, lost: %d\n", []ProcessKind{Started, Stdout, Stderr, Terminal,
		Lost})
	fmt.Fprintf(&b, "process event: %x\n", appendRecord(nil, Stderr, 0x0102030405060708, []byte("data")))
	filled := new(processStart)
	formtest.Fill(filled)
	filled.Env = nil // a map has no order, and a key would need one
	fmt.Fprintf(&b, "values: %x\n", form.Encode(filled))
	return b.String()
}

// If this fails, what a field of a message means has changed and the version has not: a sandbox that another build
// left running is misread, a user is taken for a directory, instead of being refused and replaced.
func TestLayoutsHaveTheirVersion(t *testing.T) {
	path := filepath.Join("testdata", "layouts.txt")
	golden, err := os.ReadFile(path)
	if err != nil && !(*updateLayout && os.IsNotExist(err)) {
		t.Fatal(err)
	}
	now := layouts()
	if now == string(golden) {
		return
	}
	was, _, _ := strings.Cut(string(golden), "\n")
	is, _, _ := strings.Cut(now, "\n")
	if was == is {
		t.Fatalf("the layouts are not those of %s. Raise form.Version, then run go test ./internal/guest -run "+
			"TestLayouts -update\n%s",
			was, differing(string(golden), now))
	}
	if !*updateLayout {
		t.Fatalf("the golden file has %s, the code %s: run go test ./internal/guest -run TestLayouts -update", was, is)
	}
	if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
		t.Fatal(err)
	}
}

func differing(was, is string) string {
	var b strings.Builder
	old := strings.Split(was, "\n")
	for i, line := range strings.Split(is, "\n") {
		if i >= len(old) || old[i] != line {
			if i < len(old) {
				fmt.Fprintln(&b, "-", old[i])
			}
			fmt.Fprintln(&b, "+", line)
		}
	}
	return b.String()
}

// swapped is processStart with two fields of one type in the other's place.
type swapped struct{ processStart }

// Fields exchanges the working directory and the user.
func (s *swapped) Fields() []any {
	all := s.processStart.Fields()
	all[2], all[3] = all[3], all[2]
	return all
}

// If this fails, the golden file does not see what it is for.
func TestLayoutTellsFieldsApart(t *testing.T) {
	plain := formtest.Layout(new(processStart))
	if !strings.Contains(plain, "ProcessStart.Cwd string, ProcessStart.User string") ||
		!strings.Contains(plain, "{guest.Size: Cols uint16, Rows uint16}") {
		t.Error(plain)
	}
	if got := formtest.Layout(new(swapped)); !strings.Contains(got,
		".User string, processStart.ProcessStart.Cwd string") {
		t.Errorf("two fields that were exchanged: %s", got)
	}
}

// If this fails, a host or a guest reads what one of another version has written.
func TestMessagesOfAnotherVersion(t *testing.T) {
	for _, m := range messages() {
		formtest.Fill(m)
		b := form.Encode(m)
		if err := form.Decode(b, m); err != nil {
			t.Errorf("control: %T: %v", m, err)
		}
		for _, version := range []byte{b[0] - 1, b[0] + 1} {
			b[0] = version
			for name, decode := range map[string]func([]byte, form.Message) error{"Decode": form.Decode,
				"DecodeText": form.DecodeText} {
				if err := decode(b, m); err == nil || !strings.Contains(err.Error(), "different versions") {
					t.Errorf("%s takes a %T of version %d: %v", name, m, version, err)
				}
			}
			b[0] = ProtocolVersion
		}
	}
}

// If this fails, a host of another version starts something in a sandbox, or believes an answer.
func TestPeersOfAnotherVersion(t *testing.T) {
	for _, version := range []byte{ProtocolVersion - 1, ProtocolVersion, ProtocolVersion + 1} {
		head := newHead(opStart, &Start{Key: "k", Op: "exec"}, false)
		head = bytes.ReplaceAll(head, []byte{ProtocolVersion}, []byte{version}) // of the head, and of the message in it
		asked := 0
		here, there := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			serve(t.Context(), there, func(context.Context, requestHead, []byte, *stream) ([]byte, []byte, error) {
				asked++
				return form.Encode(form.None{}), nil, nil
			})
		}()
		go func() { _, _ = here.Read(make([]byte, 1<<10)); here.Close() }()
		here.Write(appendFrame(nil, frame{kind: kindRequest, id: 1, head: head}))
		<-done
		if (asked == 1) != (version == ProtocolVersion) {
			t.Errorf("a guest does %d of what a host of version %d asks for", asked, version)
		}
		c := hostile(t, func(conn net.Conn) {
			b := form.Encode(&Result{Key: "k", State: StateDone})
			b[0] = version
			conn.Write(appendFrame(nil, frame{kind: kindResponse, id: 1, head: b}))
		})
		_, err := c.Wait(t.Context(), "k", 1)
		if (err == nil) != (version == ProtocolVersion) {
			t.Errorf("a host takes the answer of a guest of version %d: %v", version, err)
		}
	}
}
