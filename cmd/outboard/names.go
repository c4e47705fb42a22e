package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
)

// The words of a session's name, 64 of each, short and hard to mishear.
const (
	adjectives = "able amber arch bold brave brisk calm clear cool crisp dark deep dry early fair fast fine firm " +
		"fleet fond free fresh glad " +
		"gold good grand green happy high keen kind late light long loud lucky mild near neat new noble odd pale " +
		"plain proud quick quiet " +
		"rapid rare red ripe safe sharp slow small smart soft spry still sunny swift tall warm wise"
	nouns = "badger bat bear bee bison boar camel carp cat cod crab crane crow deer dove duck eagle eel elk falcon " +
		"finch fox frog gecko " +
		"goat goose gull hare hawk heron horse ibis jay koala lark lion lynx mole moose moth mouse newt otter owl " +
		"panda perch pike " +
		"puffin quail ram raven robin seal shrew snail stork swan tern toad trout viper wasp whale wolf"
)

// sessionName returns a name for people, such as calm-otter-7f2. It is a function of the id alone, so every
// machine shows the same one and nobody stores it.
func sessionName(id string) string {
	sum := sha256.Sum256([]byte(id))
	a, n := strings.Fields(adjectives), strings.Fields(nouns)
	return fmt.Sprintf("%s-%s-%02x%x", a[int(sum[0])%len(a)], n[int(sum[1])%len(n)], sum[2], sum[3]>>4)
}

// findSession resolves a name, an id, or an unambiguous beginning of either.
func findSession(ctx context.Context, c *client.Client, ref string) (client.Session, error) {
	if outboard.ValidID(outboard.PrefixSession, ref) {
		s, err := c.Session(ctx, ref)
		if err == nil || outboard.KindOf(err) != outboard.NotFound {
			return s, err
		}
	}
	return pickSession(ref, c.Sessions(ctx, true))
}

// maxMeant is how many names are looked at for one that is nearly what was typed.
const maxMeant = 1000

// pickSession chooses the session that ref means. An exact name wins over names that begin with it.
func pickSession(ref string, all iter.Seq2[client.Session, error]) (client.Session, error) {
	var found []client.Session
	var names []string
	for s, err := range all {
		if err != nil {
			return client.Session{}, err
		}
		name := sessionName(s.ID)
		if name == ref || s.ID == ref {
			return s, nil
		}
		if len(names) < maxMeant {
			names = append(names, name)
		}
		if ref != "" && (strings.HasPrefix(name, ref) || strings.HasPrefix(s.ID, ref)) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 0:
		return client.Session{}, outboard.Errorf(outboard.NotFound, "there is no session %q", ref).
			WithHint("%soutboard ls -a lists them", meant("", ref, names))
	case 1:
		return found[0], nil
	}
	names = nil
	for _, s := range found[:min(len(found), 5)] {
		names = append(names, sessionName(s.ID))
	}
	return client.Session{}, outboard.Errorf(outboard.Invalid, "%q means %d sessions: %s", ref, len(found),
		strings.Join(names, ", ")).
		WithHint("write more of the name")
}

// orListed says of what there is none of by that name which command lists what there is.
func orListed(err error, command string) error {
	if e, ok := errors.AsType[*outboard.Error](err); ok && e.Kind == outboard.NotFound && e.Hint == "" {
		return e.WithHint("%s", command)
	}
	return err
}

// eachOf does something with each of what was named, as rm does. All are tried, and what could not be done is
// told together at the end, the first deciding the exit code; but for a server that is gone, of which once is
// enough.
func eachOf(ctx context.Context, refs []string, do func(ref string) error) error {
	var all error
	for _, ref := range refs {
		err := do(ref)
		all = errors.Join(all, err)
		if _, gone := errors.AsType[*client.TransportError](err); gone || ctx.Err() != nil {
			break
		}
	}
	return all
}
