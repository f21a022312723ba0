#!/usr/bin/env bash
# The gateway's pages in a real browser (Chromium without a window): sign-in, consent, connecting an account, errors; by mouse and
# by keyboard; light and dark, English and German, wide and narrow. axe-core has to find nothing. Ends with 'N passed, N failed'.
#   pages.sh               on three instances behind HAProxy, with a Redis and a PostgreSQL: each step is another's, and some are killed
#   INSTANCES=1 pages.sh   on one, with SQLite, which is killed and started again
# Screenshots are in SHOTS, by default tests/interop/.screenshots; LOG=FILE keeps the gateway's output.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
"$here/install.sh" browser >/dev/null || exit 1
export INSTANCES=${INSTANCES:-3}
start backend node "$CONF/everything-server/server.mjs" --quiet; backend=$url
start provider node "$CONF/idp/idp.mjs" --ask; provider=$url
start tracker node "$CONF/everything-server/server.mjs" --quiet --issuer "$provider"; tracker=$url
SHOTS=${SHOTS:-$here/.screenshots} GATEWAY=$here/tools/protected-gateway.py DIR=$tmp/pages BACKEND=$backend TRACKER=$tracker ISSUER=$provider timeout 600 node "$CONF/browser/pages.mjs"
