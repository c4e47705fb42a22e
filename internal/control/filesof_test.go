package control_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/store"
)

// stranger administers another organization than admin.
var stranger = outboard.Caller{Key: "apikey_01stranger", Name: "stranger", Role: "admin", Org: "org_01stranger"}

// sessionOf makes one of somebody's, with the work in a file sent along unless that is "".
func sessionOf(t testing.TB, c *control.Control, by outboard.Caller, sent outboard.FileID) control.Session {
	t.Helper()
	a, err := c.CreateAgent(t.Context(), by, outboard.Agent{Name: "a", Model: outboard.ModelConfig{ID: "script/steps"}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.CreateEnvironment(t.Context(), by, control.EnvironmentPatch{Name: new(string(a.ID))})
	if err != nil {
		t.Fatal(err)
	}
	r := control.SessionRequest{Agent: a.ID, EnvironmentID: e.ID}
	if sent != "" {
		r.Metadata = map[string]string{fleet.WorkspaceKey: string(sent) + ":tar"}
	}
	s, err := c.CreateSession(t.Context(), by, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// upload makes a file of somebody's.
func upload(t testing.TB, c *control.Control, by outboard.Caller, content string) outboard.FileID {
	t.Helper()
	ref, err := c.StoreBytes(t.Context(), by, strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	f, err := c.CreateFile(t.Context(), by, control.Upload{Filename: "f", MediaType: "application/octet-stream"}, ref)
	if err != nil {
		t.Fatal(err)
	}
	return f.ID
}

// exportsWith exports a session and reports whether some content is in it.
func exportsWith(t testing.TB, c *control.Control, by outboard.Caller, id outboard.SessionID, content string) bool {
	t.Helper()
	for _, p := range partsBy(t, c, by, id) {
		if bytes.Contains(p.data, []byte(content)) {
			return true
		}
	}
	return false
}

// If this fails, who knows the id of another organization's file reads it, or learns that there is one.
func TestFilesOfOthers(t *testing.T) {
	c, st, _ := parts(t)
	// and a picture
	const content = "GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff\x2c\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00;what is only the owner's"
	file := upload(t, c, admin, content)
	none := outboard.NewID[outboard.FileID](outboard.PrefixFile)
	ways := map[string]func(by outboard.Caller, id outboard.FileID) (bool, error){}
	for _, kind := range []string{"document", "image"} {
		block := func(id outboard.FileID) []outboard.Content {
			return []outboard.Content{{Type: kind, Source: &outboard.Source{Type: "file", File: id}}}
		}
		ways["a message with a "+kind] = func(by outboard.Caller, id outboard.FileID) (bool, error) {
			evs, err := c.Send(t.Context(), by, sessionOf(t, c, by, "").ID,
				[]outboard.Payload{&outboard.InputMessage{Content: block(id)}})
			return err == nil && strings.Contains(string(evs[0].Data), `"digest"`), err
		}
		ways["a first message with a "+kind] = func(by outboard.Caller, id outboard.FileID) (bool, error) {
			s := sessionOf(t, c, by, "")
			s, err := c.CreateSession(t.Context(), by, control.SessionRequest{Agent: s.AgentID,
				EnvironmentID: s.EnvironmentID,
				Initial:       []outboard.Payload{&outboard.InputMessage{Content: block(id)}}})
			return err == nil && exportsWith(t, c, by, s.ID, content), err
		}
	}
	ways["an export"] = func(by outboard.Caller, id outboard.FileID) (bool, error) {
		return exportsWith(t, c, by, sessionOf(t, c, by, id).ID, content), nil
	}
	ways["an export of what the log says was given out"] = func(by outboard.Caller, id outboard.FileID) (bool, error) {
		s := sessionOf(t, c, by, "")
		if _, err := st.Append(t.Context(), s.ID, 0, store.Any, outboard.NewEvent(s.Thread,
			&outboard.FileHarvested{File: id, Path: "f"})); err != nil {
			t.Fatal(err)
		}
		return exportsWith(t, c, by, s.ID, content), nil
	}
	ways["a fork"] = func(by outboard.Caller, id outboard.FileID) (bool, error) {
		return forkHas(t, c, st, by, sessionOf(t, c, by, id).ID), nil
	}
	ways["a fork with what is mounted"] = func(by outboard.Caller, id outboard.FileID) (bool, error) {
		s := sessionOf(t, c, by, "")
		mounted := []outboard.Resource{{ID: "sesrsc_01x", Kind: "file", File: id, MountPath: "/mnt/session/uploads/f"}}
		s.Config.Resources = mounted
		if _, err := st.Commit(context.WithoutCancel(t.Context()), store.Commit{Session: s.ID, Expect: store.Any,
			Config: &s.Config,
			Events: []outboard.Event{outboard.NewEvent(s.Thread,
				&outboard.SessionUpdated{Resources: &mounted})}}); err != nil {
			t.Fatal(err)
		}
		return forkHas(t, c, st, by, s.ID), nil
	}
	for what, way := range ways {
		if reached, err := way(admin, file); err != nil || !reached {
			t.Errorf("%s: its owner does not reach it: %v", what, err)
		}
		reached, err := way(stranger, file)
		if reached {
			t.Errorf("%s: another organization reaches it", what)
		}
		_, like := way(stranger, none)
		if told(err, file) != told(like, none) {
			t.Errorf("%s: of another's file it says %q, of none %q", what, told(err, file), told(like, none))
		}
	}
}

// told is what an error says, whichever file it is about.
func told(err error, id outboard.FileID) string {
	if err == nil {
		return ""
	}
	return string(outboard.KindOf(err)) + ": " + strings.ReplaceAll(err.Error(), string(id), "ID")
}

// forkHas forks a session and reports whether the fork has a file.
func forkHas(t testing.TB, c *control.Control, st *store.Store, by outboard.Caller, id outboard.SessionID) bool {
	t.Helper()
	made, _, err := c.Fork(t.Context(), by, id, control.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	files, err := st.Files(t.Context(), made[0].ID, nil, store.Page{Limit: 10}) // whosever they are
	if err != nil {
		t.Fatal(err)
	}
	return len(files) > 0
}
