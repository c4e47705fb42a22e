// Package text shortens text of strangers for messages, logs and records. It never cleans it for a
// terminal: package term does.
package text

import (
	"strings"
	"unicode/utf8"
)

// Clip returns s if it has at most a number of bytes, else its beginning, cut between two characters, and "...".
// What is not UTF-8 in it becomes "?": the result can be shown, logged and encoded.
func Clip(s string, most int) string {
	end := ""
	if len(s) > most {
		for most > 0 && !utf8.RuneStart(s[most]) {
			most--
		}
		s, end = s[:most], "..."
	}
	return strings.ToValidUTF8(s, "?") + end
}
