package api

import (
	"encoding/json"
	"maps"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// webIn is what web_fetch and web_search take besides the common fields. It is stored as given, with shorthands
// written out.
type webIn struct {
	Allowed  *[]string       `json:"allowed_domains"`
	Blocked  *[]string       `json:"blocked_domains"`
	Tokens   *int64          `json:"max_content_tokens"`
	Sources  json.RawMessage `json:"url_sources"`
	Location json.RawMessage `json:"user_location"`
}

// webOut is webIn as it is stored and shown.
type webOut struct {
	Allowed  *[]string       `json:"allowed_domains,omitempty"`
	Blocked  *[]string       `json:"blocked_domains,omitempty"`
	Tokens   *int64          `json:"max_content_tokens,omitempty"`
	Sources  map[string]any  `json:"url_sources,omitempty"`
	Location json.RawMessage `json:"user_location,omitempty"`
}

// webFields are the extras each web tool has.
var webFields = map[string][]string{
	"web_fetch":  {"allowed_domains", "blocked_domains", "max_content_tokens", "url_sources"},
	"web_search": {"allowed_domains", "blocked_domains", "user_location"},
}

// decodeWeb takes a web tool's own members out of fields and returns them in their stored form.
func decodeWeb(path, tool string, fields map[string]json.RawMessage) (outboard.Raw, error) {
	own := map[string]json.RawMessage{}
	for _, name := range webFields[tool] {
		if raw, ok := fields[name]; ok {
			own[name] = raw
			delete(fields, name)
		}
	}
	if len(own) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(own)
	if err != nil {
		return nil, bad("%s: %s", path, control.WhyJSON(err))
	}
	var in webIn
	if err := object(path, b, &in); err != nil {
		return nil, err
	}
	out := webOut{Allowed: in.Allowed, Blocked: in.Blocked, Tokens: in.Tokens}
	if !isNull(in.Sources) {
		if out.Sources, err = decodeSources(control.Join(path, "url_sources"), in.Sources); err != nil {
			return nil, err
		}
	}
	if !isNull(in.Location) {
		var loc struct {
			Type     string  `json:"type" need:"yes"`
			City     *string `json:"city"`
			Region   *string `json:"region"`
			Country  *string `json:"country"`
			Timezone *string `json:"timezone"`
		}
		if err := object(control.Join(path, "user_location"), in.Location, &loc); err != nil {
			return nil, err
		}
		if loc.Type != "approximate" {
			return nil, bad("%s.user_location.type: must be approximate", path)
		}
		out.Location = in.Location
	}
	return json.Marshal(out)
}

// decodeSources reads url_sources: from where the addresses may come that web_fetch opens.
func decodeSources(path string, raw json.RawMessage) (map[string]any, error) {
	var in struct {
		User   json.RawMessage `json:"user_input"`
		Client json.RawMessage `json:"client_tool_results"`
		Server json.RawMessage `json:"server_tool_results"`
	}
	if err := object(path, raw, &in); err != nil {
		return nil, err
	}
	out, none := map[string]any{}, 0
	for name, raw := range map[string]json.RawMessage{"user_input": in.User, "client_tool_results": in.Client,
		"server_tool_results": in.Server} {
		v, kind, err := decodeSource(control.Join(path, name), raw, name != "user_input")
		if err != nil {
			return nil, err
		}
		if kind == "none" {
			none++
		}
		out[name] = v
	}
	if none == len(out) {
		return nil, bad("%s: must leave at least one source", path)
	}
	return out, nil
}

func decodeSource(path string, raw json.RawMessage, filter bool) (v any, kind string, err error) {
	if isNull(raw) {
		return nil, "", nil
	}
	if json.Unmarshal(raw, &kind) != nil {
		if kind, err = unionType(path, raw); err != nil {
			return nil, "", err
		}
	} else {
		raw = nil
	}
	switch {
	case kind == "all" || kind == "none":
		if raw != nil {
			err = object(path, raw, new(typeOut))
		}
		return typeOut{kind}, kind, err
	case filter && raw != nil && (kind == "only" || kind == "except"):
		var in struct {
			Type  string            `json:"type"`
			Tools []json.RawMessage `json:"tools" need:"yes"`
		}
		if err := object(path, raw, &in); err != nil {
			return nil, "", err
		}
		for i, t := range in.Tools {
			var ref struct {
				Type string `json:"type" need:"yes"`
				Name string `json:"name" need:"yes"`
			}
			if err := object(control.At(control.Join(path, "tools"), i), t, &ref); err != nil {
				return nil, "", err
			}
		}
		return raw, kind, nil
	}
	return nil, "", bad("%s: must be all, none, or an object that filters by tools", path)
}

// showWeb adds a web tool's own fields to its config.
func showWeb(m map[string]any, c outboard.ToolConfig) {
	if c.Name == "web_fetch" {
		m["url_sources"] = nil // always present
	}
	var own map[string]any
	if len(c.Web) == 0 || json.Unmarshal(c.Web, &own) != nil {
		return
	}
	maps.Copy(m, own)
}
