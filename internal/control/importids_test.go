package control_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// imports imports parts of an export as somebody.
func imports(t testing.TB, c *control.Control, by outboard.Caller, parts []part) control.Session {
	t.Helper()
	s, err := c.Import(t.Context(), by, fileOf(t, parts), control.ImportRequest{Unsigned: true})
	if err != nil {
		t.Fatal(err)
	}
	return s.Session
}

// renamed is parts of an export with another name for something, in all of them or in one.
func renamed(parts []part, only, old, to string) []part {
	var out []part
	for _, p := range parts {
		if only == "" || p.name == only {
			p.data = bytes.ReplaceAll(p.data, []byte(old), []byte(to))
		}
		out = append(out, p)
	}
	return out
}

// If this fails, a session that somebody imports spends of another organization's budgets and limits, falls
// under its kills, or leaves those of its own; or a fork from its log starts in an environment that nobody has
// checked.
func TestImportNamesItsOwn(t *testing.T) {
	c, _, _ := parts(t)
	s := session(t, c)
	file := partsOf(t, c, s.ID)
	other := sessionOf(t, c, stranger, "")
	agent, env := string(s.AgentID), string(s.EnvironmentID)
	unknown := renamed(renamed(file, "", agent, "agent_01nobody"), "", env, "env_01nobody")
	for what, row := range map[string]struct {
		by         outboard.Caller
		file       []part
		agent, env string // "" = one that nobody has
	}{
		"its own":                   {admin, file, agent, env},
		"another organization's":    {stranger, file, "", ""},
		"unknown":                   {admin, unknown, "", ""},
		"an agent that is not here": {admin, renamed(file, "", agent, "agent_01nobody"), "", env},
		"its own before another's": {stranger,
			renamed(renamed(file, "session.json", `"agent_id": "`+agent, `"agent_id": "`+string(other.AgentID)),
				"session.json", `"environment_id": "`+env, `"environment_id": "`+string(other.EnvironmentID)), string(other.AgentID), string(other.EnvironmentID)},
	} {
		got := imports(t, c, row.by, row.file)
		forks, _, err := c.Fork(t.Context(), row.by, got.ID, control.ForkRequest{Seq: 1})
		if err != nil {
			t.Fatal(err)
		}
		for which, s := range map[string]control.Session{"the session": got, "a fork from its log": forks[0]} {
			if s.Config.Agent.ID != s.AgentID || s.Config.Environment != s.EnvironmentID {
				t.Errorf("%s: %s goes by %s and %s, and says %s and %s", what, which, s.Config.Agent.ID,
					s.Config.Environment, s.AgentID, s.EnvironmentID)
			}
			a, e := string(s.AgentID), string(s.EnvironmentID)
			if row.agent != "" && a != row.agent || row.env != "" && e != row.env {
				t.Errorf("%s: %s has %s and %s", what, which, a, e)
			}
			_, none := c.Agent(t.Context(), admin, s.AgentID, 0)
			if row.agent == "" && (a == agent || a == "agent_01nobody" || outboard.KindOf(none) != outboard.NotFound ||
				!outboard.ValidID(outboard.PrefixAgent, a)) {
				t.Errorf("%s: %s has the agent %s", what, which, a)
			}
			_, none = c.Environment(t.Context(), admin, s.EnvironmentID)
			if row.env == "" && (e == env || e == "env_01nobody" || outboard.KindOf(none) != outboard.NotFound ||
				!outboard.ValidID(outboard.PrefixEnvironment, e)) {
				t.Errorf("%s: %s has the environment %s", what, which, e)
			}
		}
	}
	rooted := renamed(file, "events/00000001.jsonl", `"env":{`, `"env":{"rootfs":"/etc",`)
	if bytes.Equal(rooted[2].data, file[2].data) || !strings.HasPrefix(file[2].name, "events/") {
		t.Fatalf("the log has no environment: %s", file[2].data)
	}
	got := imports(t, c, admin, rooted)
	forks, _, err := c.Fork(t.Context(), admin, got.ID, control.ForkRequest{Seq: 1})
	if err != nil || forks[0].Config.Env.Rootfs != "" {
		t.Errorf("a fork from the log starts in %q, %v", forks[0].Config.Env.Rootfs, err)
	}
}
