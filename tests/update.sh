#!/usr/bin/env bash
# An update of which some instances are done and others not yet: the version before beside this one, with one Redis. Every
# other instance of each fleet runs the version before; all that any instance has to serve is asked of both.
#   update.sh            the version before is the last tag before this commit, which is built first; without a tag there is none
#   update.sh PROGRAM    it is this program
# `cargo build --workspace --all-targets` goes before it.
set -euo pipefail
cd "$(dirname "$0")/.."
before=${1:-}
if [ -z "$before" ]; then
  if ! tag=$(git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null); then
    echo "there is no version before this one: 0 passed"; exit 0
  fi
  tree=$(mktemp -d); trap 'git worktree remove --force "$tree"' EXIT
  git worktree add --quiet --detach "$tree" "$tag"
  target=$(cargo metadata --locked --no-deps --format-version 1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')/before
  (cd "$tree" && CARGO_TARGET_DIR=$target cargo build --locked -p drawbridge-app)
  before=$target/debug/drawbridge
fi
"$before" --version
export DRAWBRIDGE_BEFORE=$(realpath "$before")
if cargo nextest --version >/dev/null 2>&1; then
  cargo nextest run --locked -p drawbridge-tests -E 'test(fleet::anywhere::)'
else
  cargo test --locked -p drawbridge-tests fleet::anywhere::
fi
