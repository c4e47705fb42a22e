package main

import "strings"

// meant is `did you mean X? ` for a word that is nearly one of those known, and "" where none is near. prefix
// stands before X.
func meant(prefix, word string, known []string) string {
	best, at := "", 3 // two slips of the finger in a long word, one in a short one
	if len(word) < 5 {
		at = 2
	}
	for _, k := range known {
		d := distance(strings.ToLower(word), k)
		if len(word) > 2 && strings.HasPrefix(k, word) {
			d = 1
		}
		if d < at {
			best, at = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + prefix + best + "? "
}

// distance is how many letters must be changed, added, dropped or swapped with the next one to make a word another.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
