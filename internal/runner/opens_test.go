//go:build linux

package runner

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/tool"
)

// secrets is a workspace with a directory that noSecrets forbids, and links that lead to it.
const (
	secrets = "mkdir -p secret open/deep && echo hush > secret/key && echo fine > open/a && ln -s secret short && " +
		"ln -s ../../secret/key open/deep/l"
	noSecrets = `@id("secret") forbid (principal, action in Action::"tool", resource) when { context.path like "/workspace/secret*" };`
)

// If this fails, a rule about a path holds for one way to write it: another spelling, or a link that leads
// there, goes around it.
func TestAPathIsJudgedHoweverItIsWritten(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.ruled(policy.Config{Operator: noSecrets})
	var lines []string
	for _, p := range []string{"/workspace/secret/key", "/workspace/./secret/key", "//workspace/secret//key",
		"secret/key", "./secret/key",
		"../workspace/secret/key", "open/../secret/key", "/workspace/open/deep/../../secret/key", "short/key", "open/deep/l", "short/../secret/key"} {
		lines = append(lines, fmt.Sprintf("- read: %q", p), fmt.Sprintf("- write: {path: %q, content: gone}", p),
			fmt.Sprintf("- edit: {path: %q, old: hush, new: gone}", p), fmt.Sprintf("- grep: {pattern: hush, path: %q}",
				p))
	}
	lines = append(lines, "- glob: /workspace/secret/*", "- glob: {pattern: '*', path: short}",
		"- glob: {pattern: '*', path: ./secret}",
		"- write: {path: short/new/file, content: x}", "- write: {path: secrets, content: x}")
	id := r.steps(append([]string{"- bash: " + secrets}, append(lines, "- read: open/a",
		"- write: {path: open/b, content: x}",
		"- edit: {path: ./open/a, old: fine, new: good}", "- read: ../workspace/open/a", "- bash: cat secret/key", "- say: done")...)...)
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	for i, line := range lines {
		if f := out[1+i]; f.Outcome != outboard.OutcomeDenied || strings.Contains(finalText(f), "hush") {
			t.Errorf("%s: %s %q", line, f.Outcome, finalText(f))
		}
	}
	rest := out[1+len(lines):]
	for i, want := range []string{"     1\tfine\n", "wrote 1 bytes to /workspace/open/b", "edited /workspace/open/a",
		"     1\tgood\n", "hush"} {
		if !strings.HasPrefix(finalText(rest[i]), want) {
			t.Errorf("control %d: %s %q, want %q", i, rest[i].Outcome, finalText(rest[i]), want)
		}
	}
	for _, c := range payloads[*outboard.CallRequested](r, id)[1:] {
		if c.Name != "bash" && !strings.HasPrefix(c.Opens, "/workspace") {
			t.Errorf("%s %s is on record as %q", c.Name, c.Input, c.Opens)
		}
	}
}

// If this fails, a search that begins above a path shows what a rule about the path forbids.
func TestSearchesTellOnlyWhatTheRulesAllow(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.ruled(policy.Config{Operator: noSecrets})
	id := r.steps("- bash: "+secrets+` && printf 'hush\n' > 'open/odd:1:name' && mkdir -p "$(printf 'secret\nx')" && echo hush > "$(printf 'secret\nx/y')"`,
		"- grep: hush", "- grep: {pattern: fine}", "- glob: '**/*e*'", "- glob: '**/key'", "- say: done")
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	if got := finalText(out[1]); strings.Contains(got, "secret") ||
		!strings.Contains(got, "/workspace/open/odd:1:name:1:hush\n") || !strings.Contains(got, "2 results left out") {
		t.Errorf("grep: %q", got)
	}
	if got := finalText(out[2]); got != "/workspace/open/a:1:fine\n" {
		t.Errorf("grep of what is allowed: %q", got)
	}
	if got := finalText(out[3]); strings.Contains(got, "secret") || !strings.Contains(got, "/workspace/open/deep\n") {
		t.Errorf("glob: %q", got)
	}
	if got := finalText(out[4]); !strings.HasPrefix(got, "no matches\n[1 results left out") {
		t.Errorf("glob of what is forbidden alone: %q", got)
	}
}

// If this fails, a link that is put on a path between the judgement and the call leads the call elsewhere.
func TestALinkThatComesLateIsNotFollowed(t *testing.T) {
	r := newRig(t, llm.Config{})
	engine, err := policy.New(policy.Config{Source: r.store, Now: r.now, Logger: r.log, Operator: noSecrets})
	if err != nil {
		t.Fatal(err)
	}
	swap, commits := "", 0
	r.start(func(c *Config) {
		c.Policy, c.Slots = engine, 1
		c.fault = func(point string) error {
			if point != "before commit" || swap == "" {
				return nil
			}
			// the first begins the turn, the second has the intent: the path was judged by then
			if commits++; commits != 2 {
				return nil
			}
			if err := os.RemoveAll(swap); err != nil {
				return err
			}
			return os.Symlink("secret", swap)
		}
	})
	for _, line := range []string{"- read: open/key", "- write: {path: open/key, content: x}",
		"- edit: {path: open/key, old: hush, new: x}",
		"- grep: {pattern: hush, path: open}", "- glob: {pattern: '*', path: open}"} {
		swap = ""
		id := r.steps("- bash: mkdir -p secret open && echo hush > secret/key && echo hush > open/key && pwd -P", line,
			"- bash: echo hush > open/key", "- say: done")
		r.rests(id, "end_turn")
		out := r.outcomes(id)
		if out[1].Outcome != outboard.OutcomeOK {
			t.Errorf("control: %s: %s %q", line, out[1].Outcome, finalText(out[1]))
		}
		workspace := strings.TrimSpace(finalText(out[0]))
		swap, commits = filepath.Join(workspace, "open"), 0
		r.say(id, line, "- say: done")
		r.until(id, "second turn", func(s *outboard.State) bool { return s.Turn == 2 && s.Phase == outboard.PhaseIdle })
		if out := r.outcomes(id)[3]; out.Outcome != outboard.OutcomeError ||
			!strings.Contains(finalText(out), "a link on this path") {
			t.Errorf("%s: %s %q", line, out.Outcome, finalText(out))
		}
		if n := len(payloads[*outboard.CallStarted](r, id)); n != 4 {
			t.Errorf("%s: %d intents, want 4: it was refused before it was sent", line, n)
		}
		if b, err := os.ReadFile(filepath.Join(workspace, "secret/key")); err != nil || string(b) != "hush\n" {
			t.Errorf("%s changed what it may not open: %q %v", line, b, err)
		}
	}
}

// If this fails, an approval of one path lets a call open another one, to which a link leads.
func TestAnApprovalIsOfThePathThatIsOpened(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.ruled(policy.Config{Operator: strings.Replace(noSecrets, "forbid", `@effect("ask") forbid`, 1)})
	id := r.steps("- bash: "+secrets, "- read: short/key", "- read: /workspace/secret/key", "- say: done")
	s := r.rests(id, "requires_action")
	if out := r.outcomes(id); out[1].Outcome != outboard.OutcomeDenied ||
		!strings.Contains(finalText(out[1]), "/workspace/short/key leads to /workspace/secret/key") {
		t.Errorf("by a link: %s %q", out[1].Outcome, finalText(out[1]))
	}
	if a := r.approval(id, s.Calls[0].ID); a.Resource != "/workspace/secret/key" {
		t.Errorf("what is asked about: %q", a.Resource)
	}
	r.send(id, &outboard.InputConfirmation{Call: s.Calls[0].ID, Allow: true})
	r.rests(id, "end_turn")
	if out := r.outcomes(id); finalText(out[2]) != "     1\thush\n" {
		t.Errorf("allowed: %s %q", out[2].Outcome, finalText(out[2]))
	}

	id = r.session("script/steps", asks("read"))
	r.say(id, "- bash: "+secrets, "- read: open/a", "- read: open/deep/m", "- say: done")
	s = r.rests(id, "requires_action")
	r.send(id, &outboard.InputConfirmation{Call: s.Calls[0].ID, Allow: true})
	s = r.until(id, "the second ask", func(s *outboard.State) bool { return s.Parked() && s.ModelCalls == 3 })
	a := r.approval(id, s.Calls[0].ID)
	if a.Resource != "/workspace/open/deep/m" {
		t.Errorf("the second approval: %+v", a)
	}
	r.link(id, "../../secret/key", "open/deep/m")
	r.send(id, &outboard.InputConfirmation{Call: s.Calls[0].ID, Allow: true})
	r.rests(id, "end_turn")
	if out := r.outcomes(id); finalText(out[1]) != "     1\tfine\n" || out[2].Outcome != outboard.OutcomeDenied ||
		!strings.Contains(finalText(out[2]), "a person was asked about the former") {
		t.Errorf("a link that came while a person was asked: %q, %s %q", finalText(out[1]), out[2].Outcome,
			finalText(out[2]))
	}
}

// link puts a link into the workspace of a session's sandbox.
func (r *rig) link(id outboard.SessionID, to, at string) {
	r.t.Helper()
	s := r.until(id, "a sandbox", func(s *outboard.State) bool { return s.Sandbox != nil })
	if err := os.Symlink(to, filepath.Join(r.boxes.Dir(s.Sandbox.Sandbox), "workspace", at)); err != nil {
		r.t.Fatal(err)
	}
}

// If this fails, private data that is read by a link, or by another spelling, leaves the session as one that has
// seen nothing private; or what is elsewhere counts as private.
func TestTaintFollowsWhatWasOpened(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.ruled(policy.Config{})
	for line, private := range map[string]bool{
		"- read: notes.txt": true, "- grep: {pattern: x, path: notes.txt}": true, "- read: docs/n": true, "- edit: {path: notes.txt, old: x, new: y}": true,
		"- glob: {pattern: '*', path: docs}": true, "- grep: {pattern: x, path: docs}": true, "- read: docs/../private/n": true, "- read: loop/docs/n": true,
		"- read: open/notes.txt": false, "- read: through/n": true, "- glob: {pattern: '*', path: open}": false,
	} {
		id := r.sessionWith(outboard.SessionConfig{Agent: outboard.Agent{ID: "agent_1",
			Model: outboard.ModelConfig{ID: "script/steps"}, Tools: allTools},
			Env: outboard.EnvConfig{Kind: "cloud"}})
		r.say(id, "- bash: mkdir -p private open && echo x > private/n && echo x > open/notes.txt && ln -s private "+
			"docs && ln -s private/n notes.txt && ln -s . loop && ln -s private via && ln -s via through", "- say: done")
		r.rests(id, "end_turn")
		// a mount whose own path has a link
		r.send(id, &outboard.SessionUpdated{Resources: &[]outboard.Resource{{ID: "sesrsc_1", Kind: "file",
			MountPath: "/workspace/via"}}})
		r.say(id, line, "- say: done")
		r.until(id, "second turn", func(s *outboard.State) bool { return s.Turn == 2 && s.Phase == outboard.PhaseIdle })
		if s := r.rests(id, "end_turn"); r.outcomes(id)[1].Taint.Private != private || s.ID == "" {
			t.Errorf("%s: %+v %q", line, r.outcomes(id)[1].Taint, finalText(r.outcomes(id)[1]))
		}
	}
}

// If this fails, a rule about an address holds for one way to write it, or not for where a page redirects to.
func TestAnAddressIsJudgedHoweverItIsWritten(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.ruled(policy.Config{Operator: `@id("admin") forbid (principal, action == Action::"web_fetch", resource)
		when { context.url like "https://a.example.com/admin*" };
		@id("by-path") forbid (principal, action == Action::"web_fetch", resource) when { context.host == "b.example.com" && context.path like "/admin*" };`})
	var lines []string
	for _, u := range []string{"https://a.example.com/admin", "https://a.example.com/%61dmin",
		"https://a.example.com/x/../admin", "https://a.example.com/./admin",
		"HTTPS://A.Example.COM./admin", "https://a.example.com:443/admin", "https://a.example.com:0443/admin", "https://a.example.com/x/%2e%2e/admin",
		"https://a.example.com//admin", "https://a.example.com/x%2f..%2fadmin", "https://a.example.com/%2561dmin", "https://a.example.com/;x/admin",
		"https://a.example.com/x%5c..%5cadmin", "https://a.example.com/../admin/", "https://a.example.com/admin?x#y", "http://b.example.com:80/%41/../admin/x"} {
		lines = append(lines, "- web_fetch: "+u)
	}
	for _, u := range []string{"https://me@a.example.com/admin", `https://a.example.com\@b.example.com/`,
		"https://a.example.com/%zz", "https://a.example.com/%00", "https:a.example.com/admin",
		"https://a.example.com:99999/"} {
		lines = append(lines, "- web_fetch: '"+u+"'")
	}
	id := r.steps(append(lines, "- web_fetch: http://127.0.0.1:1/a%2Fb/%7euser?q=%41", "- say: done")...)
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	for i, line := range lines {
		if f := out[i]; f.Outcome != outboard.OutcomeDenied && !strings.Contains(finalText(f), "url") {
			t.Errorf("%s: %s %q", line, f.Outcome, finalText(f))
		}
	}
	if started := payloads[*outboard.CallStarted](r, id); len(started) != 1 ||
		started[0].Opens != "http://127.0.0.1:1/a%2Fb/~user?q=A" {
		t.Errorf("intents: %+v", started)
	}
}

// If this fails, a page that may be fetched leads to one that may not.
func TestRedirectsAreJudged(t *testing.T) {
	r := newRig(t, llm.Config{})
	hit := ""
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/to-admin":
			http.Redirect(w, q, "/%61dmin", http.StatusFound)
		case "/to-open":
			http.Redirect(w, q, "/x/../open", http.StatusFound)
		default:
			hit = q.URL.Path
			fmt.Fprint(w, "here")
		}
	}))
	defer site.Close()
	engine, err := policy.New(policy.Config{Source: r.store, Now: r.now, Operator: `@id("admin") forbid (principal, action == Action::"web_fetch", resource)
		when { context.path like "/admin*" };`})
	if err != nil {
		t.Fatal(err)
	}
	r.start(func(c *Config) {
		c.Policy = engine
		c.Fetcher = loopback(t, site.URL)
	})
	id := r.steps("- web_fetch: "+site.URL+"/to-admin", "- web_fetch: "+site.URL+"/to-open", "- say: done")
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	if !strings.Contains(finalText(out[0]), "was not fetched") || !strings.Contains(finalText(out[0]),
		"operator/admin") {
		t.Errorf("to what is forbidden: %q", finalText(out[0]))
	}
	if hit != "/open" || !strings.Contains(finalText(out[1]), "here") {
		t.Errorf("control: %q at %q", finalText(out[1]), hit)
	}
}

// loopback fetches from one server of this machine.
func loopback(t *testing.T, address string) *tool.Fetcher {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return tool.NewFetcher(tool.FetcherConfig{Guard: outbound.Guard{Private: outbound.Loopback}, Ports: []int{port}})
}
