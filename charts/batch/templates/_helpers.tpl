{{/* What the names of a release's objects begin with: as a subchart, the alias tells two of one release apart. */}}
{{- define "batch.fullname" -}}
{{- .Values.fullnameOverride | default (.Chart.IsRoot | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name)) -}}
{{- end -}}

{{/* Selector of a release's objects. An alias would replace the chart's name, by which charts/inference knows them. */}}
{{- define "batch.selector" -}}
app.kubernetes.io/name: batch
app.kubernetes.io/instance: {{ include "batch.fullname" . | quote }}
{{- end -}}

{{/* Selector of a program's pods. (dict "root" $ "service" SERVICE) */}}
{{- define "batch.serviceSelector" -}}
{{ include "batch.selector" .root }}
app.kubernetes.io/component: {{ .service.name | quote }}
{{- end -}}

{{/* `metadata` of an object. (dict "root" $), optionally with "service" SERVICE, "queue" NAME, "name" SUFFIX. */}}
{{- define "batch.metadata" -}}
{{- $suffix := .name | default (.service | default dict).name -}}
name: "{{ include "batch.fullname" .root }}{{ with $suffix }}-{{ . }}{{ end }}"
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "batch.selector" .root | nindent 2 }}
  {{- with .service }}
  app.kubernetes.io/component: {{ .name | quote }}
  {{- end }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version | replace "+" "_" }}
  {{- with .queue }}
  kueue.x-k8s.io/queue-name: {{ . | quote }}
  {{- end }}
{{- end -}}

{{/* What every pod here runs as: nobody, with nothing. */}}
{{- define "batch.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  # By which it reads the token of EKS Pod Identity.
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* Nodes that a program's image is for, and that it may use. */}}
{{- define "batch.placement" -}}
{{- with (.placement | default dict).labels }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (.placement | default dict).tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "batch.containerSecurity" -}}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end -}}
