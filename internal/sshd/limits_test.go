package sshd

import (
	"net"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Fails if one organization, with however many keys, has all connections, or if one that has gone is counted.
func TestConnectionsOfOneOrganization(t *testing.T) {
	s := New(Config{})
	key := func(org outboard.OrgID, id string) *outboard.SSHKey {
		return &outboard.SSHKey{Org: org, ID: outboard.SSHKeyID(id)}
	}
	var one seat
	for i := range maxPerOrg {
		at, in := s.claim(key("a", string(rune('a'+i/maxPerKey))))
		if !in || at.key == "" {
			t.Fatalf("connection %d: %+v, %v", i, at, in)
		}
		one = at
	}
	if _, in := s.claim(key("a", "new")); in {
		t.Error("one organization has more than its share")
	}
	other, in := s.claim(key("b", "z"))
	if !in {
		t.Error("another organization is kept out")
	}
	s.leave(net.Conn(nil), one, true)
	if _, in := s.claim(key("a", "new")); !in {
		t.Error("a connection that has gone is counted")
	}
	for range maxPerKey - 1 {
		if at, in := s.claim(key("b", "z")); !in || at.key == "" {
			t.Fatal("the share of a key is less than it says")
		}
	}
	if at, in := s.claim(key("b", "z")); !in || at.key != "" {
		t.Errorf("one more of a key: %+v, %v", at, in)
	}
	s.leave(nil, other, true)
}
