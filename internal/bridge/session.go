package bridge

import (
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// A session is the state of a shell between commands: its directory and its exported variables. It is a file in
// the box's home directory, which each command of the session reads first and writes when it ends, so the server
// remembers nothing, and a session lasts as long as the box, through pauses. Commands of one session at the same
// time each begin with what there is; the last to end says what the next find.
//
// What the file holds was written by programs of the box, and only they read it.

// sessionDir is below the home directory.
const sessionDir = ".outboard-bridge"

// maxSessionText bounds what a session is made with.
const maxSessionText = 64 << 10

var (
	sessionName  = regexp.MustCompile(`^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,127}$`)
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// enterSession restores a session's state; $0 is its name. What follows is run in it.
const enterSession = `f=$HOME/` + sessionDir +
	`/$0; . "$f" || exit 126; cd -- "$OUTBOARD_SESSION_DIR" || exit 126; unset OUTBOARD_SESSION_DIR; `

// sessionShell runs $1 as a line of the session's shell, so cd and export mean the next command, too.
const sessionShell = enterSession +
	`trap 'OUTBOARD_SESSION_DIR=$PWD; export OUTBOARD_SESSION_DIR; export -p > "$f.$$" && mv "$f.$$" "$f"' EXIT; eval "$1"`

// sessionStart runs a program that has no state to give back: a terminal's.
const sessionStart = enterSession + `exec "$@"`

// tagOf names the terminal of a session.
func tagOf(sid string) string { return "bridge-pty-" + sid }

func sessionFile(sid string) control.FileRef {
	return control.FileRef{Path: control.Name("~/" + sessionDir + "/" + sid)}
}

// session returns the session that a request names, by header or for a terminal by query; "" = none.
func (s *Server) session(r *request, m control.Sandbox) (string, error) {
	sid := r.Header.Get("Session-Id")
	if sid == "" && strings.HasSuffix(r.URL.Path, "/pty") {
		sid = r.URL.Query().Get("session")
	}
	if sid == "" {
		return "", nil
	}
	return sid, s.hasSession(r, m, sid)
}

// hasSession is NotFound for a session that was not made, or was deleted.
func (s *Server) hasSession(r *request, m control.Sandbox, sid string) error {
	if !validSession(sid) {
		return outboard.Errorf(outboard.Invalid, "%q is not the name of a session", clip(sid))
	}
	_, err := m.Stat(r.Context(), sessionFile(sid))
	if bad, ok := errors.AsType[*control.Refusal](err); ok && bad.Code == "not_found" {
		return outboard.Errorf(outboard.NotFound, "there is no session %q in this sandbox", sid)
	}
	return control.BoxError(err)
}

func validSession(sid string) bool {
	return sessionName.MatchString(sid) && !strings.Contains(sid, "..")
}

// inSession is a start in a session: its directory and variables, and for a terminal the tag it is found by.
func inSession(sid string, p control.ProcessStart) control.ProcessStart {
	if p.Terminal != nil {
		p.Tag = tagOf(sid)
		p.Patient, p.HangUp = false, false // it goes on without anybody who looks
		p.Argv = append([]string{"/bin/sh", "-c", sessionStart, sid}, p.Argv...)
		return p
	}
	line := make([]string, len(p.Argv))
	for i, a := range p.Argv {
		line[i] = quote(a)
	}
	text := strings.Join(line, " ")
	if p.Cwd != "" {
		text = "cd -- " + quote(p.Cwd) + " && " + text
	}
	p.Argv, p.Cwd = []string{"/bin/sh", "-c", sessionShell, sid, text}, ""
	return p
}

// quote makes a word of a shell's line of any text.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// newSession makes a session.
func (s *Server) newSession(r *request) error {
	var in struct {
		ID  string            `json:"id"`
		Cwd string            `json:"cwd"`
		Env map[string]string `json:"env"`
	}
	if err := r.decode(&in); err != nil {
		return err
	}
	if in.ID == "" {
		in.ID = "s" + strings.ToLower(rand.Text())
	}
	if !validSession(in.ID) {
		return outboard.Errorf(outboard.Invalid, "id: a session is called by letters, digits, -, _ and ., not %q",
			clip(in.ID))
	}
	if in.Cwd == "" {
		in.Cwd = workspace
	}
	text, err := stateOf(in.Cwd, in.Env)
	if err != nil {
		return err
	}
	m, err := s.machine(r)
	if err != nil {
		return err
	}
	if err := s.hasSession(r, m, in.ID); err == nil {
		return outboard.Errorf(outboard.Conflict, "there is a session %q already", in.ID)
	} else if outboard.KindOf(err) != outboard.NotFound {
		return err
	}
	// Whether its commands can begin there is asked by beginning one: only the box knows, and a session that
	// cannot be used would say so late.
	exit, err := run(r.Context(), m, control.ProcessStart{Argv: []string{"/bin/sh", "-c", "exit 0"}, Cwd: in.Cwd,
		TimeoutMs: endTimeout.Milliseconds()},
		func(control.ProcessEvent) error { return nil })
	if err != nil {
		return control.BoxError(err)
	}
	if exit.Timeout || code(exit) != 0 {
		return outboard.Errorf(outboard.Unavailable, "cwd: whether commands can begin in %q is not known, as one "+
			"that tried did not end well", clip(in.Cwd))
	}
	if _, err := m.WriteFile(r.Context(), sessionFile(in.ID), nil, strings.NewReader(text)); err != nil {
		return control.BoxError(err)
	}
	reply(r.w, http.StatusOK, map[string]string{"id": in.ID})
	return nil
}

// stateOf is a session's file as its first command finds it.
func stateOf(cwd string, env map[string]string) (string, error) {
	var text strings.Builder
	text.WriteString("export OUTBOARD_SESSION_DIR=" + quote(cwd) + "\n")
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if !variableName.MatchString(k) {
			return "", outboard.Errorf(outboard.Invalid, "env: %q is not the name of a variable", clip(k))
		}
		text.WriteString("export " + k + "=" + quote(env[k]) + "\n")
	}
	if all := text.String(); len(all) <= maxSessionText && !strings.ContainsRune(all, 0) {
		return all, nil
	}
	return "", outboard.Errorf(outboard.Invalid, "cwd and env have at most %d bytes together, none of them zero",
		maxSessionText)
}

// endSession forgets a session and ends its terminal.
func (s *Server) endSession(r *request) error {
	m, err := s.machine(r)
	if err != nil {
		return err
	}
	sid := r.PathValue("sid")
	if err := s.hasSession(r, m, sid); err != nil {
		return err
	}
	if err := m.Remove(r.Context(), sessionFile(sid)); err != nil {
		return control.BoxError(err)
	}
	pid, err := running(r.Context(), m, tagOf(sid))
	if err == nil && pid != 0 {
		err = hangUp(r.Context(), m, control.ProcessRef{Pid: pid})
	}
	if err != nil {
		return control.BoxError(err)
	}
	reply(r.w, http.StatusOK, map[string]any{"success": true, "sessionId": sid})
	return nil
}
