package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A duration that is read as another lets somebody in for longer than was meant.
func TestSpans(t *testing.T) {
	day := 24 * time.Hour
	for text, want := range map[string]time.Duration{"90d": 90 * day, "1w": 7 * day, "1w2d12h": 9*day + 12*time.Hour,
		"1.5d": 36 * time.Hour, "90s": 90 * time.Second,
		"1h30m": 90 * time.Minute, "0": 0, "-1h": -time.Hour, "-1d": -day} {
		if got, err := parseSpan(text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "90", "7y", "1h1d", "--1h", "1d-1h", "+-1h", "1d+1h", "99999999999999d"} {
		if got, err := parseSpan(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

// Who slips on the keyboard must be told the word, and nobody must be told a word that is far away.
func TestMeant(t *testing.T) {
	known := []string{"approve", "attach", "ls", "logs", "login"}
	for word, want := range map[string]string{"aprove": "approve", "atach": "attach", "lgos": "logs", "lgin": "login",
		"sl": "ls", "zebra": "", "x": "", "": ""} {
		got := meant("", word, known)
		if want != "" {
			want = "did you mean " + want + "? "
		}
		if got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

// Who copies the first command must get a model that a money budget can hold.
func TestModelsOfTheReadmeHaveAPrice(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	prices, err := os.ReadFile("../../internal/llm/prices.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`-m (anthropic|openai)/(\S+)`).FindAllStringSubmatch(string(b), -1)
	if len(found) == 0 {
		t.Error("the README names no model")
	}
	for _, m := range found {
		if !strings.Contains(string(prices), "    "+m[2]+": {") {
			t.Errorf("%s has no price", m[2])
		}
	}
}
