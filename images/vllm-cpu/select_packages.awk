# Of the local engine's lock, the packages that serve on CPU: without the router, the supervisor, what reads files of
# prompts for `vllm bench`, LMCache and what it alone needs, and without Intel's on other processors. machine is what
# `uname -m` says.
/^[^ ]/ { skip = $1 ~ /^(pandas|pytz|supervisor|vllm-router|lmcache|aiofiles?|async-timeout|awscrt|caio|nvtx|opentelemetry-exporter-prometheus|redis|sortedcontainers)==/ || (machine != "x86_64" && $1 ~ /^intel-/) }
!skip
