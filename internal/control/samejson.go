package control

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
)

// sameJSON compares documents by value, so that key order and spaces do not make a new version.
func sameJSON(a, b outboard.Raw) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	x, err := exact(a)
	if err != nil {
		return false
	}
	y, err := exact(b)
	return err == nil && sameValue(x, y)
}

// exact decodes a document and keeps its numbers as they are written.
func exact(b []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return v, d.Decode(&v)
}

func sameValue(a, b any) bool {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		return ok && maps.EqualFunc(x, y, sameValue)
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, sameValue)
	case json.Number:
		y, ok := b.(json.Number)
		return ok && (x == y || decimalOf(string(x)) == decimalOf(string(y)))
	}
	return a == b
}

// decimal is a number of JSON as its digits, without zeros at either end, and the power of ten they are multiplied by.
// As float64 two numbers that differ can be one.
type decimal struct {
	negative bool
	digits   string // "" = zero
	exponent int64
	written  string // of a number whose exponent has too many digits to count with: the number as it is written
}

// decimalOf takes apart what the decoder has found to be a number.
func decimalOf(s string) decimal {
	rest, negative := strings.CutPrefix(s, "-")
	rest, power, _ := strings.Cut(strings.ToLower(rest), "e")
	whole, fraction, _ := strings.Cut(rest, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return decimal{}
	}
	d := decimal{negative: negative, digits: strings.TrimRight(digits, "0")}
	if power != "" {
		n, err := strconv.ParseInt(power, 10, 62) // so that the length of a body can be added
		if err != nil {
			return decimal{written: s}
		}
		d.exponent = n
	}
	d.exponent += int64(len(digits)-len(d.digits)) - int64(len(fraction))
	return d
}
