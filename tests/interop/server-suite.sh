#!/usr/bin/env bash
# The official conformance suite, against our everything server through the gateway.
#   server-suite.sh [--ci] [VERSION ...]     236 checks: 84 at 2025-11-25 on /mcp/legacy, 152 at 2026-07-28 on /mcp/modern
#   server-suite.sh --direct [URL]           the same without a gateway (236, see README.md), or against any URL
#   EXTENSIONS=1   also the tasks and skills extensions, at 2026-07-28: 325 in all
#   CROSS=1        each version against the backend of the *other* era; expected-failures.yaml has what can't pass there
#   EXTRA='...'    more arguments for the suite, such as --expected-failures FILE;  ALLOW_WARNINGS=1;  OUT=DIR keeps results
# A warning fails too. All of it takes 10 s, so --ci leaves nothing out. Ends with 'N passed, N failed'.
set -uo pipefail
direct='' target=''
while :; do case ${1:-} in
  --ci) shift ;;
  --direct) direct=1; shift; case ${1:-} in http*) target=$1; shift ;; esac ;;
  *) break ;;
esac; done
[ $# -gt 0 ] || set -- 2025-11-25 2026-07-28
. "$(dirname "$0")/lib.sh"
if [ -n "$target" ]; then
  legacy=$target modern=$target
else
  start legacy node "$CONF/everything-server/server.mjs" --era legacy --quiet; legacy=$url
  start modern node "$CONF/everything-server/server.mjs" --era modern --skills "$([ -n "${EXTENSIONS:-}" ] && echo on || echo off)" --quiet; modern=$url
  if [ -z "$direct" ]; then
    start gateway "$here/via-gateway" legacy="$legacy" modern="$modern"
    legacy=$url modern=${url%/legacy}/modern
  fi
fi
[ -z "${CROSS:-}" ] || { t=$legacy; legacy=$modern; modern=$t; }
dirs=()
judge() { # judge LABEL URL ARGUMENTS...
  local label=$1 at=$2; shift 2
  rm -rf "${out:?}/$label"
  # shellcheck disable=SC2086
  timeout 600 node "$suite" server --url "$at" -o "$out/$label" ${EXTRA:-} "$@" >>"$out/$label.log" 2>&1
}
for v in "$@"; do
  case $v in 2026*) at=$modern ;; *) at=$legacy ;; esac
  : >"$out/$v.log"
  judge "$v" "$at" --suite all --spec-version "$v"
  echo "== $v: $(grep -c '^✓' "$out/$v.log") scenarios pass, $(grep -c '^✗' "$out/$v.log") fail"
  grep '^✗' "$out/$v.log"
  grep -q '^Total' "$out/$v.log" || tail -n 20 "$out/$v.log" | cut -c1-300
  dirs+=("$out/$v")
done
if [ -n "${EXTENSIONS:-}" ]; then
  for s in $(node "$suite" list --server | sed -n 's/^  - \([^ ]*\) \[extension\].*/\1/p'); do
    judge "extension-$s" "$modern" --scenario "$s" || echo "✗ $s"
    dirs+=("$out/extension-$s")
  done
fi
python3 "$here/tools/tally.py" ${CROSS:+--expected "$here/expected-failures.yaml"} ${ALLOW_WARNINGS:+--allow-warnings} "${dirs[@]}"
