package tool

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// webRules is the configuration of web_fetch in an agent, as its client sent it.
type webRules struct {
	AllowedDomains   []string        `json:"allowed_domains"`
	BlockedDomains   []string        `json:"blocked_domains"`
	MaxContentTokens int             `json:"max_content_tokens"`
	URLSources       json.RawMessage `json:"url_sources"`
}

// WebOf returns the configuration of web_fetch in an agent's tools, or nil.
func WebOf(sets []outboard.Toolset) outboard.Raw {
	for _, set := range sets {
		if set.Kind != "builtin" {
			continue
		}
		for _, c := range set.Configs {
			if c.Name == "web_fetch" {
				return c.Web
			}
		}
	}
	return nil
}

// parseWeb decodes the configuration. What cannot be understood or enforced refuses every fetch.
func parseWeb(raw outboard.Raw) (webRules, error) {
	var w webRules
	if len(raw) == 0 {
		return w, nil
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return w, &refusal{why: "the agent's configuration of web_fetch cannot be read", detail: err.Error()}
	}
	if !unrestricted(w.URLSources) {
		return w, &refusal{why: "the agent restricts url_sources, which this server cannot enforce"}
	}
	return w, nil
}

// unrestricted reports whether url_sources lets addresses come from anywhere: absent, null, or "all" for each source.
func unrestricted(sources json.RawMessage) bool {
	if len(sources) == 0 || bytes.Equal(sources, []byte("null")) {
		return true
	}
	var each map[string]json.RawMessage
	if json.Unmarshal(sources, &each) != nil {
		return false
	}
	for _, v := range each {
		var all struct{ Type string }
		if string(v) != "null" && string(v) != `"all"` && (json.Unmarshal(v, &all) != nil || all.Type != "all") {
			return false
		}
	}
	return true
}

// allow applies the domain lists to a host. A domain covers itself and everything below it.
func (w webRules) allow(host string) bool {
	covers := func(domain string) bool {
		domain = strings.TrimSuffix(strings.ToLower(domain), ".")
		return domain != "" && (host == domain || strings.HasSuffix(host, "."+domain))
	}
	if slices.ContainsFunc(w.BlockedDomains, covers) {
		return false
	}
	return w.AllowedDomains == nil || slices.ContainsFunc(w.AllowedDomains, covers)
}
