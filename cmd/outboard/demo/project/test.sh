#!/bin/sh
# Checks every case of cases.txt.
cd "$(dirname "$0")" || exit 2
. lib/text.sh
n=0
failed=0
while IFS='|' read -r title want; do
	n=$((n + 1))
	got=$(slug "$title")
	if [ "$got" = "$want" ]; then
		echo "ok   $title"
	else
		echo "FAIL $title: got $got, want $want"
		failed=$((failed + 1))
	fi
	if [ "$1" = --slow ]; then sleep 1; fi
done <cases.txt
echo "$n cases, $failed failed"
[ "$failed" -eq 0 ]
