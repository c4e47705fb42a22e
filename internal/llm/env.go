package llm

import (
	"net"
	"net/url"
	"slices"
	"strings"
)

// FromEnv adds to cfg what the environment says, without overriding what cfg says itself: keys named by
// api_key_env, and the providers "anthropic" (ANTHROPIC_API_KEY, OUTBOARD_ANTHROPIC_BASE_URL), "openai"
// (OPENAI_API_KEY, OPENAI_BASE_URL) and "ollama" (OLLAMA_HOST).
//
// ANTHROPIC_BASE_URL is not read: users set it to point official clients at Outboard, and Outboard must not call
// itself.
func FromEnv(cfg Config, env func(string) string) Config {
	cfg.Providers = slices.Clone(cfg.Providers)
	for i := range cfg.Providers {
		p := &cfg.Providers[i]
		if p.APIKey.IsZero() && p.KeyEnv != "" {
			p.APIKey.Secret = NewSecret(env(p.KeyEnv))
		}
	}
	if key, base := env("ANTHROPIC_API_KEY"), env("OUTBOARD_ANTHROPIC_BASE_URL"); key != "" || base != "" {
		cfg.merge(Provider{Name: "anthropic", Type: TypeAnthropic, BaseURL: base, APIKey: Key{Secret: NewSecret(key)}})
	}
	if key, base := env("OPENAI_API_KEY"), env("OPENAI_BASE_URL"); key != "" || base != "" {
		cfg.merge(Provider{Name: "openai", Type: openAIType(base), BaseURL: base, APIKey: Key{Secret: NewSecret(key)}})
	}
	if host := env("OLLAMA_HOST"); host != "" {
		cfg.merge(Provider{Name: "ollama", Type: TypeChat, BaseURL: ollamaURL(host)})
	}
	return cfg
}

// merge adds p, or completes the configured provider of that name and type. A key is never given to a provider whose
// configuration names another server and no key: it would be sent to somebody it was not meant for.
func (c *Config) merge(p Provider) {
	i := slices.IndexFunc(c.Providers, func(q Provider) bool { return q.Name == p.Name })
	if i < 0 {
		c.Providers = append(c.Providers, p)
		return
	}
	q := &c.Providers[i]
	if q.Type != p.Type || q.BaseURL != "" && q.BaseURL != p.BaseURL {
		return
	}
	q.BaseURL = p.BaseURL
	if q.APIKey.IsZero() && q.KeyEnv == "" {
		q.APIKey = p.APIKey
	}
}

// openAIType is Responses for OpenAI itself; a compatible server is sure to speak Chat Completions only.
func openAIType(base string) string {
	if u, err := url.Parse(base); base == "" || err == nil && u.Hostname() == "api.openai.com" {
		return TypeResponses
	}
	return TypeChat
}

// ollamaURL makes a base URL of OLLAMA_HOST, which may be a host, host:port or URL, and may be the address
// Ollama listens on.
func ollamaURL(host string) string {
	if !strings.Contains(host, "://") {
		host = "http://" + host
	}
	u, err := url.Parse(host)
	if err != nil {
		return host // NewRegistry refuses it by name
	}
	name, port := u.Hostname(), u.Port()
	if port == "" {
		port = "11434"
	}
	if ip := net.ParseIP(name); name == "" || ip != nil && ip.IsUnspecified() {
		name = "127.0.0.1"
	}
	u.Host = net.JoinHostPort(name, port)
	u.Path = strings.TrimSuffix(u.Path, "/")
	if !strings.HasSuffix(u.Path, "/v1") {
		u.Path += "/v1"
	}
	return u.String()
}
