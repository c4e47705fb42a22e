# slug TITLE: lower case, one dash between words, nothing else.
slug() {
	printf '%s' "$1" | tr 'A-Z' 'a-z' | tr ' ' '-'
}
