package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/policy"
)

// layer compiles a document.
func layer(t testing.TB, level outboard.PolicyLevel, text string) *policy.Layer {
	t.Helper()
	l, err := policy.Compile(level, text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// stack is the platform's layer under others, each on a level of its own, from the highest.
func stack(t testing.TB, texts ...string) *policy.Set {
	t.Helper()
	base, err := policy.Platform("")
	if err != nil {
		t.Fatal(err)
	}
	layers := []*policy.Layer{base}
	levels := []outboard.PolicyLevel{outboard.LevelOperator, outboard.LevelOrganization, outboard.LevelAgent,
		outboard.LevelSession}
	for i, text := range texts {
		layers = append(layers, layer(t, levels[i], text))
	}
	return policy.NewSet(layers...)
}

// ask is the request of a call.
func ask(call *outboard.CallRequested, input outboard.Raw) *policy.Request {
	r := &policy.Request{Session: "sesn_1", Agent: "agent_1", Environment: "env_1",
		Owner: outboard.Owner{Key: "apikey_1", Name: "ann"}}
	r.Context.Now = time.Date(2026, 11, 21, 9, 30, 0, 0, time.UTC)
	r.ForCall(call, input)
	return r
}

// bash is the request of a shell command that the agent always allows.
func bash(command string) *policy.Request {
	return ask(&outboard.CallRequested{Name: "bash", Kind: "builtin", Policy: outboard.AlwaysAllow},
		outboard.Raw(fmt.Sprintf(`{"command":%q}`, command)))
}

func fetch(url string) *policy.Request {
	return ask(&outboard.CallRequested{Name: "web_fetch", Kind: "builtin", Policy: outboard.AlwaysAllow},
		outboard.Raw(fmt.Sprintf(`{"url":%q}`, url)))
}

const noRemove = `@id("no-rm") @reason("nothing is removed here") forbid (principal, action == Action::"bash", resource) when { context.command like "*rm *" };`

// If this fails, a policy that somebody wrote to stop a call does not stop it, or stops what it does not speak of.
func TestForbid(t *testing.T) {
	s := stack(t, noRemove)
	v := s.Decide(bash("rm -rf /"))
	if v.Decision != outboard.Deny || !slices.Equal(v.Rules, []string{"operator/no-rm"}) ||
		v.Reason != "nothing is removed here" || v.Alarm != "" {
		t.Errorf("rm: %+v", v)
	}
	if v := s.Decide(bash("ls")); v.Decision != outboard.Allow {
		t.Errorf("ls: %+v", v)
	}
}

// If this fails, a forbid whose condition cannot be evaluated is dropped, as Cedar by itself does, and what it
// should stop runs.
func TestErrorIsDeny(t *testing.T) {
	overflow := `@id("broken") forbid (principal, action, resource) when { context.hour + 9223372036854775807 > 0 && context.command == "never" };`
	v := stack(t, overflow).Decide(bash("ls"))
	if v.Decision != outboard.Deny || v.Alarm == "" || !slices.Equal(v.Rules, []string{"operator/broken"}) {
		t.Errorf("a forbid that errs: %+v", v)
	}
	sound := strings.Replace(overflow, "9223372036854775807", "1", 1)
	if v := stack(t, sound).Decide(bash("ls")); v.Decision != outboard.Allow || v.Alarm != "" {
		t.Errorf("control: %+v", v)
	}
	permit := strings.Replace(overflow, "forbid", "permit", 1) + ` permit (principal, action, resource);`
	if v := stack(t, permit).Decide(bash("ls")); v.Decision != outboard.Deny || v.Alarm == "" {
		t.Errorf("a permit that errs beside one that does not: %+v", v)
	}
	for name, s := range map[string]*policy.Set{"nil": nil, "empty": policy.NewSet(),
		"broken": policy.Broken(fmt.Errorf("no database"))} {
		if v := s.Decide(bash("ls")); v.Decision != outboard.Deny || v.Alarm == "" {
			t.Errorf("%s set: %+v", name, v)
		}
	}
	r := bash("ls")
	r.Action = "launch.missiles"
	if v := stack(t).Decide(r); v.Decision != outboard.Deny || v.Alarm == "" {
		t.Errorf("unknown action: %+v", v)
	}
}

// If this fails, an agent's or a session's policy gives what its organization or the operator has taken away.
func TestLowerLevelOnlyNarrows(t *testing.T) {
	all := `permit (principal, action, resource);`
	if v := stack(t, noRemove, all, all, all).Decide(bash("rm x")); v.Decision != outboard.Deny {
		t.Errorf("a permit of a lower level widened: %+v", v)
	}
	onlyRead := `permit (principal, action == Action::"read", resource);`
	if v := stack(t, all, onlyRead).Decide(bash("ls")); v.Decision != outboard.Deny ||
		!slices.Equal(v.Rules, []string{"organization/default"}) {
		t.Errorf("an allow-list let something else pass: %+v", v)
	}
	read := ask(&outboard.CallRequested{Name: "read", Kind: "builtin", Policy: outboard.AlwaysAllow},
		outboard.Raw(`{"file_path":"a"}`))
	if v := stack(t, all, onlyRead).Decide(read); v.Decision != outboard.Allow {
		t.Errorf("control: %+v", v)
	}
	if v := stack(t, "", "", "", noRemove).Decide(bash("rm x")); v.Decision != outboard.Deny {
		t.Errorf("a lower level does not narrow: %+v", v)
	}
}

// If this fails, what should ask a person runs or is refused without asking, or an approval lifts a deny.
func TestAskAndApproval(t *testing.T) {
	asks := `@id("push") @effect("ask") @approver("other") @timeout("15m") forbid (principal, action == Action::"bash", resource)
		when { context.command like "git push*" };`
	r := bash("git push origin")
	v := stack(t, asks).Decide(r)
	if v.Decision != outboard.Ask || v.Approver != outboard.ApproverOther || v.Timeout != 15*time.Minute {
		t.Fatalf("ask: %+v", v)
	}
	if v := stack(t, asks).Check(r); v.Decision != outboard.Deny {
		t.Errorf("where nobody can be asked: %+v", v)
	}
	for _, met := range []func(*policy.Context){func(c *policy.Context) { c.Approved = true },
		func(c *policy.Context) { c.Granted = true }} {
		r := bash("git push origin")
		met(&r.Context)
		if v := stack(t, asks).Decide(r); v.Decision != outboard.Allow || !v.Met {
			t.Errorf("met: %+v", v)
		}
		if v := stack(t, asks, `forbid (principal, action, resource) when { context.command like "git*" };`).
			Decide(r); v.Decision != outboard.Deny {
			t.Errorf("an approval lifted a deny of another level: %+v", v)
		}
		both := asks + `@id("never") forbid (principal, action, resource) when { context.command like "*origin" };`
		if v := stack(t, both).Decide(r); v.Decision != outboard.Deny ||
			!slices.Equal(v.Rules, []string{"operator/never"}) {
			t.Errorf("an approval lifted a deny of the same level: %+v", v)
		}
	}
}

// If this fails, a session that has read secrets and what strangers wrote can be talked into carrying them out
// without a person.
func TestTaintAsksBeforeAnythingLeaves(t *testing.T) {
	private, untrusted := outboard.Taint{Private: true}, outboard.Taint{Untrusted: true}
	for taint, want := range map[outboard.Taint]outboard.Decision{{}: outboard.Allow, private: outboard.Allow,
		untrusted:             outboard.Allow,
		private.Or(untrusted): outboard.Ask} {
		r := fetch("https://example.com/")
		r.Context.Taint = taint
		if v := stack(t).Decide(r); v.Decision != want {
			t.Errorf("%+v: web_fetch %+v, want %s", taint, v, want)
		}
		r = bash("ls")
		r.Context.Taint = taint
		if v := stack(t).Decide(r); v.Decision != outboard.Allow {
			t.Errorf("%+v: bash, which does not leave: %+v", taint, v)
		}
	}
	for setting, want := range map[string]outboard.Decision{policy.TaintDeny: outboard.Deny,
		policy.TaintOff: outboard.Allow} {
		l, err := policy.Platform(setting)
		if err != nil {
			t.Fatal(err)
		}
		r := fetch("https://example.com/")
		r.Context.Taint = private.Or(untrusted)
		if v := policy.NewSet(l).Decide(r); v.Decision != want {
			t.Errorf("taint %s: %+v", setting, v)
		}
	}
}

// If this fails, a policy set that is broken, hostile or does not mean what it says is accepted and comes into force.
func TestCompileRefuses(t *testing.T) {
	many := strings.Repeat(`forbid (principal, action, resource) when { context.command == "x" };`+"\n",
		policy.MaxPolicies+1)
	cases := []struct{ name, text, why string }{
		{"syntax", `forbid (principal, action`, "reading the"},
		{"unknown action", `forbid (principal, action == Action::"bsh", resource);`, "bsh"},
		{"unknown entity", `forbid (principal in Group::"x", action, resource);`, "Group"},
		{"unknown attribute", `forbid (principal, action, resource) when { context.comand == "x" };`, "comand"},
		{"wrong type", `forbid (principal, action, resource) when { context.command > 3 };`, "operator/1"},
		{"misspelt annotation", `@efect("ask") forbid (principal, action, resource);`, "@efect"},
		{"ask on a permit", `@effect("ask") permit (principal, action, resource);`, "only for a forbid"},
		{"unknown effect", `@effect("maybe") forbid (principal, action, resource);`, "maybe"},
		{"unknown approver", `@effect("ask") @approver("me") forbid (principal, action, resource);`, "@approver"},
		{"nobody must allow", `@effect("ask") @approvals("0") forbid (principal, action, resource);`, "@approvals"},
		{"an army must allow", `@effect("ask") @approvals("10") forbid (principal, action, resource);`, "@approvals"},
		{"people of a permit", `@approvals("2") permit (principal, action, resource);`, "only for a forbid"},
		{"endless timeout", `@effect("ask") @timeout("9000h") forbid (principal, action, resource);`, "@timeout"},
		{"id twice", `@id("a") forbid (principal, action, resource); @id("a") forbid (principal, action, resource);`,
			"twice"},
		{"id with markup", `@id("a<b>") forbid (principal, action, resource);`, "@id"},
		{"too long", "//" + strings.Repeat("x", policy.MaxText), "over the limit"},
		{"10k policies", strings.Repeat("forbid(principal,action,resource);", 10_000), "over the limit"},
		{"too many", many[:min(len(many), policy.MaxText)], "over the limit"},
		{"deep", `forbid (principal, action, resource) when { ` + strings.Repeat("(", 5000) + "true" +
			strings.Repeat(")", 5000) + ` };`, "nests"},
		{"templates", `forbid (principal == ?principal, action, resource);`, "reading the"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := policy.Compile(outboard.LevelOperator, c.text)
			if err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("err = %v, want it to name %q", err, c.why)
			}
		})
	}
	for name, text := range map[string]string{"empty": "", "comment": "// nothing", "control": noRemove} {
		if _, err := policy.Compile(outboard.LevelOperator, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// If this fails, a person approves something else than what runs: an argument was hidden, reordered, or written
// to look harmless.
func TestCanonicalShowsEverything(t *testing.T) {
	text, err := policy.Canonical("bash", outboard.Raw("{\"timeout_ms\":5,\"command\":\"ls \\u202e gpj "+
		"\\u001b[2K\\u200b\\nApproved: yes <b>&\"}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"command"`, `"timeout_ms": 5`, `\u202e`, `\u001b[2K`, `\u200b`,
		`\nApproved: yes <b>&`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not shown in\n%s", want, text)
		}
	}
	for _, bad := range []string{"\x1b", "\u202e", "\u200b", "\nApproved"} {
		if strings.Contains(text, bad) {
			t.Errorf("%q is in the text as it is", bad)
		}
	}
	other, err := policy.Canonical("bash",
		outboard.Raw(`{ "command":"ls \u202e gpj \u001b[2K\u200b\nApproved: yes \u003cb>&", "timeout_ms":5 }`))
	if err != nil || other != text {
		t.Errorf("the same call is shown in another way: %q, %v", other, err)
	}
	if _, err := policy.Canonical("write",
		outboard.Raw(fmt.Sprintf(`{"content":%q}`,
			strings.Repeat("x", 1<<20)))); outboard.KindOf(err) != outboard.TooLarge {
		t.Errorf("a request of 1 MB: %v, want a refusal", err)
	}
}

// If this fails, policies read other values than the call has: a host in another spelling, the wrong port, no path.
func TestRequestOfACall(t *testing.T) {
	r := fetch("https://EXAMPLE.com.:8443/a/b?q=1")
	c := r.Context
	if c.Host != "example.com" || c.Port != 8443 || c.Scheme != "https" || c.Method != "GET" || c.Path != "/a/b" ||
		r.Resource != "web_fetch" {
		t.Errorf("%+v", c)
	}
	if v := stack(t, `forbid (principal in User::"apikey_1", action in Action::"leaves", resource == Tool::"web_fetch") when { context.host == "example.com" && context.hour == 9 };`).Decide(r); v.Decision != outboard.Deny {
		t.Errorf("a policy on principal, group, resource and time: %+v", v)
	}
	if v := stack(t, `forbid (principal in User::"apikey_2", action, resource);`).
		Decide(r); v.Decision != outboard.Allow {
		t.Errorf("another human's rule: %+v", v)
	}
	for _, a := range policy.Actions() {
		if v := stack(t).Decide(&policy.Request{Action: a, Resource: "x",
			Context: policy.Context{Permission: outboard.AlwaysAllow}}); v.Alarm != "" {
			t.Errorf("%s: %s", a, v.Alarm)
		}
	}
}

// FuzzCompile: text from an API client must not bring the server down, and what compiles must decide.
func FuzzCompile(f *testing.F) {
	f.Add(noRemove)
	f.Add(`@id("a") @effect("ask") permit (principal is Session in User::"x", action in [Action::"bash"], resource) unless { [1,2].contains(3) };`)
	f.Add(`forbid (principal, action, resource) when { if ip("1.2.3.4").isInRange(ip("::/0")) then context has a.b else -9223372036854775808 };`)
	f.Fuzz(func(t *testing.T, text string) {
		l, err := policy.Compile(outboard.LevelOperator, text)
		if err == nil {
			policy.NewSet(l).Decide(bash("ls"))
		}
	})
}

// fifty is a realistic stack of 50 policies over all levels.
func fifty(t testing.TB) *policy.Set {
	var b strings.Builder
	for i := range 46 {
		fmt.Fprintf(&b, "@id(\"p%d\") forbid (principal, action == Action::\"bash\", resource) when { "+
			"context.command like \"*cmd%d *\" && !context.granted };\n", i, i)
	}
	return stack(t, b.String())
}

// BenchmarkDecide is one decision with 50 policies, everything of the request built anew.
func BenchmarkDecide(b *testing.B) {
	s := fifty(b)
	for b.Loop() {
		if v := s.Decide(bash("go test ./...")); v.Decision != outboard.Allow {
			b.Fatal(v)
		}
	}
}

// If this fails, a rule about what is left of a budget does not hold, holds where there is no budget, or lets a
// call pass while nobody knows what is left.
func TestBudgetInRules(t *testing.T) {
	s := stack(t, `@id("little") @reason("little is left") forbid (principal, action == Action::"bash", resource)
		when { context.budget.left_cents < 50 || context.budget.left_tokens < 1000 || context.budget.left_steps < 2 };
		@id("limited") forbid (principal, action == Action::"read", resource) unless { context.budget.limited };`)
	none := outboard.LeftOf(nil, outboard.Spend{})
	over := func(limit, spent outboard.Spend) *outboard.Spend {
		return new(outboard.LeftOf([]outboard.Budget{{Limit: outboard.Spend{Cost: 1000 * outboard.Dollar}},
			{Limit: limit}}, spent))
	}
	for _, c := range []struct {
		name string
		left *outboard.Spend
		want outboard.Decision
	}{
		{"no budget", &none, outboard.Allow},
		{"enough", over(outboard.Spend{Cost: outboard.Dollar, Tokens: 2000, Steps: 3},
			outboard.Spend{Cost: 50 * outboard.Cent, Tokens: 1000, Steps: 1}), outboard.Allow},
		{"little money", over(outboard.Spend{Cost: outboard.Dollar}, outboard.Spend{Cost: 50*outboard.Cent + 1}),
			outboard.Deny},
		{"few tokens", over(outboard.Spend{Tokens: 2000}, outboard.Spend{Tokens: 1001}), outboard.Deny},
		{"the last step", over(outboard.Spend{Steps: 3}, outboard.Spend{Steps: 2}), outboard.Deny},
		{"used up", over(outboard.Spend{Cost: outboard.Dollar}, outboard.Spend{Cost: 2 * outboard.Dollar}),
			outboard.Deny},
	} {
		r := bash("ls")
		r.Context.Left = c.left
		if v := s.Decide(r); v.Decision != c.want || v.Alarm != "" || c.want == outboard.Deny &&
			v.Reason != "little is left" {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
	r := bash("ls") // nobody can tell
	if v := s.Decide(r); v.Decision != outboard.Deny || v.Alarm == "" ||
		!slices.Equal(v.Rules, []string{"operator/little"}) {
		t.Errorf("unknown: %+v", v)
	}
	if v := stack(t, noRemove).Decide(r); v.Decision != outboard.Allow {
		t.Errorf("control: a rule that does not ask: %+v", v)
	}
	read := ask(&outboard.CallRequested{Name: "read", Kind: "builtin", Policy: outboard.AlwaysAllow},
		outboard.Raw(`{"file_path":"a"}`))
	for _, c := range []struct {
		left *outboard.Spend
		want outboard.Decision
	}{{&none, outboard.Deny}, {over(outboard.Spend{}, outboard.Spend{}), outboard.Allow}} {
		read.Context.Left = c.left
		if v := s.Decide(read); v.Decision != c.want {
			t.Errorf("limited: %+v", v)
		}
	}
}

// If this fails, one of two rules that both say who may answer is forgotten.
func TestApproversAddUp(t *testing.T) {
	other := `@id("o") @effect("ask") @approver("other") forbid (principal, action == Action::"bash", resource);`
	admin := `@id("a") @effect("ask") @approver("admin") forbid (principal, action == Action::"bash", resource) when { context.command like "push*" };`
	if v := stack(t, other, admin).Decide(bash("push")); v.Approver != outboard.ApproverOtherAdmin {
		t.Errorf("of two levels: %q", v.Approver)
	}
	if v := stack(t, other+admin).Decide(bash("push")); v.Approver != outboard.ApproverOtherAdmin {
		t.Errorf("of one level: %q", v.Approver)
	}
	if v := stack(t, other+admin).Decide(bash("pull")); v.Approver != outboard.ApproverOther {
		t.Errorf("control: %q", v.Approver)
	}
}

// If this fails, of rules that want several people the weaker one counts, or whoever asks may be one of them.
func TestPeopleAddUp(t *testing.T) {
	two := `@id("two") @effect("ask") @approvals("2") forbid (principal, action == Action::"bash", resource);`
	three := `@id("three") @effect("ask") @approver("admin") @approvals("3") forbid (principal, action == Action::"bash", resource) when { context.command like "push*" };`
	for _, set := range []*policy.Set{stack(t, two, three), stack(t, three, two), stack(t, two+three)} {
		if v := set.Decide(bash("push")); v.Needs != 3 || v.Approver != outboard.ApproverOtherAdmin {
			t.Errorf("both: %d, %q", v.Needs, v.Approver)
		}
		if v := set.Decide(bash("pull")); v.Needs != 2 || v.Approver != outboard.ApproverOther {
			t.Errorf("one: %d, %q", v.Needs, v.Approver)
		}
	}
	one := `@effect("ask") @approvals("1") forbid (principal, action == Action::"bash", resource);`
	if v := stack(t, one).Decide(bash("push")); v.Needs != 0 || v.Approver != outboard.ApproverAny {
		t.Errorf("control: %d, %q", v.Needs, v.Approver)
	}
}
