package llm

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"go.yaml.in/yaml/v3"
)

func env(pairs ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(k string) string { return m[k] }
}

func registry(t *testing.T, cfg Config) *Registry {
	t.Helper()
	r, err := NewRegistry(cfg)
	if err != nil {
		t.Fatalf("making the registry: %v", err)
	}
	return r
}

var both = []string{"ANTHROPIC_API_KEY", "ka", "OPENAI_API_KEY", "ko", "OLLAMA_HOST", "0.0.0.0"}

// If this failed, a model id would reach another provider than the one it names.
func TestResolve(t *testing.T) {
	gateway := Provider{Name: "gw", Type: TypeChat, BaseURL: "http://gw.test/v1", Models: []ModelInfo{
		{Name: "meta/llama", Context: 8000, Output: 1000}, {Name: "shared"}}}
	second := Provider{Name: "gw2", Type: TypeChat, BaseURL: "http://gw2.test/v1",
		Models: []ModelInfo{{Name: "shared"}}}
	cfg := FromEnv(Config{Providers: []Provider{gateway, second}, Aliases: map[string]string{"fast": "gw/shared",
		"me": "claude-sonnet-5"}}, env(both...))
	r := registry(t, cfg)
	for id, want := range map[string]Info{
		"anthropic/claude-opus-4-1": {"anthropic/claude-opus-4-1", TypeAnthropic, 200_000, 32_000, nil, ""},
		"claude-haiku-4-5-20251001": {"anthropic/claude-haiku-4-5-20251001", TypeAnthropic, 200_000, 64_000, nil, ""},
		"me":                        {"anthropic/claude-sonnet-5", TypeAnthropic, 200_000, 64_000, nil, ""},
		"gpt-5.2":                   {"openai/gpt-5.2", TypeResponses, 400_000, 128_000, nil, ""},
		"o3-mini":                   {"openai/o3-mini", TypeResponses, 200_000, 100_000, nil, ""},
		"ollama/qwen3:8b":           {"ollama/qwen3:8b", TypeChat, 128_000, 16_000, nil, ""},
		"gw/meta/llama":             {"gw/meta/llama", TypeChat, 8000, 1000, nil, ""},
		"meta/llama":                {"gw/meta/llama", TypeChat, 8000, 1000, nil, ""},
		"fast":                      {"gw/shared", TypeChat, 128_000, 16_000, nil, ""},
		"script/steps":              {"script/steps", ProviderScript, scriptContext, scriptOutput, nil, ""},
	} {
		m, err := r.Resolve(id)
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		got := m.Info()
		got.Price = nil // see TestPrices
		if got != want {
			t.Errorf("%s: got %+v, want %+v", id, got, want)
		}
	}
	if n := len(r.Models()); n != 6 {
		t.Errorf("%d models are listed, want the two aliases, the three configured and script/steps", n)
	}
}

// If this failed, a typo in a model id would be found by a running session, or its author would not learn what
// to write.
func TestResolveErrors(t *testing.T) {
	withKeys := FromEnv(Config{Providers: []Provider{
		{Name: "gw", Type: TypeChat, BaseURL: "http://gw.test/", Models: []ModelInfo{{Name: "one"}, {Name: "two"}}},
		{Name: "gw2", Type: TypeChat, BaseURL: "http://gw2.test/", Models: []ModelInfo{{Name: "one"}}},
		{Name: "late", Type: TypeAnthropic, BaseURL: "http://late.test/", KeyEnv: "LATE_KEY"}},
		Aliases: map[string]string{"broken": "gw/none"}}, env(both...))
	for _, c := range []struct {
		cfg            Config
		id, want, hint string
	}{
		{Config{}, "", "the model id is empty", "script/steps"},
		{Config{}, "claude-sonnet-5", `unknown model "claude-sonnet-5"; configured: script/steps`,
			"set ANTHROPIC_API_KEY"},
		{Config{}, "gpt-5", `unknown model "gpt-5"`, "set OPENAI_API_KEY"},
		{Config{}, "nonsense", `unknown model "nonsense"`, "outboard config init"},
		{Config{}, "script/none", `unknown model "script/none"; the scripts are script/steps`, "llm.scripts"},
		{withKeys, "gw/three", `unknown model "gw/three"; provider "gw" serves gw/one, gw/two`, "models"},
		{withKeys, "one", `model "one" is served by several providers`, "gw/one, gw2/one"},
		{withKeys, "nobody/x",
			`unknown model "nobody/x"; configured: broken, gw/one, gw/two, gw2/one, late/MODEL, anthropic/MODEL`, "provider/model"},
		{withKeys, "anthropic/", `unknown model "anthropic/"`, ""},
		{withKeys, "late/x", `provider "late" has no API key`, "set LATE_KEY"},
		{withKeys, "broken", `model alias "broken": unknown model "gw/none"`, ""},
		{Config{Providers: []Provider{{Name: "anthropic", Type: TypeAnthropic}}}, "claude-sonnet-5",
			`provider "anthropic" has no API key`, "set ANTHROPIC_API_KEY"},
	} {
		_, err := registry(t, c.cfg).Resolve(c.id)
		e, ok := err.(*outboard.Error)
		if !ok || e.Kind != outboard.Invalid || !strings.Contains(e.Message, c.want) ||
			!strings.Contains(e.Hint, c.hint) {
			t.Errorf("%q: got %v (hint %q)\nwant %s (hint %s)", c.id, err, hintOf(err), c.want, c.hint)
		}
	}
}

func hintOf(err error) string {
	if e, ok := err.(*outboard.Error); ok {
		return e.Hint
	}
	return ""
}

// If this failed, a mistake in the configuration would surface long after start-up.
func TestRegistryErrors(t *testing.T) {
	ok := Provider{Name: "p", Type: TypeChat, BaseURL: "http://p.test/v1"}
	registry(t, Config{Providers: []Provider{ok}})
	change := func(f func(*Provider)) Config {
		p := ok
		f(&p)
		return Config{Providers: []Provider{p}}
	}
	for want, cfg := range map[string]Config{
		`"script" cannot be a provider's name`:     change(func(p *Provider) { p.Name = "script" }),
		`"a/b" cannot be a provider's name`:        change(func(p *Provider) { p.Name = "a/b" }),
		`unknown type "chat"; types are anthropic`: change(func(p *Provider) { p.Type = "chat" }),
		"base_url is missing":                      change(func(p *Provider) { p.BaseURL = "" }),
		"base_url must be an http or https URL":    change(func(p *Provider) { p.BaseURL = "p.test" }),
		"base_url must have no user":               change(func(p *Provider) { p.BaseURL = "http://user:secret@p.test/" }),
		"needs a name of its own": change(func(p *Provider) {
			p.Models = []ModelInfo{{Name: "a"},
				{Name: "a"}}
		}),
		`thinking is off, adaptive or budget, not "`: change(func(p *Provider) {
			p.Models = []ModelInfo{{Name: "a",
				Thinking: "yes"}}
		}),
		`provider "p" is given twice`:       {Providers: []Provider{ok, ok}},
		`alias "a" names the alias "b"`:     {Aliases: map[string]string{"a": "b", "b": "p/x"}},
		`alias "a" = "" is empty`:           {Aliases: map[string]string{"a": ""}},
		"must not be negative":              {IdleTimeout: -1},
		`"steps" cannot be a script's name`: {Scripts: Scripts{Inline: map[string]string{"steps": "[]"}}},
		"reading scripts: open":             {Scripts: Scripts{Dir: filepath.Join(t.TempDir(), "none")}},
	} {
		_, err := NewRegistry(cfg)
		if outboard.KindOf(err) != outboard.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a credential: %v", err)
		}
	}
}

// If this failed, script files would not be found, or would silently hide one another.
func TestScriptDirectory(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"hello.yaml": "- do: [{say: hi}]", "notes.txt": "no script"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k := newTalk(t, Config{Scripts: Scripts{Dir: dir}}, "script/hello")
	k.turn("anything")
	want(t, k.next(""), "text hi -> end_turn")
	_, err := NewRegistry(Config{Scripts: Scripts{Dir: dir, Inline: map[string]string{"hello": "- do: [{say: ho}]"}}})
	if err == nil || !strings.Contains(err.Error(), "both in") {
		t.Errorf("got %v, want an error about two scripts of one name", err)
	}
}

// If this failed, keys in the environment would be missed, or sent to a server they are not for.
func TestFromEnv(t *testing.T) {
	find := func(c Config, name string) Provider {
		for _, p := range c.Providers {
			if p.Name == name {
				return p
			}
		}
		return Provider{}
	}
	c := FromEnv(Config{}, env("ANTHROPIC_API_KEY", "k", "ANTHROPIC_BASE_URL", "http://127.0.0.1:1/",
		"OUTBOARD_ANTHROPIC_BASE_URL", "http://up.test/"))
	if p := find(c, "anthropic"); p.BaseURL != "http://up.test/" || p.APIKey.Reveal() != "k" {
		t.Errorf("anthropic is %q with key %q", p.BaseURL, p.APIKey.Reveal())
	}
	for base, kind := range map[string]string{"": TypeResponses, "https://api.openai.com/v1": TypeResponses,
		"http://vllm.test/v1": TypeChat} {
		if p := find(FromEnv(Config{}, env("OPENAI_API_KEY", "k", "OPENAI_BASE_URL", base)), "openai"); p.Type != kind {
			t.Errorf("base %q makes type %q, want %q", base, p.Type, kind)
		}
	}
	for host, url := range map[string]string{"0.0.0.0": "http://127.0.0.1:11434/v1", "box:99": "http://box:99/v1",
		"https://o.test/x/": "https://o.test:11434/x/v1",
		"http://[::]:7":     "http://127.0.0.1:7/v1"} {
		if p := find(FromEnv(Config{}, env("OLLAMA_HOST", host)), "ollama"); p.BaseURL != url {
			t.Errorf("OLLAMA_HOST %q is %q, want %q", host, p.BaseURL, url)
		}
	}
	mine := Config{Providers: []Provider{{Name: "anthropic", Type: TypeAnthropic, BaseURL: "http://mine.test/"},
		{Name: "openai", Type: TypeResponses}, {Name: "gw", Type: TypeChat, BaseURL: "http://gw.test/", KeyEnv: "GW"}}}
	c = FromEnv(mine, env("ANTHROPIC_API_KEY", "ka", "OPENAI_API_KEY", "ko", "GW", "kg"))
	if got := find(c, "anthropic").APIKey.Reveal() + "," + find(c, "openai").APIKey.Reveal() + "," + find(c, "gw").
		APIKey.Reveal(); got != ",ko,kg" {
		t.Errorf("keys are %q, want none for the configured server", got)
	}
	if len(c.Providers) != 3 || !mine.Providers[1].APIKey.IsZero() {
		t.Error("providers were added twice, or the caller's configuration was changed")
	}
}

// If this failed, a key could end in a log, an error or a dump of the configuration.
func TestSecretsDoNotShow(t *testing.T) {
	p := Provider{Name: "p", APIKey: Key{Secret: NewSecret(testKey)},
		Headers: map[string]Secret{"X": NewSecret(testKey)}}
	j, _ := json.Marshal(p)
	y, _ := yaml.Marshal(p)
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "provider", p, "key", p.APIKey)
	hidden := struct{ p Provider }{p}
	all := fmt.Sprintf("%v %+v %#v ", hidden, hidden, hidden) + fmt.Sprintf("%v %+v %#v %s %q %x %s %s %s", p, p, p,
		p.APIKey, p.APIKey, p.APIKey.String(), j, y, log.String())
	if strings.Contains(all, testKey) || strings.Contains(all, fmt.Sprintf("%x", testKey)) {
		t.Errorf("the key shows: %s", all)
	}
	if !strings.Contains(all, "[secret]") || p.APIKey.Reveal() != testKey {
		t.Error("there is no placeholder, or no way to the key")
	}
}
