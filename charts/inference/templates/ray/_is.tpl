{{/* Not empty where ray runs the roles. */}}
{{- define "inference.isRay" -}}{{- if eq .Values.framework "ray" -}}true{{- end -}}{{- end -}}
