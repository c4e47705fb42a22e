#!/bin/sh
# Stops the service when the package goes, not when it is upgraded ("upgrade" for dpkg, 1 for rpm). Data stays.
set -e
if [ "$1" = remove ] || [ "$1" = 0 ]; then
  if [ -d /run/systemd/system ]; then systemctl disable --now outboard || true; fi
fi
