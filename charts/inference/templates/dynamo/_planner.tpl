{{/* A planner's pod, as a role: where the frontend's are, with neither its model nor what a user added to it. */}}
{{- define "inference.planner" -}}
{{- $role := deepCopy (get (include "inference.roles" . | fromYaml) (include "inference.front" .)) -}}
{{- $env := dict "PROMETHEUS_ENDPOINT" .Values.monitoring.prometheus -}}
{{- with get $role.env "DYN_LOGGING_JSONL" }}{{ $_ := set $env "DYN_LOGGING_JSONL" . }}{{ end -}}
{{- range $key, $value := dict "env" $env "kind" "planner" "image" .Values.frameworkConfig.plannerImage "port" 9090 "sharedMemory" "64Mi" -}}
{{- $_ := set $role $key $value -}}
{{- end -}}
{{- range $key := list "secretEnv" "fetch" "ports" "mounts" "labels" "annotations" }}{{ $_ := set $role $key dict }}{{ end -}}
{{- range $key := list "nodeCheck" "initContainers" "sidecars" "volumes" "volumeMounts" }}{{ $_ := set $role $key list }}{{ end -}}
{{- /* It is ready once the workers are, for which the startup probe waits. */ -}}
{{- $_ := set $role "probes" (dict
  "startup" (dict "path" "/live" "periodSeconds" 10 "timeoutSeconds" 5 "failureThreshold" 720)
  "readiness" (dict "path" "/health" "periodSeconds" 10 "timeoutSeconds" 5 "failureThreshold" 3)
  "liveness" (dict "path" "/live" "periodSeconds" 10 "timeoutSeconds" 5 "failureThreshold" 6)) -}}
{{- /* It took 0.34 GB here, without AISimulate and what it keeps of it. */ -}}
{{- $_ := set $role "resources" (dict "accelerator" (dict "name" "" "count" 0) "efa" 0 "cpu" "500m" "memory" "2Gi" "hugepages" "") -}}
{{- $_ := set $role "drain" (dict "graceSeconds" 30 "preStopSeconds" 0) -}}
{{- toYaml $role -}}
{{- end -}}
