package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboard-dev/outboard"
)

// fields are what the API calls flags where that is not the flag's own name, by the command: errors of the API
// name those.
var fields = map[string]map[string]string{
	"outboard key create":     {"for": "expires_in_seconds", "scope": "scopes"},
	"outboard ssh-key add":    {"for": "expires_in_seconds"},
	"outboard grant add":      {"for": "expires_at", "uses": "max_uses", "action": "actions", "resource": "resources"},
	"outboard box create":     {"ttl": "timeout"},
	"outboard fork":           {"number": "count"},
	"outboard run":            {"vault": "vault_ids"},
	"outboard audit redact":   {"field": "fields", "why": "reason"},
	"outboard secret set":     {"host": "hosts", "port": "ports", "method": "methods", "path": "paths"},
	"outboard template build": {"tag": "tags"},
}

// asTyped returns an error's text with the names of flags and arguments where the API's field names were. A field name
// is replaced at the beginning of the text, and anywhere else if it can be no other word.
func asTyped(cmd *cobra.Command, err error) string {
	text := err.Error()
	if cmd == nil || outboard.KindOf(err) != outboard.Invalid {
		return text
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		field := fields[cmd.CommandPath()][f.Name]
		if field == "" {
			field = strings.ReplaceAll(f.Name, "-", "_")
		}
		at := strings.Index(text, field)
		if at < 0 || at > 0 && (!strings.Contains(field, "_") || part(text[at-1])) {
			return
		}
		if end := at + len(field); end < len(text) && !part(text[end]) {
			text = text[:at] + "--" + f.Name + text[end:]
		}
	})
	return text
}

// part reports whether a byte can be one of a field's name or its path.
func part(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-'
}
