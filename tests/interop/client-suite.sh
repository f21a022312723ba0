#!/usr/bin/env bash
# The client scenarios of the official suite (all that need no OAuth): its mock servers judge the gateway's upstream side.
#   client-suite.sh [--ci] [--direct] [VERSION ...]     84 checks (--direct: without a gateway)
#   ONLY=REGEX  only scenarios that match;  VIA='command {url}' another gateway;  ALLOW_WARNINGS=1;  OUT=DIR keeps results
# A real client (TypeScript SDK 2) drives each scenario through a gateway of its own, whose only backend is the mock.
# All of it takes half a minute, so --ci leaves nothing out. Ends with 'N passed, N failed'.
set -uo pipefail
direct=''
while :; do case ${1:-} in --ci) shift ;; --direct) direct=1; shift ;; *) break ;; esac; done
[ $# -gt 0 ] || set -- 2025-11-25 2026-07-28
. "$(dirname "$0")/lib.sh"
if [ -n "$direct" ]; then unset VIA; else export VIA=${VIA:-"'$here/via-gateway' {url}"}; fi
dirs=()
for v in "$@"; do
  rm -rf "${out:?}/$v"
  for s in $(node "$suite" list --client --spec-version "$v" | sed -n 's/^  - \([^ ]*\).*/\1/p' | grep -v '^auth/' | grep -E "${ONLY:-.}"); do
    log=$(LOG=$out/$v-$s.gateway.log timeout 120 node "$suite" client --command "node $CONF/conformance-client/client.mjs" --scenario "$s" --spec-version "$v" -o "$out/$v" 2>&1)
    echo "$v $s: $(grep -E '^Passed:' <<<"$log" || tail -n 3 <<<"$log" | cut -c1-300)"
  done
  dirs+=("$out/$v")
done
python3 "$here/tools/tally.py" ${ALLOW_WARNINGS:+--allow-warnings} "${dirs[@]}"
