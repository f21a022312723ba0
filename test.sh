#!/usr/bin/env bash
# All tests of the project, in the order of what fails soonest. Works from a clean clone on Debian with the Rust toolchain,
# python3 and a network; what else the tests need is installed when it is missing (apt, as root).
#   test.sh              everything; after a clone most of the time is building
#   test.sh --rust       formatting, lints, build, Rust tests, documentation
#   test.sh --interop    build, then the gateway against real clients, real servers and the official conformance suite
# Everything is built with the dev profile. All steps run even if one fails; the exit code says whether all are well.
set -uo pipefail
cd "$(dirname "$0")" || exit 1

rust=1 interop=1
case ${1:-} in
  '') ;;
  --rust) interop='' ;;
  --interop) rust='' ;;
  -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "unknown argument: $1 (there are --rust and --interop)" >&2; exit 2 ;;
esac
[ $# -le 1 ] || { echo "one argument at most" >&2; exit 2; }

# In CI: no colours, no progress bars, and snapshots are compared but never written.
if [ -n "${CI:-}" ]; then
  export CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never INSTA_UPDATE=no
fi

apt_install() { # apt_install PACKAGE...
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "please install: $*" >&2; return 1; }
  apt-get -qq -o DPkg::Lock::Timeout=120 update >/dev/null &&
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install -y "$@" >/dev/null
}
installed() { # installed PACKAGE   is the program there that a server's package is for?
  local program=$1
  # Debian keeps the programs of PostgreSQL, of which there may be several versions, outside of the path.
  [ "$1" != postgresql ] || program=$(ls -d /usr/lib/postgresql/*/bin/initdb 2>/dev/null | tail -n 1)
  PATH=$PATH:/usr/sbin command -v "${program:-initdb}" >/dev/null
}
servers() { # servers NAME...   the programs alone: their packages would start services and leave them running
  local policy=/usr/sbin/policy-rc.d made='' code=0 name missing=()
  for name; do installed "$name" || missing+=("$name"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ] && [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1
  fi
  apt_install "${missing[@]}" || code=$?
  [ -z "$made" ] || rm -f "$policy"
  return "$code"
}
tools() { # what the build and the tests call by name; tests/interop/install.sh sees to node, npm and Python packages
  command -v cargo >/dev/null || { echo "the Rust toolchain is missing (cargo)" >&2; return 1; }
  command -v python3 >/dev/null || apt_install python3 || return 1
  command -v cc >/dev/null || apt_install gcc libc6-dev || return 1
  command -v git >/dev/null || apt_install git || return 1
  if [ -n "$rust" ]; then
    cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt || return 1
    cargo clippy --version >/dev/null 2>&1 || rustup component add clippy || return 1
  fi
  servers redis-server haproxy postgresql || return 1
}

names=() results=() failed=0
step() { # step NAME COMMAND...   runs it, notes how it went and how long it took
  local name=$1 begun=$SECONDS code=0; shift
  printf '\n=== %s\n' "$name"
  "$@" || code=$?
  names+=("$name")
  if [ "$code" = 0 ]; then
    results+=("ok, $((SECONDS - begun)) s")
  else
    results+=("FAILED with code $code, $((SECONDS - begun)) s"); failed=$((failed + 1))
  fi
  return "$code"
}
summary() {
  local i
  printf '\n=== summary\n'
  for i in "${!names[@]}"; do printf '%-18s %s\n' "${names[$i]}" "${results[$i]}"; done
  if [ "$failed" = 0 ]; then echo "all ${#names[@]} steps passed"; else echo "$failed of ${#names[@]} steps failed"; fi
  [ "$failed" = 0 ]
}

# --all-targets also for the build: tests and program then share every dependency, and the tests find the program built.
build() { cargo build --locked --workspace --all-targets; }
tests() {
  if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked --workspace && cargo test --locked --workspace --doc
  else
    cargo test --locked --workspace
  fi
}
doc() { RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps; }
program() { # where the built program is
  cargo metadata --locked --no-deps --format-version 1 |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"] + "/debug/drawbridge")'
}
benches() { # do those with a Redis work? What they print of this build means nothing.
  local folder part
  folder=$(dirname "$(program)")
  for part in fleet fanout steps auth; do
    "$folder/drawbridge-bench" "$part" --quick --drawbridge "$folder/drawbridge" || return 1
  done
}

step tools tools || { summary; exit 1; }
if [ -n "$rust" ]; then
  step format cargo fmt --all --check
  step lints cargo clippy --locked --workspace --all-targets -- -D warnings
fi
built=1
step build build || built=''
if [ -n "$rust" ]; then
  if [ -n "$built" ]; then step 'Rust tests' tests; step update tests/update.sh; step benches benches; fi
  step documentation doc
fi
if [ -n "$interop" ] && [ -n "$built" ]; then
  DRAWBRIDGE=$(program) || exit 1
  export DRAWBRIDGE
  if step 'interop tools' tests/interop/install.sh; then
    step 'server suite' tests/interop/server-suite.sh --ci
    step 'server suite on three instances' env INSTANCES=3 tests/interop/server-suite.sh --ci
    step 'server suite across eras' env CROSS=1 tests/interop/server-suite.sh --ci
    step 'client suite' tests/interop/client-suite.sh --ci
    step 'suite across eras on three instances' env INSTANCES=3 CROSS=1 tests/interop/server-suite.sh --ci
    step logins tests/interop/logins.sh
    step 'logins that are refreshed' env REFRESH=1 tests/interop/logins.sh
    step 'authorization server suite' tests/interop/authorization-suite.sh
    step 'login through a provider' tests/interop/oidc-login.py
    step 'deployment files' deploy/check.sh --static
    step matrix tests/interop/matrix.py --ci --bridging docs/bridging.md
  fi
fi
summary
