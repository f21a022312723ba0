#!/usr/bin/env bash
# How large the gateway is: the program, and all files that it needs to run in a root of its own.
#   size.sh [BINARY]         default: $DRAWBRIDGE, else target/release/drawbridge
#   size.sh --try [BINARY]   also makes that root, mounts it read-only and runs the gateway in it as user 65532 (as root)
# The image made by deploy/Dockerfile has these files and the rest of its base (distroless/cc).
set -euo pipefail
cd "$(dirname "$0")/.."
try=''
if [ "${1:-}" = --try ]; then try=1; shift; fi
binary=$(realpath "${1:-${DRAWBRIDGE:-target/release/drawbridge}}")
authorities=/etc/ssl/certs/ca-certificates.crt

# The dynamic linker and the libraries, as ldd finds them; the first line (vdso) is no file.
mapfile -t libraries < <(ldd "$binary" | grep -o '/[^ ]*' | sort -u)
kib() { stat -Lc %s "$1" | awk '{ printf "%8.0f KiB", $1 / 1024 }'; }
total=0
list() { echo "$(kib "$1")  $2"; total=$((total + $(stat -Lc %s "$1"))); }
list "$binary" "drawbridge"
for library in "${libraries[@]}"; do list "$library" "$library"; done
[ ! -f $authorities ] || list $authorities $authorities
awk -v n="$total" 'BEGIN { printf "%8.0f KiB  in all (%.1f MB)\n", n / 1024, n / 1e6 }'

[ -n "$try" ] || exit 0
root=$(mktemp -d); chmod 755 "$root"
trap 'rm -rf "$root"' EXIT
install -D "$binary" "$root/usr/local/bin/drawbridge"
for library in "${libraries[@]}"; do install -D "$library" "$root$library"; done
[ ! -f $authorities ] || install -D -m 644 $authorities "$root$authorities"
mkdir -p "$root"/{proc,tmp,etc/drawbridge,var/lib/drawbridge}
cat >"$root/etc/drawbridge/drawbridge.yaml" <<'Y'
public: { listen: "127.0.0.1:0" }
admin: { listen: "127.0.0.1:0", probes: "127.0.0.1:0" }
data_dir: /var/lib/drawbridge
backends: { self: { command: /usr/local/bin/drawbridge, args: [demo-server, --stdio] } }
Y
# A mount namespace of its own, so nothing is left mounted; "timeout" ends a gateway that wouldn't start.
ROOT=$root unshare --mount --pid --fork --kill-child bash -euo pipefail -c '
  mount --bind "$ROOT" "$ROOT"
  for d in tmp var/lib/drawbridge; do mount -t tmpfs -o mode=1777 none "$ROOT/$d"; done
  mount -t proc none "$ROOT/proc"
  mount -o remount,bind,ro "$ROOT"
  coproc gateway { exec timeout 60 chroot --userspec=65532:65532 "$ROOT" /usr/local/bin/drawbridge \
    serve --config /etc/drawbridge/drawbridge.yaml 2>&1; }
  while read -r -u "${gateway[0]}" line; do
    case $line in *listening*public=*) url=${line##*public=}; break ;; *rror*) echo "$line" >&2 ;; esac
  done
  answer=$(python3 - "$url/mcp" <<P
import json, sys, urllib.request
client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "size", "version": "1"}}
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}).encode()
headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], body, headers), timeout=30).read().decode())
P
  )
  kill "$gateway_PID"
  grep -q drawbridge-demo <<<"$answer" || { echo "no answer from a server behind the gateway: $answer" >&2; exit 1; }
  touch "$ROOT/x" 2>/dev/null && { echo "the root was not read-only" >&2; exit 1; }
  echo "runs with these files alone, from a read-only root, as user 65532, a stdio server behind it"
'
