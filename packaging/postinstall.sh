#!/bin/sh
# Nothing is started: what the server may reach and who may reach it is yours to say first.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # An upgrade: the new program takes over, and sandboxes go on.
  if systemctl is-active --quiet outboard; then systemctl restart outboard; fi
fi
if [ "$1" = configure ] && [ -z "$2" ] || [ "$1" = 1 ]; then
  echo "outboard is installed. As a user: outboard demo. As a service: systemctl enable --now outboard"
fi
