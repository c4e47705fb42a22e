package control_test

import (
	"context"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/store"
)

// Broken if something can be changed and nobody can find out who did it, or it happens though it cannot be recorded.
func TestChangesAreRecorded(t *testing.T) {
	c, st, _ := parts(t)
	s := session(t, c)
	ctx := t.Context()
	name, other := "v", "w"
	env, err := c.CreateEnvironment(ctx, admin, control.EnvironmentPatch{Name: &name})
	if err != nil {
		t.Fatal(err)
	}
	var forks []control.Session
	for what, do := range map[string]func(context.Context) error{
		"agent.update": func(ctx context.Context) error {
			_, err := c.UpdateAgent(ctx, admin, s.AgentID, control.AgentPatch{System: &other})
			return err
		},
		"environment.update": func(ctx context.Context) error {
			_, err := c.UpdateEnvironment(ctx, admin, env.ID,
				control.EnvironmentPatch{Config: func(e *outboard.EnvConfig) { e.Networking.Mode = "unrestricted" }})
			return err
		},
		"session.fork": func(ctx context.Context) error {
			got, _, err := c.Fork(ctx, admin, s.ID, control.ForkRequest{Count: 2})
			forks = append(forks, got...)
			return err
		},
		"session.rewind": func(ctx context.Context) error {
			_, _, err := c.Rewind(ctx, admin, s.ID, control.RewindRequest{Seq: 1, Conversation: true})
			return err
		},
		"policy.save": func(ctx context.Context) error {
			_, err := c.SavePolicy(ctx, admin, outboard.Policy{Level: outboard.LevelOrganization, Text: "// nothing"},
				-1)
			return err
		},
		"network.allow": func(ctx context.Context) error {
			_, err := c.AllowNetwork(ctx, admin, s.ID, outboard.NetRule{Host: "a.test"}, control.AllowOnce)
			return err
		},
	} {
		if err := do(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		list, err := st.AuditEntries(ctx, store.AuditQuery{Action: what, Actor: string(admin.Key)})
		if err != nil || len(list) != 1 {
			t.Errorf("%s: %d records, %v", what, len(list), err)
		}
	}
	for _, f := range forks {
		if err := c.DeleteSession(ctx, admin, f.ID); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := st.AuditEntries(ctx, store.AuditQuery{Action: "session.delete"}); err != nil || len(list) != 2 ||
		len(forks) != 2 {
		t.Errorf("%d deletions of %d forks, %v", len(list), len(forks), err)
	}
	if list, err := st.AuditEntries(ctx, store.AuditQuery{Text: "unrestricted"}); err != nil || len(list) != 1 {
		t.Errorf("opening the network: %d records, %v", len(list), err)
	}
	st.SealAudit(context.Canceled)
	before, _, err := c.Sessions(ctx, admin, control.SessionFilter{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CreateSession(ctx, admin, control.SessionRequest{Agent: s.AgentID, EnvironmentID: env.ID})
	if outboard.KindOf(err) != outboard.Unavailable || !strings.Contains(err.Error(), "recorded") {
		t.Errorf("without a record: %v", err)
	}
	if err := c.DeleteSession(ctx, admin, s.ID); err == nil {
		t.Error("deleted without a record")
	}
	after, _, err := c.Sessions(ctx, admin, control.SessionFilter{})
	if err != nil || len(after) != len(before) {
		t.Errorf("%d sessions, then %d, %v", len(before), len(after), err)
	}
}

// Broken if who is not an administrator reads or redacts everybody's records.
func TestAuditIsForAdministrators(t *testing.T) {
	c, st, _ := parts(t)
	s := session(t, c)
	dev := outboard.Caller{Key: "apikey_2", Name: "dev", Role: "developer"}
	other := outboard.Caller{Key: "apikey_3", Name: "other", Role: "admin", Org: "org_other"}
	for _, by := range []outboard.Caller{dev, other} {
		_, whole := c.WholeAudit(t.Context(), by, control.AuditQuery{})
		red := c.RedactAudit(t.Context(), by, []int64{1}, []string{"actor"}, "w")
		_, sign := c.CheckpointAudit(t.Context(), by)
		for i, err := range []error{whole, red, sign} {
			if outboard.KindOf(err) != outboard.Denied {
				t.Errorf("%s, verb %d: %v", by.Name, i, err)
			}
		}
	}
	if _, err := c.Audit(t.Context(), dev, control.AuditQuery{}); outboard.KindOf(err) != outboard.Denied {
		t.Errorf("a developer reads: %v", err)
	}
	name := "e"
	if _, err := c.CreateEnvironment(t.Context(), other, control.EnvironmentPatch{Name: &name}); err != nil {
		t.Fatal(err)
	}
	if list, err := c.Audit(t.Context(), other, control.AuditQuery{Org: "default"}); err != nil || len(list) != 1 ||
		list[0].Actor != "apikey_3" {
		t.Errorf("another organization's administrator reads %+v, %v", list, err)
	}
	admin := admin
	admin.Kind = outboard.KeyOperator
	all, err := c.Audit(t.Context(), admin, control.AuditQuery{})
	if err != nil || len(all) != 4 || all[2].Resource != string(s.ID) {
		t.Fatalf("control: %d records, %v", len(all), err)
	}
	for what, err := range map[string]error{
		"no fields":     c.RedactAudit(t.Context(), admin, []int64{1}, nil, "w"),
		"another field": c.RedactAudit(t.Context(), admin, []int64{1}, []string{"action"}, "w"),
		"no reason":     c.RedactAudit(t.Context(), admin, []int64{1}, []string{"actor"}, ""),
		"no records":    c.RedactAudit(t.Context(), admin, nil, []string{"actor"}, "w"),
	} {
		if outboard.KindOf(err) != outboard.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.RedactAudit(t.Context(), admin, []int64{2}, []string{"actor", "resource"}, "w"); err != nil {
		t.Fatal(err)
	}
	all, err = st.AuditEntries(t.Context(), store.AuditQuery{})
	if err != nil || len(all) != 5 || all[1].Actor != "[redacted]" || all[0].Actor == "[redacted]" ||
		all[4].Action != "audit.redact" ||
		string(all[4].Detail) != `{"why":"w","fields":["actor","resource"],"records":[2]}` {
		t.Errorf("%+v, %v", all, err)
	}
}
