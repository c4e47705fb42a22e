package llm

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Registry resolves model ids. It does not change after NewRegistry and is safe for concurrent use.
type Registry struct {
	cfg       Config
	providers map[string]Provider
	names     []string // of providers, in configured order
	scripts   map[string][]rule
	client    *http.Client
}

var nameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// NewRegistry checks the configuration and reads the named scripts; a mistake in either is kind Invalid. It
// dials nobody.
func NewRegistry(cfg Config) (*Registry, error) {
	r := &Registry{cfg: cfg, providers: map[string]Provider{}, client: newClient()}
	r.cfg.IdleTimeout = cmp.Or(cfg.IdleTimeout, outboard.ModelIdleTimeout)
	r.cfg.MaxResponse = cmp.Or(cfg.MaxResponse, outboard.MaxModelOutput)
	if r.cfg.IdleTimeout < 0 || r.cfg.MaxResponse < 0 || cfg.Scripts.Context < 0 || cfg.Scripts.Output < 0 {
		return nil, outboard.Errorf(outboard.Invalid, "configuring models: idle_timeout, max_response and sizes "+
			"must not be negative")
	}
	for _, p := range cfg.Providers {
		if err := checkProvider(p); err != nil {
			return nil, err
		}
		if _, ok := r.providers[p.Name]; ok {
			return nil, outboard.Errorf(outboard.Invalid, "configuring models: provider %q is given twice", p.Name)
		}
		r.providers[p.Name] = p
		r.names = append(r.names, p.Name)
	}
	if err := r.readScripts(); err != nil {
		return nil, err
	}
	return r, r.checkAliases()
}

func checkProvider(p Provider) error {
	if !nameRE.MatchString(p.Name) || p.Name == ProviderScript {
		return outboard.Errorf(outboard.Invalid, "configuring models: %q cannot be a provider's name: "+
			"use letters, digits, dot, dash and underscore, and not \"script\"", p.Name)
	}
	if !slices.Contains([]string{TypeAnthropic, TypeResponses, TypeChat}, p.Type) {
		return outboard.Errorf(outboard.Invalid, "configuring provider %q: unknown type %q; types are %s, %s, %s",
			p.Name, p.Type,
			TypeAnthropic, TypeResponses, TypeChat)
	}
	if p.BaseURL == "" && p.Type == TypeChat {
		return outboard.Errorf(outboard.Invalid, "configuring provider %q: base_url is missing", p.Name)
	}
	if p.BaseURL != "" {
		u, err := url.Parse(p.BaseURL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return outboard.Errorf(outboard.Invalid, "configuring provider %q: base_url must be an http or https URL",
				p.Name)
		}
		if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return outboard.Errorf(outboard.Invalid, "configuring provider %q: base_url must have no user, query or "+
				"fragment; "+
				"put credentials into api_key or headers", p.Name)
		}
	}
	seen := map[string]bool{}
	for _, m := range p.Models {
		if m.Name == "" || seen[m.Name] || m.Context < 0 || m.Output < 0 {
			return outboard.Errorf(outboard.Invalid, "configuring provider %q: model %q needs a name of its own and "+
				"sizes that are "+
				"not negative", p.Name, m.Name)
		}
		if !slices.Contains([]string{"", ThinkingOff, ThinkingAdaptive, ThinkingBudget}, m.Thinking) {
			return outboard.Errorf(outboard.Invalid, "configuring provider %q: model %q: thinking is %s, %s or %s, "+
				"not %q", p.Name,
				m.Name, ThinkingOff, ThinkingAdaptive, ThinkingBudget, m.Thinking)
		}
		seen[m.Name] = true
	}
	return nil
}

// checkAliases refuses aliases that could never resolve. A target may still lack a key: Resolve says so when it
// is used.
func (r *Registry) checkAliases() error {
	for _, name := range slices.Sorted(maps.Keys(r.cfg.Aliases)) {
		target := r.cfg.Aliases[name]
		if _, ok := r.cfg.Aliases[target]; ok {
			return outboard.Errorf(outboard.Invalid, "configuring models: alias %q names the alias %q; name a model",
				name, target)
		}
		if name == "" || target == "" {
			return outboard.Errorf(outboard.Invalid, "configuring models: alias %q = %q is empty", name, target)
		}
	}
	return nil
}

// readScripts parses the named scripts.
func (r *Registry) readScripts() error {
	texts := maps.Clone(r.cfg.Scripts.Inline)
	if texts == nil {
		texts = map[string]string{}
	}
	if dir := r.cfg.Scripts.Dir; dir != "" {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return outboard.Errorf(outboard.Invalid, "reading scripts: %w", err)
		}
		for _, e := range entries {
			name, ok := strings.CutSuffix(e.Name(), ".yaml")
			if !ok || e.IsDir() {
				continue
			}
			if _, ok := texts[name]; ok {
				return outboard.Errorf(outboard.Invalid, "reading scripts: %q is both in %s and inline", name, dir)
			}
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return outboard.Errorf(outboard.Invalid, "reading scripts: %w", err)
			}
			texts[name] = string(b)
		}
	}
	r.scripts = map[string][]rule{}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if !nameRE.MatchString(name) || name == stepsName {
			return outboard.Errorf(outboard.Invalid, "reading scripts: %q cannot be a script's name", name)
		}
		rules, err := parseRules([]byte(texts[name]))
		if err != nil {
			return outboard.Errorf(outboard.Invalid, "reading script %q: %w", name, err)
		}
		r.scripts[name] = rules
	}
	return nil
}

// Resolve returns the model that id names: an alias, "provider/model", or a bare name that exactly one provider
// serves. An unknown id is kind Invalid; its message names the id and what is configured, its hint what to set.
func (r *Registry) Resolve(id string) (Model, error) {
	if id == "" {
		return nil, outboard.Errorf(outboard.Invalid, "the model id is empty").WithHint("name a model: %s", r.choices())
	}
	if target, ok := r.cfg.Aliases[id]; ok {
		m, err := r.resolve(target)
		if e, ok := errors.AsType[*outboard.Error](err); ok {
			return nil, outboard.Errorf(e.Kind, "model alias %q: %w", id, e).WithHint("%s", e.Hint)
		}
		return m, err
	}
	return r.resolve(id)
}

func (r *Registry) resolve(id string) (Model, error) {
	prefix, name, slash := strings.Cut(id, "/")
	if slash && prefix == ProviderScript {
		return r.script(name)
	}
	if p, ok := r.providers[prefix]; ok && slash {
		return r.model(p, name)
	}
	var serving []Provider
	for _, n := range r.names {
		p := r.providers[n]
		if slices.ContainsFunc(p.Models, func(m ModelInfo) bool { return m.Name == id }) {
			serving = append(serving, p)
		}
	}
	if wire := familyOf(id).wire; len(serving) == 0 && wire != "" && !slash {
		for _, n := range r.names {
			if p := r.providers[n]; len(p.Models) == 0 && p.vendor() == vendorOf(wire) {
				serving = append(serving, p)
			}
		}
	}
	switch len(serving) {
	case 0:
		return nil, r.unknown(id)
	case 1:
		return r.model(serving[0], id)
	}
	var names []string
	for _, p := range serving {
		names = append(names, p.Name+"/"+id)
	}
	return nil, outboard.Errorf(outboard.Invalid, "model %q is served by several providers", id).
		WithHint("name one: %s", strings.Join(names, ", "))
}

// vendor says whose own model names a provider takes without listing them: by its wire, or by its name for a
// compatible one.
func (p Provider) vendor() string {
	if p.Type == TypeChat {
		return p.Name
	}
	return vendorOf(p.Type)
}

func vendorOf(wire string) string {
	if wire == TypeResponses {
		return "openai"
	}
	return wire
}

// script returns a script model.
func (r *Registry) script(name string) (Model, error) {
	rules, ok := r.scripts[name]
	if !ok && name != stepsName {
		have := []string{"script/" + stepsName}
		for _, n := range slices.Sorted(maps.Keys(r.scripts)) {
			have = append(have, "script/"+n)
		}
		return nil, outboard.Errorf(outboard.Invalid, "unknown model %q; the scripts are %s", "script/"+name,
			strings.Join(have, ", ")).
			WithHint("put the script into llm.scripts of the configuration, or use script/steps")
	}
	id := ProviderScript + "/" + name
	return &script{name: name, rules: rules, info: Info{ID: id, Provider: ProviderScript,
		Price:   r.price(id, ProviderScript, ""),
		Context: cmp.Or(r.cfg.Scripts.Context, scriptContext), Output: cmp.Or(r.cfg.Scripts.Output, scriptOutput)}}, nil
}

// model returns a provider's model.
func (r *Registry) model(p Provider, name string) (Model, error) {
	i := slices.IndexFunc(p.Models, func(m ModelInfo) bool { return m.Name == name })
	if name == "" || i < 0 && len(p.Models) > 0 {
		var have []string
		for _, m := range p.Models {
			have = append(have, p.Name+"/"+m.Name)
		}
		return nil, outboard.Errorf(outboard.Invalid, "unknown model %q; provider %q serves %s", p.Name+"/"+name,
			p.Name,
			cmp.Or(strings.Join(have, ", "), "any model, but the name is empty")).
			WithHint("add it to the provider's models in the configuration (outboard config show)")
	}
	if p.APIKey.IsZero() && (p.KeyEnv != "" || len(p.Headers) == 0 && p.BaseURL == "") {
		return nil, outboard.Errorf(outboard.Invalid, "model %q: provider %q has no API key", p.Name+"/"+name, p.Name).
			WithHint("set %s, or api_key of the provider in the configuration", cmp.Or(p.KeyEnv, keyVariable(p.Type)))
	}
	m := ModelInfo{Name: name}
	if i >= 0 {
		m = p.Models[i]
	}
	return r.wire(p, r.info(p, m), m), nil
}

func (r *Registry) info(p Provider, m ModelInfo) Info {
	f := familyOf(m.Name)
	id := p.Name + "/" + m.Name
	return Info{ID: id, Provider: p.Type, Price: r.price(id, p.Type, p.vendor()), Context: cmp.Or(m.Context, f.context),
		Output: cmp.Or(m.Output, min(f.output, cmp.Or(m.Context, f.context)))}
}

// unknown is the error for a name nobody serves.
func (r *Registry) unknown(id string) error {
	e := outboard.Errorf(outboard.Invalid, "unknown model %q; configured: %s", id, r.choices())
	switch familyOf(id).wire {
	case TypeAnthropic:
		return e.WithHint("set ANTHROPIC_API_KEY, or add a provider of type anthropic to the configuration " +
			"(outboard config init)")
	case TypeResponses:
		return e.WithHint("set OPENAI_API_KEY, or add a provider of type openai-responses to the configuration " +
			"(outboard config init)")
	}
	return e.WithHint("write provider/model, or add the model to a provider in the configuration (outboard config init)")
}

func keyVariable(wire string) string {
	if wire == TypeAnthropic {
		return "ANTHROPIC_API_KEY"
	}
	return "OPENAI_API_KEY"
}

// choices lists what can be asked for, for messages.
func (r *Registry) choices() string {
	out := slices.Sorted(maps.Keys(r.cfg.Aliases))
	for _, n := range r.names {
		p := r.providers[n]
		if len(p.Models) == 0 {
			out = append(out, n+"/MODEL")
		}
		for _, m := range p.Models {
			out = append(out, n+"/"+m.Name)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(r.scripts)) {
		out = append(out, "script/"+n)
	}
	return strings.Join(append(out, "script/"+stepsName), ", ")
}

// Models lists the models that are known by name: the aliases of those that can be used, what providers list,
// and the scripts. A provider without a list serves more.
func (r *Registry) Models() []Info {
	var out []Info
	for _, alias := range slices.Sorted(maps.Keys(r.cfg.Aliases)) {
		if m, err := r.Resolve(alias); err == nil {
			info := m.Info()
			info.Alias = alias
			out = append(out, info)
		}
	}
	for _, n := range r.names {
		for _, m := range r.providers[n].Models {
			out = append(out, r.info(r.providers[n], m))
		}
	}
	for _, n := range append([]string{stepsName}, slices.Sorted(maps.Keys(r.scripts))...) {
		if m, err := r.script(n); err == nil {
			out = append(out, m.Info())
		}
	}
	return out
}
