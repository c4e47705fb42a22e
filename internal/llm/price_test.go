package llm

import (
	"testing"

	"github.com/outboard-dev/outboard"
	"go.yaml.in/yaml/v3"
)

// If this fails, a budget counts another amount than the vendor bills, or a price in the file has no date and source.
func TestPrices(t *testing.T) {
	r, err := NewRegistry(Config{Prices: map[string]Price{"script/steps": {Input: 2_500_000, Output: 1}},
		Providers: []Provider{{Name: "anthropic", Type: TypeAnthropic, APIKey: Key{Secret: NewSecret("k")}},
			{Name: "openai", Type: TypeResponses, APIKey: Key{Secret: NewSecret("k")}},
			{Name: "local", Type: TypeChat, BaseURL: "http://127.0.0.1:1", APIKey: Key{Secret: NewSecret("k")}}}})
	if err != nil {
		t.Fatal(err)
	}
	u := outboard.Usage{Input: 1_000_000, Output: 1_000_000, CacheRead: 1_000_000, CacheWrite5m: 1_000_000,
		CacheWrite1h: 1_000_000}
	for id, want := range map[string]string{
		"anthropic/claude-opus-5":            "$46.75",
		"anthropic/claude-opus-4-5-20251101": "$46.75",
		"anthropic/claude-haiku-5-5":         "",
		"openai/gpt-5.4-nano":                "$1.87",
		"local/claude-opus-5":                "", // who knows what it is
		"script/steps":                       "$10.000001",
	} {
		m, err := r.Resolve(id)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if p := m.Info().Price; p != nil {
			got = p.Of(u).String()
		}
		if got != want {
			t.Errorf("a million of each of %s costs %q, not %q", id, got, want)
		}
	}
	if c := (&Price{Input: 1}).Of(outboard.Usage{Input: 1}); c != 1 {
		t.Errorf("a fraction is rounded to %d", c)
	}
	var tables []struct{ Source, Date string }
	if err := yaml.Unmarshal(pricesText, &tables); err != nil || len(tables) == 0 {
		t.Fatal(err)
	}
	for _, table := range tables {
		if table.Source == "" || len(table.Date) != len("2026-11-22") {
			t.Errorf("prices without a source or a date: %+v", table)
		}
	}
	var rate Rate
	for _, bad := range []string{"-1", "1e3", "", "1.2345678", "100001", "x"} {
		if err := rate.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is a price: %d", bad, rate)
		}
	}
	if err := rate.UnmarshalText([]byte("0.075")); err != nil || rate != 75_000 {
		t.Errorf("0.075 is %d, %v", rate, err)
	}
}

// If this fails, a price that leaves something out makes it free, and a money budget lets it pass.
func TestPricesAreWhole(t *testing.T) {
	for text, ok := range map[string]bool{"{}": false, "{input: 3}": false, "{input: 1, output: }": false,
		"{output: 3}": false, "{cache_read: 1, output: 2}": false,
		"{input: 0, output: 0}": true, "{input: 3, output: 15, cache_read: 0.3}": true} {
		var p Price
		if err := yaml.Unmarshal([]byte(text), &p); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}
