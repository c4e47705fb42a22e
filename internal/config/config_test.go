package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"go.yaml.in/yaml/v3"
)

func none(string) string { return "" }

func env(pairs ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(k string) string { return m[k] }
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const full = `
listen: 127.0.0.1:1
db: postgres://u:hunter2@db/x?password=hunter2&sslmode=off
log_level: warn
hosts: [a.test, B-1_x.test, 10.0.0.7, "*"]
limits: {slots: 5}
llm:
  idle_timeout: 90s
  max_response: 1000
  providers:
    - name: gw
      type: openai-chat
      base_url: http://gw.test/v1
      api_key: sk-hunter2
      headers: {X-Key: sk-hunter2}
      models:
        - {name: one, context: 10, output: 5, thinking: off}
  aliases: {default: gw/one}
  scripts: {dir: my, context: 2000, inline: {x: "- do: [{say: a}]"}}
`

// If this failed, a setting of the file would have no effect.
func TestLoad(t *testing.T) {
	path := write(t, full)
	c, err := Load(path, none)
	if err != nil {
		t.Fatalf("loading: %v", err)
	}
	want := Config{Listen: "127.0.0.1:1", DB: "postgres://u:hunter2@db/x?password=hunter2&sslmode=off",
		LogLevel: "warn",
		Hosts: []string{"a.test", "B-1_x.test", "10.0.0.7",
			"*"}, Limits: Limits{Slots: 5}, LLM: llm.Config{IdleTimeout: 90 * time.Second, MaxResponse: 1000,
			Providers: []llm.Provider{{Name: "gw", Type: llm.TypeChat, BaseURL: "http://gw.test/v1",
				APIKey:  llm.Key{Secret: llm.NewSecret("sk-hunter2")},
				Headers: map[string]llm.Secret{"X-Key": llm.NewSecret("sk-hunter2")},
				Models:  []llm.ModelInfo{{Name: "one", Context: 10, Output: 5, Thinking: llm.ThinkingOff}}}},
			Aliases: map[string]string{"default": "gw/one"},
			Scripts: llm.Scripts{Dir: filepath.Join(filepath.Dir(path), "my"), Context: 2000,
				Inline: map[string]string{"x": "- do: [{say: a}]"}}}}
	if !reflect.DeepEqual(*c, want) {
		t.Errorf("got %#v\nwant %#v", *c, want)
	}
	c, err = Load(path, env("OUTBOARD_LISTEN", ":2", "OUTBOARD_DB", "postgres://other", "OUTBOARD_LOG", "debug",
		"OUTBOARD_SLOTS", "7",
		"OUTBOARD_DATA", "/d", "ANTHROPIC_API_KEY", "k"))
	if err != nil {
		t.Fatalf("loading with an environment: %v", err)
	}
	if c.Listen != ":2" || c.DB != "postgres://other" || c.LogLevel != "debug" || c.Limits.Slots != 7 ||
		c.Data != "/d" || len(c.LLM.Providers) != 2 {
		t.Errorf("the environment does not override the file: %+v", c)
	}
	if c, err := Load("", none); err != nil || !reflect.DeepEqual(*c, Config{}) {
		t.Errorf("nothing configured: %+v, %v", c, err)
	}
}

// If this failed, a typo would silently leave a default in place, or its author would not learn where it is.
func TestLoadErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"lisen: x", `line 1: the configuration has no key "lisen"; it has blob, data, db, e2b, e2b_domain, e2b_public_ports, egress, exports, hosts, idle, images, limits, listen, llm, log_level`},
		{"listen: a\nllm:\n  provider: []", `line 3: llm has no key "provider"; it has aliases, idle_timeout`},
		{"llm:\n  providers:\n    - name: a\n      apikey: sk-hunter2",
			`line 4: llm.providers[0] has no key "apikey"; it has api_key, api_key_env`},
		{"llm: {providers: [{models: [{name: a, size: 3}]}]}", `llm.providers[0].models[0] has no key "size"`},
		{"listen: a\nlisten: b", `line 2: key "listen" is given twice`},
		{"limits: {slots: sk-hunter2}", "line 1: limits.slots needs a whole number"},
		{"limits: {slots: 99999999999999999999}", "limits.slots needs a whole number"},
		{"limits: {slots: -1}", "slots is -1; it must be from 0 to 10000"},
		{"egress: {idle_timeout: 1s}", "egress.idle_timeout: it must be from 10s to 24h0m0s, not 1s"},
		{"limits: 3", "limits needs a mapping"},
		{"llm: {prices: {a: }}", "line 1: llm.prices.a needs a value"},
		{"hosts: a", "hosts needs a list"},
		{"hosts: [a.test, 'a b']", `cannot be called by "a b"`},
		{"hosts: [https://a.test]", "a host is a name alone"},
		{"hosts: ['a.test:443']", "a host is a name alone"},
		{"hosts: ['*.a.test']", "a host is a name alone"},
		{"hosts: [a.test.]", "a host is a name alone"},
		{"hosts: [bücher.test]", "a host is a name alone"},
		{"hosts: ['']", "a host is a name alone"},
		{"listen: [a]", "listen needs text"},
		{"egress: {max_lifetime: 1m}", "egress.max_lifetime: it must be from 10m0s to 720h0m0s, not 1m"},
		{"llm: {idle_timeout: 30}", "llm.idle_timeout needs a duration such as 30s"},
		{"llm: {providers: [{api_key: {a: b}}]}", "llm.providers[0].api_key has no key"},
		{"llm: {aliases: [a]}", "llm.aliases needs a mapping"},
		{"log_level: loud", `level "loud" is not debug`},
		{"- a", "the configuration must be a mapping"},
		{"listen: &x a\ndb: *x", "line 1: anchors and aliases are not allowed"},
		{"? [a]\n: b", "a key must be plain text"},
		{"a: b\n---\nc: d", "more than one YAML document"},
		{"listen: [", "line 1: did not find"},
		{"listen: a\nhosts: [b\n", "line 2: did not find expected"},
	} {
		_, err := Load(write(t, c.text), none)
		if outboard.KindOf(err) != outboard.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v\nwant %s", c.text, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the error shows a value that may be a secret: %v", c.text, err)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml"), none); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("a file that is not there: got %v, want not found", err)
	}
	if _, err := Load(write(t, "# "+strings.Repeat("x", maxFile)), none); outboard.KindOf(err) != outboard.TooLarge {
		t.Errorf("a huge file: got %v, want too large", err)
	}
	if _, err := Load("", env("OUTBOARD_SLOTS", "many")); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("a bad variable: got %v, want invalid", err)
	}
	for _, fine := range []string{"", "# nothing\n", "llm:\n", "listen: a"} {
		if _, err := Load(write(t, fine), none); err != nil {
			t.Errorf("%q is fine, but: %v", fine, err)
		}
	}
}

// If this failed, showing the configuration would show its keys and passwords.
func TestRedacted(t *testing.T) {
	c, err := Load(write(t, full), none)
	if err != nil {
		t.Fatal(err)
	}
	b, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	dsn := Config{DB: "host=db password=hunter2"}
	all := fmt.Sprintf("%s%s%v%+v%v", b, c.Redacted(), c, *c, dsn)
	if strings.Contains(all, "hunter2") {
		t.Errorf("a secret shows: %s", all)
	}
	for _, s := range []string{"[secret]", "sslmode=off", "idle_timeout: 1m30s", "gw.test"} {
		if !strings.Contains(string(b), s) {
			t.Errorf("%q is not shown in %s", s, b)
		}
	}
	if c.LLM.Providers[0].APIKey.Reveal() != "sk-hunter2" || !strings.Contains(c.DB, "hunter2") {
		t.Error("showing the configuration changed it")
	}
}

// If this failed, config init would write, or docs/reference/config.md would teach, a configuration that is refused.
func TestExamples(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	// A key that is commented out has no space behind its #, or more than one; prose has one.
	uncommented := regexp.MustCompile(`(?m)^(\s*)#([a-z]|  )`).ReplaceAllString(Example(), "$1$2")
	examples := []string{Example(), uncommented}
	for _, m := range regexp.MustCompile("(?s)```yaml config\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		examples = append(examples, m[1])
	}
	if len(examples) < 5 {
		t.Fatalf("%d examples, want the file twice and those of the page", len(examples))
	}
	for _, ex := range examples {
		path := write(t, ex)
		if err := os.Mkdir(filepath.Join(filepath.Dir(path), "scripts"), 0o700); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path, env("ANTHROPIC_API_KEY", "k"))
		if err != nil {
			t.Errorf("%v\nin\n%s", err, ex)
			continue
		}
		if _, err := llm.NewRegistry(c.LLM); err != nil {
			t.Errorf("%v\nin\n%s", err, ex)
		}
	}
	if !strings.Contains(uncommented, "\nlisten:") || !strings.Contains(uncommented,
		"\n  providers:\n    - name: anthropic") {
		t.Errorf("the example was not uncommented:\n%s", uncommented)
	}
	for f := range reflect.TypeFor[Config]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if !strings.Contains(string(text), "| `"+name) {
			t.Errorf("docs/reference/config.md does not tell of %q", name)
		}
	}
}

// If this failed, some file could crash the server at start-up.
func FuzzLoad(f *testing.F) {
	f.Add(full)
	f.Add(Example())
	f.Add("llm: {providers: [{name: a, api_key: !!binary aGk=}]}")
	f.Add("limits: {slots: 0x10}\nllm: {max_response: 1_000, idle_timeout: ~}")
	f.Fuzz(func(t *testing.T, text string) {
		var c Config
		err := decode([]byte(text), &c)
		if err != nil && strings.Contains(err.Error(), "cannot unmarshal") {
			t.Errorf("%q: the check let through what decoding refuses: %v", text, err)
		}
	})
}
