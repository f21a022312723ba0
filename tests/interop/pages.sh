#!/usr/bin/env bash
# The gateway's pages in a real browser (Chromium without a window): sign-in, consent, errors; by mouse and by keyboard;
# light and dark, English and German, wide and narrow. axe-core has to find nothing. Ends with 'N passed, N failed'.
#   pages.sh        screenshots are in SHOTS, by default tests/interop/.screenshots;  LOG=FILE keeps the gateway's output
set -uo pipefail
. "$(dirname "$0")/lib.sh"
"$here/install.sh" browser >/dev/null || exit 1
start backend node "$CONF/everything-server/server.mjs" --quiet; backend=$url
SHOTS=${SHOTS:-$here/.screenshots} GATEWAY=$here/tools/protected-gateway.py DIR=$tmp/pages BACKEND=$backend timeout 300 node "$CONF/browser/pages.mjs"
