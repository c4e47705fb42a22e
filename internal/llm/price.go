package llm

import (
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"go.yaml.in/yaml/v3"
)

// Rate is a price in dollars per million tokens, kept in millionths of it: which is billionths of a dollar per
// thousand tokens.
type Rate int64

// UnmarshalText reads dollars.
func (r *Rate) UnmarshalText(b []byte) error {
	s := string(b)
	whole, frac, _ := strings.Cut(s, ".")
	if whole == "" || len(frac) > 6 || strings.ContainsAny(s, "+-_ ") {
		return outboard.Errorf(outboard.Invalid, "a price must be dollars per million tokens, such as 0.25, not %q", s)
	}
	n, err := strconv.ParseInt(whole+frac+strings.Repeat("0", 6-len(frac)), 10, 64)
	if err != nil || n > maxRate {
		return outboard.Errorf(outboard.Invalid, "a price must be dollars per million tokens, such as 0.25, not %q", s)
	}
	*r = Rate(n)
	return nil
}

// MarshalText writes dollars.
func (r Rate) MarshalText() ([]byte, error) {
	return []byte(strings.TrimPrefix(outboard.Cost(r*1000).String(), "$")), nil
}

// maxRate bounds a price, at 100,000 dollars, so that no product with a number of tokens overflows.
const maxRate = 100_000 * 1_000_000

// Price is what a model's tokens cost, at list price. Where no price for cache writes is given they cost what
// other input does.
type Price struct {
	Input        Rate  `yaml:"input"`
	Output       Rate  `yaml:"output"`
	CacheRead    *Rate `yaml:"cache_read,omitempty"` // nil = as Input
	CacheWrite5m *Rate `yaml:"cache_write_5m,omitempty"`
	CacheWrite1h *Rate `yaml:"cache_write_1h,omitempty"`
}

// UnmarshalYAML reads a price, of which input and output must be said: what is left out would be free, and no
// budget would hold for it.
func (p *Price) UnmarshalYAML(n *yaml.Node) error {
	type plain Price
	if err := n.Decode((*plain)(p)); err != nil {
		return err
	}
	said := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		said[n.Content[i].Value] = n.Content[i+1].ShortTag() != "!!null"
	}
	if !said["input"] || !said["output"] {
		return fmt.Errorf("line %d: a price needs input and output, in dollars per million tokens; 0 is free", n.Line)
	}
	return nil
}

// Of is what a usage costs, rounded up.
func (p *Price) Of(u outboard.Usage) outboard.Cost {
	or := func(r *Rate) int64 {
		if r == nil {
			return int64(p.Input)
		}
		return int64(*r)
	}
	sum := u.Input*int64(p.Input) + u.Output*int64(p.Output) + u.CacheRead*or(p.CacheRead) +
		u.CacheWrite5m*or(p.CacheWrite5m) +
		u.CacheWrite1h*or(p.CacheWrite1h)
	return outboard.Cost((sum + 999) / 1000)
}

// Most is the most that a request can cost per token of its prompt: no cache is counted on, and writing one may
// cost more than not.
func (p *Price) Most() Rate {
	most := p.Input
	for _, r := range []*Rate{p.CacheWrite5m, p.CacheWrite1h} {
		if r != nil {
			most = max(most, *r)
		}
	}
	return most
}

//go:embed prices.yaml
var pricesText []byte

// listed are the prices of prices.yaml by the vendor's own name of the model.
var listed = mustPrices()

func mustPrices() map[string]Price {
	var tables []struct {
		Source string           `yaml:"source"`
		Date   string           `yaml:"date"`
		Models map[string]Price `yaml:"models"`
	}
	if err := yaml.Unmarshal(pricesText, &tables); err != nil {
		panic("llm: prices.yaml: " + err.Error()) // a test reads it
	}
	out := map[string]Price{}
	for _, t := range tables {
		maps.Copy(out, t.Models)
	}
	return out
}

// dated is what a vendor may add to a model's name.
var dated = regexp.MustCompile(`-(\d{8}|\d{4}-\d{2}-\d{2}|0|latest)$`)

// price is a model's list price: of the configuration, by full id or by name, else of the table, for a vendor's
// own models. nil when there is none.
func (r *Registry) price(id, wire, vendor string) *Price {
	name := id[strings.IndexByte(id, '/')+1:]
	for _, key := range []string{id, name} {
		if p, ok := r.cfg.Prices[key]; ok {
			return &p
		}
	}
	if vendor != vendorOf(wire) || familyOf(name).wire != wire {
		return nil
	}
	for _, key := range []string{name, dated.ReplaceAllString(name, "")} {
		if p, ok := listed[key]; ok {
			return &p
		}
	}
	return nil
}

// PriceAt is the list price of a model at a speed, nil where there is none: what is faster costs more, and no
// table says how much.
func PriceAt(m Model, speed string) *Price {
	if speed == "fast" {
		return nil
	}
	return m.Info().Price
}

// Unpriced is the refusal of a money budget for a model whose cost nobody knows.
func Unpriced(id string) error {
	return outboard.Errorf(outboard.Invalid, "model %q has no list price, so money cannot be budgeted for it", id).
		WithCode("model_not_budgetable").
		WithHint("give it one in the configuration, in dollars per million tokens: llm: {prices: {%q: {input: 1, "+
			"output: 5}}}", id)
}
