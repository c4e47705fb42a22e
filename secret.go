package outboard

import (
	"encoding/json"
	"log/slog"
)

// Secret is text that must not be shown. Every way of printing it gives a placeholder; only Reveal returns it.
//
// The text is behind a pointer, because fmt calls no methods on what it finds in unexported fields and prints
// their content.
type Secret struct{ value *string }

// NewSecret returns s as a Secret.
func NewSecret(s string) Secret {
	if s == "" {
		return Secret{}
	}
	return Secret{&s}
}

// Reveal returns the text, for the one place that sends it.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.value == nil }

// String returns a placeholder.
func (s Secret) String() string {
	if s.value == nil {
		return ""
	}
	return "[secret]"
}

// GoString returns a placeholder, for %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue returns a placeholder.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON writes a placeholder.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// MarshalYAML writes a placeholder.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// UnmarshalText reads a secret from a configuration file.
func (s *Secret) UnmarshalText(b []byte) error {
	*s = NewSecret(string(b))
	return nil
}
