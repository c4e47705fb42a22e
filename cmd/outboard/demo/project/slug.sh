#!/bin/sh
# Prints the slug of a title.
. "$(dirname "$0")/lib/text.sh"
slug "$*"
echo
