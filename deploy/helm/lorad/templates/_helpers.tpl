{{- define "lorad.labels" -}}
app.kubernetes.io/name: lorad
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
