{{/* Labels by which `blueprint status` and `blueprint logs` find what is of the release. */}}
{{- define "streaming.labels" -}}
app.kubernetes.io/name: streaming
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* `metadata` of an object. (dict "root" $), optionally with "name" SUFFIX and further "labels". */}}
{{- define "streaming.metadata" -}}
name: "{{ .root.Release.Name }}{{ with .name }}-{{ . }}{{ end }}"
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "streaming.labels" .root | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Pods of one of Flink's processes. (dict "root" $ "component" NAME) */}}
{{- define "streaming.podTemplate" -}}
metadata:
  labels:
    {{- include "streaming.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    inference/kind: {{ .component }}
{{- end -}}
