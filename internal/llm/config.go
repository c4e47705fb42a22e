package llm

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
	"go.yaml.in/yaml/v3"
)

// Config says which models there are. The zero value has the script model only.
type Config struct {
	Providers []Provider        `yaml:"providers,omitempty"`
	Aliases   map[string]string `yaml:"aliases,omitempty"` // name -> model id that is not itself an alias
	Scripts   Scripts           `yaml:"scripts,omitempty"`
	// Prices are list prices that replace those of prices.yaml, or add to them: by model id ("provider/name") or
	// by name.
	Prices map[string]Price `yaml:"prices,omitempty"`
	// IdleTimeout is how long a model's stream may be silent; 0 = outboard.ModelIdleTimeout.
	IdleTimeout time.Duration `yaml:"idle_timeout,omitempty"`
	// MaxResponse bounds the bytes of one streamed response; 0 = outboard.MaxModelOutput.
	MaxResponse int64 `yaml:"max_response,omitempty"`
	// Credential opens a credential of the vault for one request of a provider, so that a rotated key is used at
	// once. Its error keeps the request from being sent. nil = such providers fail.
	Credential func(ctx context.Context, ref, method, url string) (Secret, error) `yaml:"-"`
}

// Wire families a Provider may have as its Type.
const (
	TypeAnthropic = "anthropic"        // Anthropic Messages
	TypeResponses = "openai-responses" // OpenAI Responses
	TypeChat      = "openai-chat"      // OpenAI Chat Completions, and everything compatible with it
)

// Provider is one place that serves models.
type Provider struct {
	Name    string            `yaml:"name"`               // the part of a model id before the first slash
	Type    string            `yaml:"type"`               // a wire family
	BaseURL string            `yaml:"base_url,omitempty"` // "" = the vendor's own; must be set for openai-chat
	APIKey  Key               `yaml:"api_key,omitempty"`
	KeyEnv  string            `yaml:"api_key_env,omitempty"` // environment variable that holds the key
	Headers map[string]Secret `yaml:"headers,omitempty"`     // sent with every request; a gateway may want them
	// Models are the models served. With none listed every name is passed on; with some, only those exist.
	Models []ModelInfo `yaml:"models,omitempty"`
}

// ModelInfo describes one model of a provider. Zero sizes mean the built-in ones for its family.
type ModelInfo struct {
	Name    string `yaml:"name"`
	Context int64  `yaml:"context,omitempty"` // context window in tokens
	Output  int64  `yaml:"output,omitempty"`  // most output tokens of one response
	// Thinking says how the model reasons, where its name does not tell: see the constants.
	Thinking string `yaml:"thinking,omitempty"`
}

// How a model reasons, as a ModelInfo's Thinking.
const (
	ThinkingOff      = "off"
	ThinkingAdaptive = "adaptive" // as much as it sees fit; effort is a setting of its own
	ThinkingBudget   = "budget"   // Anthropic models before 4.6: up to a number of tokens, here derived from effort
)

// Scripts are the named scripts, and the sizes of the script models.
type Scripts struct {
	Dir     string            `yaml:"dir,omitempty"`     // every NAME.yaml in it is script/NAME
	Inline  map[string]string `yaml:"inline,omitempty"`  // name -> text
	Context int64             `yaml:"context,omitempty"` // context window of every script model, to try out compaction
	Output  int64             `yaml:"output,omitempty"`
}

// Secret is text that must not be shown; see outboard.Secret.
type Secret = outboard.Secret

// NewSecret returns s as a Secret.
func NewSecret(s string) Secret { return outboard.NewSecret(s) }

// Key is a provider's API key: the key itself, or the credential of the vault that holds it.
type Key struct {
	Secret
	Credential string // an id, a name in the vault "default", or VAULT/NAME; "" = the key is Secret
}

// keyRef is how a configuration names a credential.
type keyRef struct {
	Credential string `yaml:"credential"`
}

// IsZero reports whether there is no key.
func (k Key) IsZero() bool { return k.Secret.IsZero() && k.Credential == "" }

// UnmarshalYAML reads text, or {credential: NAME}.
func (k *Key) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		k.Secret = NewSecret(n.Value)
		return nil
	}
	var ref keyRef
	if err := n.Decode(&ref); err != nil {
		return err
	}
	k.Credential = ref.Credential
	return nil
}

// MarshalYAML writes the credential's name, or a placeholder.
func (k Key) MarshalYAML() (any, error) {
	if k.Credential != "" {
		return keyRef{k.Credential}, nil
	}
	return k.Secret.MarshalYAML()
}

// YAMLForms is the mapping that may stand in the place of text, for whoever checks a configuration before it is
// decoded.
func (Key) YAMLForms() (mapping any) { return keyRef{} }
