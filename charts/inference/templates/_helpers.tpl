{{/* Names, labels, and the roles with their defaults. */}}

{{/* `base` overridden by `over`, mappings key by key. Helm's own merge functions drop 0, false and "". */}}
{{- define "inference.merged" -}}
{{- $merged := deepCopy .base -}}
{{- range $key, $value := .over -}}
{{- $under := get $merged $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $under) (ne $key "body") -}}
{{- $value = include "inference.merged" (dict "base" $under "over" $value) | fromYaml -}}
{{- end -}}
{{- $_ := set $merged $key $value -}}
{{- end -}}
{{- toYaml $merged -}}
{{- end -}}

{{/* All roles by name, with defaults. */}}
{{- define "inference.roles" -}}
{{- $roles := dict -}}
{{- range $name, $role := .Values.roles -}}
{{- $base := get $.Values.defaults $role.kind -}}
{{- $merged := include "inference.merged" (dict "base" $base "over" $role) | fromYaml -}}
{{- /* Dynamo's frontend has its metrics where its API is. */ -}}
{{- if ne (include "inference.isDynamo" $) "" }}{{ $_ := unset $merged.ports "metrics" }}{{ end -}}
{{- if eq $role.kind "engine" -}}
{{- $_ := set $merged "image" ($merged.image | default $.Values.image) -}}
{{- else if ne (include "inference.isRay" $) "" -}}
{{- /* Ray's images whose tag names no architecture are of this one, and its head may run on any node. */ -}}
{{- $_ := set $merged.placement "nodeSelector" (merge (dict) $merged.placement.nodeSelector (dict "kubernetes.io/arch" "amd64")) -}}
{{- else if $.Values.frameworkConfig.endpointPicker -}}
{{- $_ := set $merged "sidecars" (concat $merged.sidecars (include "inference.pickerSidecars" $ | fromYamlArray)) -}}
{{- else if $.Values.frameworkConfig.aibrixGateway -}}
{{- $_ := set $merged "sidecars" (concat $merged.sidecars (include "inference.aibrixSidecar" $ | fromYamlArray)) -}}
{{- end -}}
{{- $_ := set $roles $name $merged -}}
{{- end -}}
{{- toYaml $roles -}}
{{- end -}}

{{/* The role that clients call: the router, or the only engine role. */}}
{{- define "inference.front" -}}
{{- $routers := list -}}
{{- range $name, $role := .Values.roles -}}
{{- if eq $role.kind "router" -}}{{- $routers = append $routers $name -}}{{- end -}}
{{- end -}}
{{- first (concat $routers (keys .Values.roles)) -}}
{{- end -}}

{{/* What the names of a release's objects begin with: as a subchart, the alias tells two of one release apart. */}}
{{- define "inference.fullname" -}}
{{- .Values.fullnameOverride | default (.Chart.IsRoot | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name)) -}}
{{- end -}}

{{/* Selector of a release's objects. An alias would replace the chart's name. */}}
{{- define "inference.selector" -}}
app.kubernetes.io/name: inference
app.kubernetes.io/instance: {{ include "inference.fullname" . | quote }}
{{- end -}}

{{/* Selector of a role's pods. (dict "root" $ "name" NAME) */}}
{{- define "inference.roleSelector" -}}
{{ include "inference.selector" .root }}
app.kubernetes.io/component: {{ .name | quote }}
{{- end -}}

{{/*
`metadata` of an object. (dict "root" $), optionally with "role" NAME, "name", "labels", "annotations".
The default name is FULLNAME-ROLE.
*/}}
{{- define "inference.metadata" -}}
name: {{ .name | default (printf "%s-%s" (include "inference.fullname" .root) .role) | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- $own := include "inference.selector" .root | fromYaml }}
  {{- with .role }}{{ $_ := set $own "app.kubernetes.io/component" . }}{{ end }}
  {{- $_ := set $own "app.kubernetes.io/version" .root.Chart.AppVersion }}
  {{- $_ := set $own "app.kubernetes.io/managed-by" .root.Release.Service }}
  {{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") }}
  {{- merge $own (.labels | default dict) .root.Values.labels | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Name of the port of a role's API, by which an operator finds it too. (dict "root" $ "role" ROLE) */}}
{{- define "inference.portName" -}}
{{- $isWorker := ne .role.kind "router" -}}
{{- if ne (include "inference.isRay" .root) "" -}}serve
{{- else if and (ne (include "inference.isDynamo" .root) "") $isWorker -}}system
{{- else -}}http
{{- end -}}
{{- end -}}

{{- define "inference.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "inference.fullname" .) -}}
{{- end -}}

{{/* A rule of egress to port 443 of ranges; none for no range, for a rule that names no peer lets out to all. */}}
{{- define "inference.egressTo443" -}}
{{- if . }}
- to:
    {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports:
    - {protocol: TCP, port: 443}
{{- end }}
{{- end -}}

{{/* Prometheus labels of a role's pods. (dict "root" $ "name" NAME) */}}
{{- define "inference.metricLabels" -}}
namespace="{{ .root.Release.Namespace }}",
{{- /* */ -}}
app_kubernetes_io_instance="{{ include "inference.fullname" .root }}",
{{- /* */ -}}
app_kubernetes_io_component="{{ .name }}"
{{- end -}}

{{/* A number, or a percentage such as "50%". */}}
{{- define "inference.share" -}}
{{- if kindIs "string" . -}}{{ . | quote }}{{- else -}}{{ int . }}{{- end -}}
{{- end -}}
