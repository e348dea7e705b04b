# Of the local engine's lock, the packages that serve on CPU: without the router, the supervisor and what reads files of
# prompts for `vllm bench`, and without Intel's on other processors. machine is what `uname -m` says.
/^[^ ]/ { skip = $1 ~ /^(pandas|pytz|supervisor|vllm-router)==/ || (machine != "x86_64" && $1 ~ /^intel-/) }
!skip
