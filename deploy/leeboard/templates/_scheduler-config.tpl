{{/* The KubeSchedulerConfiguration of the form, word for word as in scheduler-config/. */}}
{{- define "leeboard.schedulerConfig" -}}
{{- $name := ternary "beside" "own-scheduler" (eq .Values.form "beside") }}
{{- tpl (.Files.Get (printf "files/scheduler-config/%s.yaml" $name)) . }}
{{- end }}

{{- define "leeboard.besideUrl" -}}
{{- if include "leeboard.fixedAddress" . -}}
https://{{ if contains ":" .Values.beside.address }}[{{ .Values.beside.address }}]{{ else }}{{ .Values.beside.address }}{{ end }}:{{ .Values.ports.extender }}
{{- else -}}
http://127.0.0.1:{{ .Values.ports.extender }}
{{- end }}
{{- end }}

{{/* Both sides of a fixed address prove who they are. */}}
{{- define "leeboard.besideTls" -}}
{{- if include "leeboard.fixedAddress" . -}}
enableHTTPS: true
tlsConfig:
  caFile: {{ .Values.beside.tlsFolder }}/ca.crt
  certFile: {{ .Values.beside.tlsFolder }}/tls.crt
  keyFile: {{ .Values.beside.tlsFolder }}/tls.key
{{- end }}
{{- end }}
