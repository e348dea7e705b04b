#!/usr/bin/env bash
# From a bare clone to a load-tested vLLM, on stacks applied by the real Terraform, without an AWS account.
#   ./install.sh                                     sets up, then runs the whole workflow on an embedded AWS
#   ./install.sh --target eks|ecs --fleet FILE       the same on AWS; a rehearsal without credentials
#   ./install.sh --destroy --fleet FILE              destroys what that created
#   ./install.sh --help                              the options
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")"
export PYTHONDONTWRITEBYTECODE= # the many processes that this starts share the byte code of the first

case " $* " in
  *" --help "* | *" -h "*) ;;
  *)
    echo "▸ Prerequisites" >&2
    python=$(scripts/find-python)
    "$python" -P scripts/prerequisites.py "$@" # -P: its neighbours hide no module of the standard library
    ;;
esac
if [[ $caller != "$PWD" ]]; then # what is named and is there is the caller's
  words=()
  for word in "$@"; do
    case "${words[*]: -1} $word" in
      "--fleet "[!/]* | "--blueprint "[!/]*) file=$word ;;
      *" --fleet="[!/]* | *" --blueprint="[!/]*) file=${word#*=} ;;
      *) file= ;;
    esac
    [[ -z $file || ! -e $caller/$file ]] || word=${word%"$file"}$caller/$file
    words+=("$word")
  done
  set -- "${words[@]}"
fi
start=$SECONDS
echo "▸ Set up the command line" >&2
scripts/setup
exec .venv/bin/blueprint install --set-up-seconds $((SECONDS - start)) "$@"
