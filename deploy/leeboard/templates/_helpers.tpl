{{/* What several templates say alike. One installation a cluster: Helm refuses a second, whose cluster-wide names clash. */}}

{{/* Name of everything that is ours, or its beginning; policies and what stays after the release have fixed names. */}}
{{- define "leeboard.name" -}}
{{ .Values.fullnameOverride | default (include "leeboard.shortName" .) }}
{{- end }}

{{/* The label app.kubernetes.io/name of Leeboard itself. */}}
{{- define "leeboard.shortName" -}}
{{ .Values.nameOverride | default "leeboard" }}
{{- end }}

{{- define "leeboard.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{- define "leeboard.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (include "leeboard.name" .) }}
{{- end }}

{{- define "leeboard.agentServiceAccountName" -}}
{{ .Values.agent.serviceAccount.name | default (printf "%s-agent" (include "leeboard.name" .)) }}
{{- end }}

{{/* The user that Leeboard is to the API server. */}}
{{- define "leeboard.user" -}}
system:serviceaccount:{{ include "leeboard.namespace" . }}:{{ include "leeboard.serviceAccountName" . }}
{{- end }}

{{- define "leeboard.selectorLabels" -}}
app.kubernetes.io/name: {{ include "leeboard.shortName" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Of the pod that `helm test` runs: not one of those that the selector means. */}}
{{- define "leeboard.doctorLabels" -}}
app.kubernetes.io/name: {{ include "leeboard.shortName" . }}-doctor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Of the agents' pods alone: not one of those that the selector means. */}}
{{- define "leeboard.agentLabels" -}}
app.kubernetes.io/name: {{ include "leeboard.shortName" . }}-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels that no value may replace. */}}
{{- define "leeboard.ownLabels" -}}
{{ include "leeboard.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/*
Labels and annotations of an object. Given: the context, and for parts of the installation the component; further labels
and annotations.
*/}}
{{- define "leeboard.marked" -}}
{{- $labels := include "leeboard.ownLabels" .root | fromYaml -}}
{{- with .component }}{{ $_ := set $labels "app.kubernetes.io/component" . }}{{ end -}}
labels: {{- merge $labels (.labels | default dict) .root.Values.commonLabels | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Scheduler names whose pods are managed, as a JSON list: also a list of CEL. */}}
{{- define "leeboard.profiles" -}}
{{ list .Values.schedulerName | toJson }}
{{- end }}

{{/* Namespaces whose pods are never ours to hold, as a JSON list; who may create any among the reservations, a policy says. */}}
{{- define "leeboard.systemNamespaces" -}}
{{- $reservations := ternary (list (include "leeboard.reservationNamespace" .)) list (eq (include "leeboard.gpuSharing" .) "true") }}
{{- concat (list "kube-system" "kube-public" "kube-node-lease" (include "leeboard.namespace" .)) $reservations | uniq | toJson }}
{{- end }}

{{/* "true" when parts of GPUs are given out, else empty: without admission no container would learn of its GPU. */}}
{{- define "leeboard.gpuSharing" -}}
{{- if and .Values.gpuSharing.enabled (include "leeboard.admission" .) }}true{{ end }}
{{- end }}

{{/* How a cluster autoscaler is asked for nodes; empty when none is. */}}
{{- define "leeboard.autoscaling" -}}
{{- $way := toString .Values.autoscaling.way }}
{{- if not (has $way (list "off" "false")) }}{{ $way }}{{ end }}
{{- end }}

{{/* Where pods are that stand for held ones; KAI's name. */}}
{{- define "leeboard.scalingNamespace" -}}
kai-scale-adjust
{{- end }}

{{/* Where pods hold GPUs that others share; KAI's name, so that its tools find them. */}}
{{- define "leeboard.reservationNamespace" -}}
kai-resource-reservation
{{- end }}

{{- define "leeboard.reservationClass" -}}
leeboard-reservation
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

{{/* Extended resources that mark pods for kube-scheduler, as a JSON list: also a list of CEL. Empty without admission. */}}
{{- define "leeboard.markers" -}}
{{- $ask := ternary (list "leeboard.dev/ask") list (eq .Values.form "beside") }}
{{- if include "leeboard.admission" . }}{{ append $ask "leeboard.dev/bind" | toJson }}{{ end }}
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

{{/* "true" when the API server calls Leeboard, over TLS, else empty. */}}
{{- define "leeboard.apiServerCalls" -}}
{{- if or (include "leeboard.admission" .) .Values.aggregatedApi.enabled }}true{{ end }}
{{- end }}

{{/* "true" when Leeboard makes its own certificates, else empty. */}}
{{- define "leeboard.ownCertificates" -}}
{{- if and (include "leeboard.apiServerCalls" .) (not .Values.certificate.secretName) }}true{{ end }}
{{- end }}

{{/* Our service account, as the subject of a binding. */}}
{{- define "leeboard.subjects" -}}
- kind: ServiceAccount
  name: {{ include "leeboard.serviceAccountName" . }}
  namespace: {{ include "leeboard.namespace" . }}
{{- end }}
