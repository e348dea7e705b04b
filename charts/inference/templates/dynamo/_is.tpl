{{/* Not empty where dynamo runs the roles. */}}
{{- define "inference.isDynamo" -}}{{- if eq .Values.framework "dynamo" -}}true{{- end -}}{{- end -}}
