{{/* What several templates say alike. One installation a cluster: every name is fixed, and Helm refuses a second. */}}

{{/* Name of everything that is ours, its service account included. */}}
{{- define "leeboard.name" -}}
leeboard
{{- end }}

{{/* The user that Leeboard is to the API server. */}}
{{- define "leeboard.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "leeboard.name" . }}
{{- end }}

{{- define "leeboard.selectorLabels" -}}
app.kubernetes.io/name: leeboard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Of the pod that `helm test` runs: not one of those that the selector means. */}}
{{- define "leeboard.doctorLabels" -}}
app.kubernetes.io/name: leeboard-doctor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leeboard.labels" -}}
{{ include "leeboard.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What belongs to the kube-scheduler in our pod and not to Leeboard. */}}
{{- define "leeboard.schedulerLabels" -}}
{{ include "leeboard.labels" . }}
app.kubernetes.io/component: kube-scheduler
{{- end }}

{{/* Scheduler names whose pods are managed, as a JSON list: also a list of CEL. */}}
{{- define "leeboard.profiles" -}}
{{ list .Values.schedulerName | toJson }}
{{- end }}

{{/* Namespaces whose pods are never ours, as a JSON list. */}}
{{- define "leeboard.systemNamespaces" -}}
{{ list "kube-system" "kube-public" "kube-node-lease" .Release.Namespace | uniq | toJson }}
{{- end }}

{{/* Selects the namespaces whose pods may be ours. */}}
{{- define "leeboard.namespaceSelector" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{ include "leeboard.systemNamespaces" . }}
{{- end }}

{{/* "true" when anything is asked at admission, else empty. */}}
{{- define "leeboard.admission" -}}
{{- if and .Values.admission.enabled (ne .Values.form "extender-only") }}true{{ end }}
{{- end }}

{{/* "true" when the API server itself changes pods (MutatingAdmissionPolicy v1), else empty. YAML reads on as true. */}}
{{- define "leeboard.policies" -}}
{{- $wanted := toString .Values.admission.policies }}
{{- $served := semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version }}
{{- if and (include "leeboard.admission" .) (or (has $wanted (list "on" "true")) (and (eq $wanted "auto") $served)) }}true{{ end }}
{{- end }}

{{/* "true" when the cluster's own kube-scheduler reaches us at a fixed address and not on loopback, else empty. */}}
{{- define "leeboard.fixedAddress" -}}
{{- if and (eq .Values.form "beside") .Values.beside.address }}true{{ end }}
{{- end }}

{{/* "true" when Leeboard makes its own certificates, else empty. */}}
{{- define "leeboard.ownCertificates" -}}
{{- if and (include "leeboard.admission" .) (not .Values.certificate.secretName) }}true{{ end }}
{{- end }}

{{/* Our service account, as the subject of a binding. */}}
{{- define "leeboard.subjects" -}}
- kind: ServiceAccount
  name: {{ include "leeboard.name" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
