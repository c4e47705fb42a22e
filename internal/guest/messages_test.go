package guest

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/guest/form"
	"github.com/outboard-dev/outboard/internal/guest/form/formtest"
)

// If this fails, a field of a request, an answer or a receipt is lost on its way.
func TestMessagesAreWhole(t *testing.T) {
	formtest.Whole(t, messages()...)
}

// If this fails, a host cannot tell a guest of another version from one that is broken, or such a host not this guest.
func TestHelloOfAnotherVersion(t *testing.T) {
	const asked = `{"op":"hello","arg":null}` // by hosts of every version
	if got := string(newHead(opHello, nil, false)); got != asked {
		t.Errorf("a guest is asked %s", got)
	}
	h, err := readHead([]byte(asked))
	if err != nil || h.Op != opHello || h.Arg != nil || h.More {
		t.Errorf("a guest reads %+v, %v", h, err)
	}
	if _, err := readHead([]byte(`{"op":"start","arg":{}}`)); err == nil {
		t.Error("a guest takes what hosts of another version ask for")
	}
	c := hostile(t, func(conn net.Conn) {
		conn.Write(appendFrame(nil, frame{kind: kindResponse, id: 1,
			head: []byte(`{"version":1,"generation":"g","max_epoch":3,"pid":1}`)}))
	})
	if _, err := c.Hello(t.Context()); err == nil || err.Error() != fmt.Sprint("guest speaks protocol version 1, "+
		"this host ", ProtocolVersion) {
		t.Errorf("a guest of version 1: %v", err)
	}
}

// If this fails, the text of a sandbox that was taken over reaches people and databases as what is no text.
func TestTextsOfAGuest(t *testing.T) {
	err, ok := refusal(form.Encode(&Error{Code: "x\xff", Message: "y\xff"})).(*Error)
	if !ok || err.Code != "x\uFFFD" || err.Message != "y\uFFFD" {
		t.Errorf("a refusal: %v", err)
	}
	c := hostile(t, func(conn net.Conn) {
		e := Entry{Path: "/\xff", Kind: "\xff", Owner: "\xff", Group: "\xff", Target: "\xff",
			Attrs: map[string]string{"\xff": "\xff"}}
		conn.Write(appendFrame(nil, frame{kind: kindResponse, id: 1, head: form.Encode(&e)}))
	})
	e, failed := c.Stat(t.Context(), FileRef{Path: "/x"})
	if failed != nil || e.Path != "/\xff" || e.Target != "\xff" || e.Kind+e.Owner+e.Group != strings.Repeat("\uFFFD",
		3) || e.Attrs["\uFFFD"] != "\uFFFD" {
		t.Errorf("%+v, %v", e, failed)
	}
	var old map[string]any
	if json.Unmarshal(form.Encode(&e), &old) == nil {
		t.Error("a message is JSON: a peer of another version might take it")
	}
}
