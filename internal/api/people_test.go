package api_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/outboardtest"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/store"
)

// longAgo is a time that is over.
func (b *bench) longAgo() time.Time { return time.Now().Add(-time.Hour) }

// operatorKey is the id of the key that the server made.
func (b *bench) operatorKey() string {
	b.t.Helper()
	keys, err := b.store.Keys(b.t.Context(), store.Page{})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, k := range keys {
		if k.Kind == outboard.KeyOperator {
			return string(k.ID)
		}
	}
	b.t.Fatal("there is no operator's key")
	return ""
}

// putKey stores a key with this secret.
func putKey(b *bench, k outboard.Key, secret string) outboard.KeyID {
	b.t.Helper()
	if k.ID == "" {
		k.ID = outboard.NewID[outboard.KeyID](outboard.PrefixKey)
	}
	k.Hash, k.CreatedAt = control.HashSecret(secret), time.Now()
	if err := b.store.PutKey(b.t.Context(), k); err != nil {
		b.t.Fatal(err)
	}
	return k.ID
}

// Fails if somebody who was removed keeps a key, a stream, a grant, an approval that waits or a session that
// goes on; or if letting them in again gives back what ended.
func TestRemovedUser(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	user := b.ok("POST", "/v1/outboard/users", `{"email":"Ann@A.test","role":"developer"}`)
	if user.str("email") != "ann@a.test" {
		t.Fatalf("made %s", user.body)
	}
	id := user.str("id")
	theirs := *b
	theirs.key = b.ok("POST", "/v1/outboard/keys", map[string]any{"name": "ann", "user_id": id}).str("secret")
	if got := theirs.ok("GET", "/v1/outboard/whoami", nil); got.str("user.id") != id || got.str("role") != "developer" {
		t.Fatalf("whoami: %s", got.body)
	}
	session, f := theirs.asking("always_ask")
	grant := theirs.ok("POST", "/v1/grants", map[string]any{"session_id": session, "actions": []string{"read"},
		"resources":  []string{"*"},
		"expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "why": "w"}).str("id")
	events := "/v1/sessions/" + session + "/events"
	theirs.ok("POST", events, send(message("- bash: echo effect\n- say: end\n")))
	f.until("session.status_idle")
	if len(b.pending(session)) != 1 {
		t.Fatal("nothing waits for an answer")
	}
	approval := "/v1/approvals/" + b.pending(session)[0]["id"].(string)

	b.ok("DELETE", "/v1/outboard/users/"+id, nil)
	theirs.refused(401, "not valid", "GET", "/v1/agents", nil)
	ended := make(chan struct{})
	go func() { defer close(ended); io.Copy(io.Discard, f.resp.Body) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the stream goes on")
	}
	if got := b.ok("GET", "/v1/grants/"+grant, nil); got.str("revoked_at") == "" {
		t.Errorf("the grant is not revoked: %s", got.body)
	}
	if r := b.do("POST", approval, `{"result":"allow"}`); r.status == 200 && r.str("state") == "allowed" {
		t.Errorf("an approval of a removed person's session was answered: %s", r.body)
	}
	b.refused(409, "was removed", "POST", events, send(message("- say: more\n")))
	log := b.ok("GET", events+"?limit=100", nil)
	if strings.Contains(string(log.body), `"text":"effect`) || !strings.Contains(string(log.body), "user.interrupt") {
		t.Errorf("the session had an effect, or was not interrupted: %s", log.body)
	}
	b.refused(400, "was removed", "POST", "/v1/outboard/keys", map[string]any{"name": "x", "user_id": id})

	b.ok("POST", "/v1/outboard/users/"+id+"/restore", nil)
	theirs.refused(401, "not valid", "GET", "/v1/agents", nil)
	b.ok("POST", events, send(message("- say: again\n")))
}

// Fails if a person who signs in again is asked again about what was allowed them; or if that serves somebody
// else, a program, or a fork that somebody else makes.
func TestGrantsOfAPerson(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	key := func(name, user string) *bench {
		theirs := *b
		theirs.key = b.ok("POST", "/v1/outboard/keys", map[string]any{"name": name, "role": "developer",
			"user_id": user}).str("secret")
		return &theirs
	}
	user := func(email string) string {
		return b.ok("POST", "/v1/outboard/users", map[string]any{"email": email, "role": "developer"}).str("id")
	}
	ann, bob := user("ann@a.test"), user("bob@a.test")
	first, second, his, ci := key("ann", ann), key("ann again", ann), key("bob", bob), key("ci", "")
	of, f := first.asking("always_ask")
	agent := b.ok("GET", "/v1/sessions/"+of, nil).str("agent.id")
	run := func(id string, f *feed) (ran bool) {
		t.Helper()
		b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: echo effect\n- say: end\n")))
		f.until("session.status_idle")
		return len(b.pending(id)) == 0
	}
	session := func(by *bench) (string, *feed) {
		t.Helper()
		id := by.ok("POST", "/v1/sessions", map[string]any{"agent": agent, "environment_id": b.environment()}).str("id")
		return id, b.follow(id, "")
	}
	if run(of, f) {
		t.Fatal("control: nothing asks")
	}
	given := b.ok("POST", "/v1/approvals/"+b.pending(of)[0]["id"].(string),
		map[string]any{"result": "allow", "scope": "agent"})
	f.until("session.status_idle")
	if got := given.str("grant.human_id"); got != ann {
		t.Errorf("the grant is for %s, want %s", got, ann)
	}
	for _, c := range []struct {
		what string
		by   *bench
		want bool
	}{{"the same key", first, true}, {"another key of hers", second, true}, {"somebody else", his, false}, {"a program",
		ci, false}} {
		id, f := session(c.by)
		if got := run(id, f); got != c.want {
			t.Errorf("%s: it ran without asking: %v", c.what, got)
		}
	}
	fork := his.ok("POST", "/v1/sessions/"+of+"/fork", map[string]any{}).str("data.0.id")
	if run(fork, b.follow(fork, "")) {
		t.Error("a fork that somebody else made ran by her grant")
	}

	// A key of hers names her, and so does her id; a program's key names the program.
	give := func(human string) string {
		return b.ok("POST", "/v1/grants", map[string]any{"human_id": human, "agent_id": agent,
			"actions": []string{"bash"}, "resources": []string{"*"},
			"expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "why": "w"}).str("human_id")
	}
	me := func(by *bench) string { return by.ok("GET", "/v1/outboard/whoami", nil).str("key.id") }
	for human, want := range map[string]string{me(second): ann, ann: ann, me(ci): me(ci)} {
		if got := give(human); got != want || got == "" {
			t.Errorf("a grant for %s is for %q, want %s", human, got, want)
		}
	}
	if id, f := session(ci); !run(id, f) {
		t.Error("a program asks in spite of its grant")
	}
	if id, f := session(key("ci again", "")); run(id, f) {
		t.Error("another program ran by the grant of the first")
	}
	b.ok("DELETE", "/v1/outboard/users/"+ann, nil)
	b.refused(400, "was removed", "POST", "/v1/grants", map[string]any{"human_id": ann, "actions": []string{"bash"},
		"resources":  []string{"*"},
		"expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "why": "w"})
	b.ok("POST", "/v1/outboard/users/"+ann+"/restore", nil)
	if id, f := session(key("ann, back", ann)); run(id, f) {
		t.Error("what was allowed somebody who was removed is allowed when they are let in again")
	}
}

// Fails if somebody who was removed or demoted goes on with a key that they made, for a program or for somebody
// else, and whose secret they have seen; or if that ends keys which tell them nothing, or which may no more than
// they.
func TestKeysMadeBySomebodyWhoLeaves(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	user := func(email, role string) string {
		return b.ok("POST", "/v1/outboard/users", map[string]any{"email": email, "role": role}).str("id")
	}
	type made struct {
		*bench
		id string
	}
	key := func(by *bench, name, role, user string) made {
		theirs := *b
		k := by.ok("POST", "/v1/outboard/keys", map[string]any{"name": name, "role": role, "user_id": user})
		theirs.key = k.str("secret")
		return made{&theirs, k.str("id")}
	}
	works := func(k made, what string, want bool) {
		t.Helper()
		if got := k.do("GET", "/v1/outboard/whoami", nil); (got.status == 200) != want {
			t.Errorf("%s: %d %s", what, got.status, got.body)
		}
		if got := b.ok("GET", "/v1/outboard/keys/"+k.id, nil); (got.str("revoked_at") == "") != want {
			t.Errorf("%s: %s", what, got.body)
		}
	}
	ann, bob := user("ann@a.test", "admin"), user("bob@a.test", "developer")
	hers := key(b, "ann", "admin", ann)
	ci, bobs := key(hers.bench, "ci", "admin", ""), key(hers.bench, "bob", "developer", bob)
	reader, second := key(hers.bench, "reader", "viewer", ""), key(ci.bench, "of ci", "developer", "")
	mine, bobsOwn := key(b, "mine", "admin", ""), key(b, "bob's own", "developer", bob)
	session, f := ci.asking("always_ask")
	ci.ok("POST", "/v1/sessions/"+session+"/events", send(message("- bash: echo effect\n- say: end\n")))
	f.until("session.status_idle")
	grant := ci.ok("POST", "/v1/grants", map[string]any{"session_id": session, "actions": []string{"read"},
		"resources":  []string{"*"},
		"expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "why": "w"}).str("id")
	bobsSession, g := bobs.asking("always_ask")
	bobs.ok("POST", "/v1/sessions/"+bobsSession+"/events", send(message("- bash: echo effect\n- say: end\n")))
	g.until("session.status_idle")
	for what, k := range map[string]made{"ci": ci, "bob's": bobs, "reader": reader, "ci's": second, "mine": mine} {
		works(k, what+" at first", true)
	}

	b.ok("POST", "/v1/outboard/users/"+ann, `{"role":"developer"}`)
	works(hers, "her own, demoted", false)
	works(ci, "a program of a higher role than hers is now", false)
	works(bobs, "somebody else's of her role, demoted", true)
	works(reader, "a program of a lower role, demoted", true)
	works(second, "a program's program of her role, demoted", true)
	again := b.ok("POST", "/v1/outboard/users/"+ann, `{"role":"admin"}`)
	herAdmin := key(key(b, "ann again", "admin", again.str("id")).bench, "bob's admin", "admin",
		user("dan@a.test", "admin"))
	herAdmin.refused(400, "would end with them", "DELETE", "/v1/outboard/users/"+ann, nil)
	if got := b.ok("GET", "/v1/grants/"+grant, nil); got.str("revoked_at") == "" {
		t.Errorf("what her program granted stays: %s", got.body)
	}
	if waits := b.pending(session); len(waits) != 0 {
		t.Errorf("her program's session waits still: %v", waits)
	}
	if log := b.ok("GET", "/v1/sessions/"+session+"/events?limit=100", nil); !strings.Contains(string(log.body),
		"user.interrupt") {
		t.Errorf("her program's session was not interrupted: %s", log.body)
	}

	b.ok("DELETE", "/v1/outboard/users/"+ann, nil)
	works(bobs, "somebody else's that she made, removed", false)
	if waits := b.pending(bobsSession); len(waits) != 1 {
		t.Errorf("what somebody else's session waits for is gone: %v", waits)
	}
	works(reader, "a program that she made, removed", false)
	works(second, "a program's program, removed", false)
	works(mine, "a key of the operator's", true)
	works(bobsOwn, "somebody else's that the operator made", true)
	late := putKey(b, outboard.Key{Name: "late", Role: outboard.RoleDeveloper, Org: outboard.DefaultOrg, Maker: ann},
		"obk_late")
	theirs := *b
	theirs.key = "obk_late"
	theirs.refused(401, "not valid", "GET", "/v1/outboard/whoami", nil) // it was being made when she was removed
	for what, o := range map[string]outboard.Owner{"key": {Org: outboard.DefaultOrg, Key: late},
		"person's key": {Org: outboard.DefaultOrg, Key: outboard.KeyID(hers.id)}} {
		if u, err := b.store.Holder(t.Context(), o); err != nil || u.RemovedAt.IsZero() {
			t.Errorf("whoever acts for her %s goes on: %+v, %v", what, u, err)
		}
	}
	if u, err := b.store.Holder(t.Context(), outboard.Owner{Org: outboard.DefaultOrg,
		Key: outboard.KeyID(mine.id)}); err != nil || !u.RemovedAt.IsZero() {
		t.Errorf("whoever acts for another key does not: %+v, %v", u, err)
	}
}

// Fails if nobody can see who made a key or with which, if ending one that somebody else knows leaves the keys
// that they made with it unsaid, or alive where they are to end as well; or if that ends others.
func TestKeysMadeWithAKey(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	key := func(by *bench, name, role string) (*bench, string) {
		theirs := *b
		k := by.ok("POST", "/v1/outboard/keys", map[string]any{"name": name, "role": role})
		theirs.key = k.str("secret")
		return &theirs, k.str("id")
	}
	leaked, leakedID := key(b, "ci", "admin")
	child, childID := key(leaked, "child", "admin")
	_, grandchild := key(child, "grandchild", "viewer")
	_, beside := key(b, "beside", "developer")
	if got := b.ok("GET", "/v1/outboard/keys/"+grandchild, nil); got.str("made_with") != childID ||
		got.str("maker_id") != leakedID {
		t.Errorf("who made it: %s", got.body)
	}
	if got := b.ok("GET", "/v1/outboard/keys/"+leakedID, nil); got.str("made_with") != b.operatorKey() ||
		got.str("maker_id") != "" {
		t.Errorf("who made that: %s", got.body)
	}
	dev, devID := key(b, "dev", "developer")
	dev.refused(404, "", "DELETE", "/v1/outboard/keys/"+leakedID+"?made=true", nil)
	dead := func(id string) bool { return b.ok("GET", "/v1/outboard/keys/"+id, nil).str("revoked_at") != "" }
	got := b.ok("DELETE", "/v1/outboard/keys/"+leakedID, nil)
	if !strings.Contains(string(got.body), childID) || !strings.Contains(string(got.body), grandchild) ||
		strings.Contains(string(got.body), beside) || dead(childID) {
		t.Errorf("what was made with it: %s", got.body)
	}
	leaked.refused(401, "not valid", "POST", "/v1/outboard/keys", `{"name":"late"}`)
	b.ok("DELETE", "/v1/outboard/keys/"+leakedID+"?made=true", nil)
	if !dead(childID) || !dead(grandchild) || dead(beside) {
		t.Errorf("ended are %v and %v, and %v", dead(childID), dead(grandchild), dead(beside))
	}
	// was being made as that ended
	late := outboard.Key{ID: "apikey_late", Hash: "late", Role: outboard.RoleViewer, MadeWith: outboard.KeyID(childID)}
	if err := b.store.PutKey(t.Context(), late); outboard.KindOf(err) != outboard.Unauthenticated {
		t.Errorf("a key that was being made: %v", err)
	}
	dev.refused(403, "", "DELETE", "/v1/outboard/keys/"+devID+"?made=true", nil)
	dev.ok("DELETE", "/v1/outboard/keys/"+devID, nil)
}

// Fails if somebody does not find their own keys behind a page of others', or sees those.
func TestOwnKeysBehindOthers(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	ann := b.ok("POST", "/v1/outboard/users", `{"email":"ann@a.test","role":"developer"}`).str("id")
	hers := *b
	first := b.ok("POST", "/v1/outboard/keys", map[string]any{"name": "first", "user_id": ann}).str("id")
	for n := range 5 {
		putKey(b, outboard.Key{Name: "other", Role: outboard.RoleDeveloper, Org: outboard.DefaultOrg},
			fmt.Sprint("obk_", n))
	}
	k := b.ok("POST", "/v1/outboard/keys", map[string]any{"name": "second", "user_id": ann})
	hers.key = k.str("secret")
	if got := hers.walk("/v1/outboard/keys", url.Values{"limit": {"2"}}); !slices.Equal(got,
		[]string{k.str("id"), first}) {
		t.Errorf("hers are %v", got)
	}
	ssh := func(n int, user outboard.UserID, holder outboard.KeyID) string {
		k := outboard.SSHKey{ID: outboard.SSHKeyID(outboard.NewID[outboard.KeyID](outboard.PrefixSSHKey)),
			Org: outboard.DefaultOrg, User: user, Key: holder, Public: "k",
			Fingerprint: fmt.Sprint("SHA256:", n), Role: outboard.RoleDeveloper, CreatedAt: time.Now()}
		if err := b.store.AddSSHKey(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		return string(k.ID)
	}
	sshFirst := ssh(0, outboard.UserID(ann), "")
	for n := range 5 {
		ssh(1+n, "", "apikey_other")
	}
	if got := hers.walk("/v1/ssh_keys", url.Values{"limit": {"2"}}); !slices.Equal(got, []string{sshFirst}) {
		t.Errorf("her SSH keys are %v, want %s", got, sshFirst)
	}
	program := *b
	program.key = "obk_0"
	if got := program.walk("/v1/outboard/keys", url.Values{"limit": {"1"}}); len(got) != 1 {
		t.Errorf("a program's are %v", got)
	}
}

// Fails if the sessions of an organization go on after its end, or those of another one end with it.
func TestEndedOrganization(t *testing.T) {
	b := whole(t, outboardtest.Options{})
	org := b.ok("POST", "/v1/outboard/organizations", `{"name":"acme"}`).str("id")
	in := func(q *http.Request) { q.Header.Set("Outboard-Organization", "acme") }
	theirs := *b
	key := b.do("POST", "/v1/outboard/keys", map[string]any{"name": "k", "role": "admin"}, in)
	theirs.key = key.str("secret")
	waiting := func(by *bench) string {
		id, f := by.asking("always_ask")
		by.ok("POST", "/v1/sessions/"+id+"/events", send(message("- bash: echo effect\n- say: end\n")))
		f.until("session.status_idle")
		return id
	}
	ended, other := waiting(&theirs), waiting(b)
	quiet, f := theirs.asking("always_allow")
	theirs.ok("POST", "/v1/sessions/"+quiet+"/events", send(message("- bash: echo before\n- say: end\n")))
	if evs := f.until("session.status_idle"); !strings.Contains(result(evs), "before") {
		t.Errorf("the control: %v", evs)
	}
	b.ok("DELETE", "/v1/outboard/organizations/"+org, nil)
	theirs.refused(401, "not valid", "GET", "/v1/agents", nil)
	log := func(id string, edit ...func(*http.Request)) string {
		return string(b.do("GET", "/v1/sessions/"+id+"/events?limit=100", nil, edit...).body)
	}
	if got := log(ended, in); !strings.Contains(got, "user.interrupt") {
		t.Errorf("its session was not interrupted: %s", got)
	}
	if got := log(other); strings.Contains(got, "user.interrupt") || len(b.pending(other)) != 1 {
		t.Errorf("another organization's session was: %s", got)
	}
	if u, err := b.store.Holder(t.Context(), outboard.Owner{Org: outboard.OrgID(org),
		Key: outboard.KeyID(key.str("id"))}); err != nil || u.RemovedAt.IsZero() {
		t.Errorf("whoever acts in it goes on: %+v, %v", u, err)
	}
	if r := b.do("POST", "/v1/sessions/"+quiet+"/events", send(message("- bash: echo after\n- say: end\n")),
		in); r.status != 200 {
		t.Fatalf("who runs the server writes to it: %d %s", r.status, r.body)
	}
	for !strings.Contains(log(quiet, in), "has ended") { // the test's own time ends a wait for nothing
		if strings.Contains(log(quiet, in), `"text":"after`) {
			t.Fatal("a session of it has an effect")
		}
	}
}

// Fails if a lower role leaves somebody what they had, or if a policy cannot tell what role a session acts for.
func TestDemotedUser(t *testing.T) {
	b := whole(t, outboardtest.Options{Policy: policy.Config{Operator: `@id("no-developers") forbid (principal, action == Action::"bash", resource)
		when { principal.user.role == "developer" && principal.user.organization == "default" };`}})
	id := b.ok("POST", "/v1/outboard/users", `{"email":"bob@a.test","role":"developer"}`).str("id")
	theirs := *b
	theirs.key = b.ok("POST", "/v1/outboard/keys", map[string]any{"name": "bob", "role": "admin",
		"user_id": id}).str("secret")
	if got := theirs.ok("GET", "/v1/outboard/whoami", nil); got.str("role") != "developer" {
		t.Errorf("a key has more than its person: %s", got.body)
	}
	for who, want := range map[*bench]string{&theirs: "no-developers", b: "one"} {
		k := who.talk("always_allow")
		if evs := k.turn("- bash: echo one",
			"- say: end"); !strings.Contains(strings.Join(texts(evs, "agent.tool_result"), " "), want) {
			t.Errorf("the role is not seen by the policy: %v, want %s", evs, want)
		}
	}
	b.ok("POST", "/v1/outboard/users/"+id, `{"role":"admin"}`)
	if got := theirs.ok("GET", "/v1/outboard/whoami", nil); got.str("role") != "admin" {
		t.Errorf("promoted: %s", got.body)
	}
	b.ok("POST", "/v1/outboard/users/"+id, `{"role":"viewer"}`)
	theirs.refused(401, "not valid", "GET", "/v1/outboard/whoami", nil)
	theirs.key = b.ok("POST", "/v1/outboard/keys", map[string]any{"name": "bob", "role": "admin",
		"user_id": id}).str("secret")
	theirs.refused(403, "needs the role", "POST", "/v1/agents", `{"name":"a","model":"m"}`)
}

// Fails if an organization can begin an environment with a directory of the server that nobody gave it.
func TestServerPaths(t *testing.T) {
	b := newBench(t, func(c *control.Config) { c.Directories = []string{"/srv/images"} })
	putKey(b, outboard.Key{Name: "tenant", Role: outboard.RoleAdmin}, "obk_tenant")
	tenant := *b
	tenant.key = "obk_tenant"
	env := func(path string) string {
		return `{"name":"` + outboard.NewID[string]("n") + `","config":{"type":"cloud","outboard":{"rootfs":"` + path +
			`"}}}`
	}
	for _, path := range []string{"/etc", "/srv", "/srv/images/../../etc", "/srv/images2", "/srv/images/../images2"} {
		tenant.refused(403, "who runs the server", "POST", "/v1/environments", env(path))
	}
	for _, path := range []string{"/srv/images", "/srv/images/a/b.tar", "host", "debootstrap:bookworm",
		"debootstrap:trixie:buildd"} {
		tenant.ok("POST", "/v1/environments", env(path))
	}
	for _, path := range []string{"debootstrap:/etc", "debootstrap:../etc", "debootstrap:--help",
		"debootstrap:bookworm:/etc"} {
		tenant.refused(400, "no system that debootstrap makes", "POST", "/v1/environments", env(path))
	}
	id := b.ok("POST", "/v1/environments", env("/opt/tree")).str("id")
	tenant.ok("POST", "/v1/environments/"+id, `{"description":"what the operator chose stays"}`)
	tenant.refused(403, "who runs the server", "POST", "/v1/environments/"+id, env("/etc"))
}
