package main

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// span is the value of a flag that takes a duration: as Go writes them, and in days and weeks, such as 90d or 1w2d12h.
type span time.Duration

// longUnits are what time.ParseDuration does not know. A day has 24 hours here.
var longUnits = regexp.MustCompile(`^(\d+(?:\.\d+)?)(w|d)`)

// parseSpan reads a duration.
func parseSpan(text string) (time.Duration, error) {
	rest, neg := strings.CutPrefix(text, "-")
	total := 0.0
	for {
		m := longUnits.FindStringSubmatch(rest)
		if m == nil {
			break
		}
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, err
		}
		total += n * float64(map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour}[m[2]])
		rest = rest[len(m[0]):]
	}
	if rest != "" || text == "" {
		d, err := time.ParseDuration(rest)
		if err != nil || d < 0 || strings.HasPrefix(rest, "+") && rest != strings.TrimPrefix(text, "-") {
			return 0, fmt.Errorf("%q is no duration", text)
		}
		total += float64(d)
	}
	if total >= math.MaxInt64 {
		return 0, strconv.ErrRange
	}
	if neg {
		total = -total
	}
	return time.Duration(total), nil
}

// Set implements pflag.Value.
func (s *span) Set(text string) error {
	d, err := parseSpan(text)
	*s = span(d)
	return err
}

// String implements pflag.Value.
func (s *span) String() string {
	if *s == 0 {
		return "0s"
	}
	return time.Duration(*s).String()
}

// Type implements pflag.Value.
func (s *span) Type() string { return "duration" }

// spanVar adds a flag that takes a duration.
func spanVar(f *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	f.Var((*span)(p), name, usage)
}
