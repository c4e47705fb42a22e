package fleet

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Dependencies that a lock file names by SSH would not come from the hosts that an environment allows, or git
// would be sent to hosts that it does not, or by rules that it does not understand.
func TestGitByHTTPS(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	n := outboard.Networking{Mode: "limited", AllowedHosts: []string{"git.example.com", "*.example.com", "10.0.0.1"},
		Rules: []outboard.NetRule{
			{Host: "code.example.com", Port: 8443}, {Host: "no.example.com",
				Deny: true}, {Host: "10.0.0.0/8"}, {Host: "any.example.com", Port: -1}, {Host: "*"}}}
	env := append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	for name, value := range gitByHTTPS(n) {
		env = append(env, name+"="+value)
	}
	for url, want := range map[string]string{
		"git@git.example.com:a/b.git":              "https://git.example.com/a/b.git",
		"ssh://git@code.example.com/a/b.git":       "https://code.example.com:8443/a/b.git",
		"git+ssh://git@any.example.com/a/b.git":    "https://any.example.com/a/b.git",
		"git@no.example.com:a/b.git":               "git@no.example.com:a/b.git",
		"git@git.example.com.evil.example:a/b.git": "git@git.example.com.evil.example:a/b.git",
		"git@10.0.0.1:a/b.git":                     "git@10.0.0.1:a/b.git",
		"https://git.example.com/a/b.git":          "https://git.example.com/a/b.git",
		"somebody@git.example.com:a/b.git":         "somebody@git.example.com:a/b.git",
	} {
		cmd := exec.Command("git", "ls-remote", "--get-url", url)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%s becomes %s, want %s (%v)", url, got, want, err)
		}
	}
	if got := gitByHTTPS(outboard.Networking{Mode: "unrestricted"}); len(got) != 0 {
		t.Errorf("of no names: %v", got)
	}
	for range 100 {
		n.AllowedHosts = slices.Concat(n.AllowedHosts, []string{"h" + strings.Repeat("x", len(n.AllowedHosts)) +
			".test"})
	}
	if got := gitByHTTPS(n)["GIT_CONFIG_COUNT"]; got != "48" {
		t.Errorf("of a hundred hosts there are %s settings", got)
	}
}
