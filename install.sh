#!/usr/bin/env bash
# From a bare clone to a load-tested vLLM, on stacks that the real Terraform applied, without an AWS account.
#   ./install.sh                                     sets up, then runs the whole road once on embedded defaults
#   ./install.sh --target eks|ecs --fleet FILE       the same on AWS, or rehearsed where nobody is signed in
#   ./install.sh --destroy --fleet FILE              undoes that
#   ./install.sh --help                              the options
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONDONTWRITEBYTECODE= # the many processes that this starts share the byte code of the first

case " $* " in
  *" --help "* | *" -h "*) ;;
  *)
    echo "▸ What this machine has" >&2
    python=$(scripts/find-python)
    "$python" -P scripts/prerequisites.py "$@" # -P: its neighbours hide no module of the standard library
    ;;
esac
start=$SECONDS
echo "▸ The command line's environment" >&2
scripts/setup
exec .venv/bin/blueprint install --set-up-seconds $((SECONDS - start)) "$@"
