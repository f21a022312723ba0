#!/usr/bin/env bash
# The official suite's scenarios for authorization servers, against the gateway: its metadata, and a code for a token.
#   authorization-suite.sh        OUT=DIR keeps the results;  LOG=FILE the gateway's output;  ALLOW_WARNINGS=1
# The suite's client registers before; tools/browser.py signs in and consents for it. Ends with 'N passed, N failed'.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
start backend node "$CONF/everything-server/server.mjs" --quiet; backend=$url
start gateway python3 "$here/tools/protected-gateway.py" everything="$backend"
resource=$url issuer=${url%/mcp}
token=$(sed -n 's/.*"token": *"\([^"]*\)".*/\1/p' "$tmp/gateway.out")
client=$(curl -sS -H 'content-type: application/json' -d '{"client_name":"The suite","redirect_uris":["http://127.0.0.1/callback"],"token_endpoint_auth_method":"none"}' "$issuer/register" |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["client_id"])') || exit 1
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
rm -rf "${out:?}/authorization"; : >"$out/authorization.log"          # of an earlier run
timeout 120 node "$suite" authorization --url "$issuer" --client-id "$client" --resource "$resource" -p "$port" -o "$out/authorization" >"$out/authorization.log" 2>&1 &
pid=$! link=''
for _ in $(seq 200); do
  link=$(grep -oE '^https?://[^ ]*response_type=code[^ ]*' "$out/authorization.log" | head -n 1)
  [ -z "$link" ] || break
  kill -0 $pid 2>/dev/null || break
  sleep .1
done
[ -z "$link" ] || python3 "$here/tools/browser.py" --token "$token" "$link" >/dev/null
wait $pid; code=$?
sed -n '/=== SUMMARY/,$p' "$out/authorization.log" | sed -n '2,$p'
[ -n "$link" ] || { echo "the suite has not asked for a login:"; tail -n 20 "$out/authorization.log" | cut -c1-300; exit 1; }
python3 "$here/tools/tally.py" ${ALLOW_WARNINGS:+--allow-warnings} "$out/authorization" && [ $code = 0 ]
