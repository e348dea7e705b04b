{{/*
A pod of a role, for any controller.
(dict "root" $ "name" NAME "role" ROLE "command" LIST "listens" BOOL), optionally with "operated" true, "container" NAME
`listens`: whether it serves HTTP. All pods do but the workers of a replica with several nodes.
`operated`: an operator adds command and probes.
`container`: how an operator wants it called.
*/}}
{{- define "inference.pod" -}}
metadata:
  labels:
    {{- $own := include "inference.roleSelector" . | fromYaml }}
    {{- $_ := set $own "inference/kind" .role.kind }}
    {{- $_ := set $own "inference/listens" (toString .listens) }}
    {{- if .role.placement.oneZone }}{{ $_ := set $own "inference/one-zone" "true" }}{{ end }}
    {{- $isAibrix := and .root.Values.frameworkConfig.aibrixGateway (eq .role.kind "engine") .listens }}
    {{- if $isAibrix }}{{ $own = merge $own (include "inference.aibrixLabels" . | fromYaml) }}{{ end }}
    {{- merge $own .role.labels .root.Values.labels | toYaml | nindent 4 }}
  annotations:
    inference/probe: {{ .root.Files.Get "files/probe.py" | sha256sum | trunc 16 }}
    {{- if $isAibrix }}
    model.aibrix.ai/name: {{ .root.Values.model.served | quote }}
    {{- end }}
    {{- with merge (dict) .role.annotations .root.Values.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- $isDynamo := ne (include "inference.isDynamo" .root) "" }}
  {{- if or (eq .role.kind "planner") (and (eq .role.kind "router") (not $isDynamo)) }}
  serviceAccountName: {{ include "inference.fullname" .root }}-{{ .role.kind }}
  {{- else }}
  serviceAccountName: {{ include "inference.serviceAccount" .root | quote }}
  {{- end }}
  # Only the router uses the cluster's API, and Dynamo's workers. Pod Identity has its own token.
  automountServiceAccountToken: {{ or $isDynamo (eq .role.kind "router") }}
  # A Service named vllm would set VLLM_PORT, which the engine reads.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int .role.drain.graceSeconds }}
  {{- with .role.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with .role.priorityClass }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . | quote }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- $user := kindIs "invalid" .role.user | ternary .root.Values.security.user .role.user | int }}
    runAsNonRoot: {{ ne $user 0 }}
    runAsUser: {{ $user }}
    runAsGroup: {{ int .root.Values.security.group }}
    fsGroup: {{ int .root.Values.security.group }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with include "inference.placement" . | trim }}{{ nindent 2 . }}{{ end }}
  {{- with include "inference.spread" . | trim }}{{ nindent 2 . }}{{ end }}
  {{- if or .role.nodeCheck .role.fetch .role.initContainers .role.sidecars }}
  initContainers:
    {{- with .role.nodeCheck }}
    - name: check-node
      {{- include "inference.nodeCheck" $ | nindent 6 }}
    {{- end }}
    {{- range $name, $from := .role.fetch }}
    - name: fetch-{{ $name }}
      {{- include "inference.fetch" (dict "root" $.root "role" $.role "name" $name "from" $from) | nindent 6 }}
    {{- end }}
    {{- range .role.initContainers }}
    - {{- include "inference.addedContainer" (dict "root" $.root "container" .) | nindent 6 }}
    {{- end }}
    {{- range .role.sidecars }}
    # Starts before the {{ $.role.kind }} and ends after it.
    - restartPolicy: Always
      {{- include "inference.addedContainer" (dict "root" $.root "container" .) | nindent 6 }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .container | default .role.kind }}
      {{- include "inference.container" . | nindent 6 }}
  volumes:
    - name: scratch
      emptyDir: {sizeLimit: {{ .role.scratch }}}
    - name: tmp
      emptyDir: {sizeLimit: {{ .role.scratch }}}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .role.sharedMemory }}}
    - name: probe
      configMap: {name: {{ include "inference.fullname" .root }}-probe}
    {{- range $name, $mount := .role.mounts }}
    - name: mount-{{ $name }}
      {{- with $mount.claim }}
      persistentVolumeClaim: {claimName: {{ . | quote }}, readOnly: {{ $mount.readOnly | default false }}}
      {{- end }}
      {{- with $mount.hostPath }}
      hostPath: {path: {{ . }}, type: DirectoryOrCreate}
      {{- end }}
      {{- with $mount.configMap }}
      configMap: {name: {{ . | quote }}}
      {{- end }}
      {{- with $mount.secret }}
      secret: {secretName: {{ . | quote }}}
      {{- end }}
    {{- end }}
    {{- with .role.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* A user's container, under the release's own restrictions where it names none. (dict "root" $ "container" CONTAINER) */}}
{{- define "inference.addedContainer" -}}
{{- $security := .root.Values.security -}}
{{- $own := dict "runAsNonRoot" true "runAsUser" (int $security.user) "runAsGroup" (int $security.group) -}}
{{- $own = merge $own (dict "readOnlyRootFilesystem" true "allowPrivilegeEscalation" false "capabilities" (dict "drop" (list "ALL"))) -}}
{{- include "inference.merged" (dict "base" (dict "securityContext" $own) "over" .container) -}}
{{- end -}}

{{/* Copy from S3 to the node's disk before the container starts; a restart copies only what is missing. */}}
{{- define "inference.fetch" -}}
image: {{ .root.Values.copier }}
imagePullPolicy: IfNotPresent
{{- $skipped := list }}
{{- range .role.fetchSkip }}{{ $skipped = append $skipped (printf "--exclude=%s" .) }}{{ end }}
command: {{ concat (list "aws" "s3" "sync" "--only-show-errors") $skipped (list .from (printf "/scratch/fetched/%s" .name)) | toJson }}
env:
  # The AWS CLI's three would not outlast S3's 503 while many pods start.
  - {name: AWS_MAX_ATTEMPTS, value: "10"}
  {{- include "inference.environment" . | trim | nindent 2 }}
# Why it fails is then in the pod's status.
terminationMessagePolicy: FallbackToLogsOnError
resources:
  requests: {cpu: "1", memory: 1Gi, ephemeral-storage: {{ .role.scratch }}}
  limits: {memory: 1Gi}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: scratch, mountPath: /scratch}
  - {name: tmp, mountPath: /tmp}
{{- end -}}

{{/* Where the check of a node with EFA finds the others that are being checked. */}}
{{- define "inference.nodePeers" -}}
{{ (gt (int .role.resources.efa) 0) | ternary (list "--peers" (printf "%s-nodes" (include "inference.fullname" .root))) list | toJson }}
{{- end -}}

{{/* Refuse a node that lacks what the role asked for, with the engine's own image, devices and rights. */}}
{{- define "inference.nodeCheck" -}}
image: {{ .role.image }}
imagePullPolicy: IfNotPresent
command: {{ concat (list "python3" "/etc/inference/node.py") .role.nodeCheck (include "inference.nodePeers" . | fromJsonArray) | toJson }}
env:
  {{- include "inference.environment" . | trim | nindent 2 }}
# What it lacks is then in the pod's status.
terminationMessagePolicy: FallbackToLogsOnError
resources:
  {{- include "inference.resources" .role | nindent 2 }}
securityContext:
  {{- include "inference.rights" .role | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: probe, mountPath: /etc/inference, readOnly: true}
{{- end -}}

{{/* The rights of an engine's container. */}}
{{- define "inference.rights" -}}
readOnlyRootFilesystem: true
{{- if .privileged }}
privileged: true
{{- else }}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- if or (int .resources.efa) (hasPrefix "aws.amazon.com/neuron" .resources.accelerator.name) }}
  # EFA interfaces and Neuron devices need pinned memory.
  add: [IPC_LOCK]
  {{- end }}
{{- end }}
{{- end -}}

{{- define "inference.container" -}}
image: {{ .role.image }}
imagePullPolicy: IfNotPresent
{{- if hasPrefix "aws.amazon.com/neuron" .role.resources.accelerator.name }}
# The compiler leaves files where it is started. The image's own folder can be written to only where it is a volume.
workingDir: /tmp
{{- end }}
{{- with .command }}
command:
  {{- range . }}
  - {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .arguments }}
args:
  {{- range . }}
  - {{ . | quote }}
  {{- end }}
{{- end }}
env:
  {{- include "inference.environment" . | trim | nindent 2 }}
{{- if .listens }}
ports:
  - {name: {{ include "inference.portName" . }}, containerPort: {{ int .role.port }}}
  {{- range $name, $port := .role.ports }}
  - {name: {{ $name | quote }}, containerPort: {{ int $port }}}
  {{- end }}
{{- range $probe := ternary list (list "startup" "readiness" "liveness") (hasKey . "operated") }}
{{ $probe }}Probe:
  {{- include "inference.probe" (merge (dict "probe" (get $.role.probes $probe)) $) | nindent 2 }}
{{- end }}
{{- end }}
{{- if not .listens }}
# A replica's further nodes compute for the first, and end at once when asked to: they wait for its requests.
lifecycle:
  preStop:
    exec:
      command:
        - sh
        - -c
        - exec python3 /etc/inference/group.py drain --leader "$LWS_LEADER_ADDRESS" --requests {{ int .role.port }} --drain {{ max 1 (sub (int .role.drain.graceSeconds) 10) }}
{{- else if int .role.drain.preStopSeconds }}
lifecycle:
  preStop:
    sleep: {seconds: {{ int .role.drain.preStopSeconds }}}
{{- end }}
resources:
  {{- include "inference.resources" .role | nindent 2 }}
securityContext:
  {{- include "inference.rights" .role | nindent 2 }}
volumeMounts:
  - {name: scratch, mountPath: /scratch}
  - {name: tmp, mountPath: /tmp}
  - {name: shm, mountPath: /dev/shm}
  - {name: probe, mountPath: /etc/inference, readOnly: true}
  {{- range $name, $mount := .role.mounts }}
  - {name: mount-{{ $name }}, mountPath: {{ $mount.path }}, readOnly: {{ $mount.readOnly | default false }}{{ with $mount.subPath }}, subPath: {{ . | quote }}{{ end }}}
  {{- end }}
  {{- with .role.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/*
The pod's own variables come first, so that others can refer to them. A role's own value replaces the chart's: the API
server warns of duplicate names, and drops one of them on apply.
*/}}
{{- define "inference.environment" -}}
{{- range $name, $field := dict "NAMESPACE" "metadata.namespace" "POD_NAME" "metadata.name" "POD_IP" "status.podIP" "NODE_NAME" "spec.nodeName" }}
{{- if not (or (hasKey $.role.env $name) (hasKey $.role.secretEnv $name)) }}
- name: {{ $name | quote }}
  valueFrom: {fieldRef: {fieldPath: {{ $field }}}}
{{- end }}
{{- end }}
{{- $model := .root.Values.model }}
{{- $own := dict "RELEASE" (include "inference.fullname" .root) "SERVED_MODEL" $model.served "WEIGHTS" $model.weights }}
{{- /* PyTorch looks up the user's name, which the image may not have. */}}
{{- $own = merge $own (dict "DO_NOT_TRACK" "1" "HOME" "/scratch" "TMPDIR" "/tmp" "USER" "inference") }}
{{- range $name, $value := $own }}
{{- if not (or (hasKey $.role.env $name) (hasKey $.role.secretEnv $name)) }}
- name: {{ $name | quote }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := .role.env }}
- name: {{ $name | quote }}
  value: {{ $value | quote }}
{{- end }}
{{- range $name, $from := .role.secretEnv }}
- name: {{ $name | quote }}
  valueFrom: {secretKeyRef: {name: {{ $from.secret }}, key: {{ $from.key }}}}
{{- end }}
{{- end -}}

{{/* One probe: `probe`, and the arguments of "inference.container". */}}
{{- define "inference.probe" -}}
{{- if .probe.body -}}
{{- $body := merge (dict) .probe.body (dict "model" .root.Values.model.served) -}}
exec:
  command:
    - python3
    - /etc/inference/probe.py
    - http://127.0.0.1:{{ int .role.port }}{{ .probe.path }}
    - {{ $body | toJson | quote }}
    - {{ .probe.timeoutSeconds | int | quote }}
{{- else -}}
httpGet: {path: {{ .probe.path }}, port: {{ include "inference.portName" . }}}
{{- end }}
periodSeconds: {{ int .probe.periodSeconds }}
timeoutSeconds: {{ int .probe.timeoutSeconds }}
failureThreshold: {{ int .probe.failureThreshold }}
{{- end -}}

{{- define "inference.resources" -}}
{{- $resources := .resources -}}
{{- $both := dict "memory" $resources.memory -}}
{{- with $resources.accelerator -}}
{{- if int .count -}}{{- $_ := set $both .name (int .count | toString) -}}{{- end -}}
{{- end -}}
{{- with int $resources.efa -}}{{- $_ := set $both "vpc.amazonaws.com/efa" (toString .) -}}{{- end -}}
{{- with $resources.hugepages -}}{{- $_ := set $both "hugepages-2Mi" . -}}{{- end -}}
requests:
  cpu: {{ $resources.cpu | quote }}
  ephemeral-storage: {{ .scratch }}
  {{- toYaml $both | nindent 2 }}
limits:
  {{- toYaml $both | nindent 2 }}
{{- end -}}

{{/* Node selection, and affinity between pods. */}}
{{- define "inference.placement" -}}
{{- $placement := .role.placement -}}
{{- $accelerator := .role.resources.accelerator -}}
{{- with $placement.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or (int $accelerator.count) $placement.tolerations }}
tolerations:
  {{- if int $accelerator.count }}
  # Nodes with Neuron devices are tainted by their name, whether pods ask for devices or cores.
  - {key: {{ trimSuffix "core" $accelerator.name }}, operator: Exists, effect: NoSchedule}
  {{- end }}
  {{- with $placement.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- $close := include "inference.closeness" . -}}
{{- if or $placement.instanceTypes $placement.zones $close }}
affinity:
  {{- if or $placement.instanceTypes $placement.zones }}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            {{- with $placement.instanceTypes }}
            - {key: node.kubernetes.io/instance-type, operator: In, values: {{ toJson . }}}
            {{- end }}
            {{- with $placement.zones }}
            - {key: topology.kubernetes.io/zone, operator: In, values: {{ toJson . }}}
            {{- end }}
  {{- end }}
  {{- with $close }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "inference.spread" -}}
{{- if not (include "inference.closeness" .) }}
# Spread replicas over zones, and routers over nodes, which one interruption takes. Engines may share a node: for replicas
# apart Karpenter would start one for each, and leave most of its accelerators idle.
topologySpreadConstraints:
  {{- $places := list "topology.kubernetes.io/zone" }}
  {{- if ne .role.kind "engine" }}{{ $places = append $places "kubernetes.io/hostname" }}{{ end }}
  {{- range $key := $places }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "inference.roleSelector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* One zone, and preferably one network layer, for the pods of a replica or of all roles with oneZone. */}}
{{- define "inference.closeness" -}}
{{- if or .role.placement.oneZone (gt (int .role.nodes) 1) -}}
podAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: topology.kubernetes.io/zone
      {{- include "inference.closeTo" . | nindent 6 }}
  {{- with .role.placement.networkLayer }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: {{ . }}
        {{- include "inference.closeTo" $ | nindent 8 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "inference.closeTo" -}}
labelSelector:
  matchLabels:
    {{- if .role.placement.oneZone }}
    {{- include "inference.selector" .root | nindent 4 }}
    inference/one-zone: "true"
    {{- else }}
    {{- include "inference.roleSelector" . | nindent 4 }}
    {{- end }}
{{- if not .role.placement.oneZone }}
# The pods of the same group: LeaderWorkerSet sets one key.
matchLabelKeys: [leaderworkerset.sigs.k8s.io/group-key]
{{- end }}
{{- end -}}
