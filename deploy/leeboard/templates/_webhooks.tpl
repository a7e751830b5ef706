{{- define "leeboard.webhookMetadata" -}}
name: {{ include "leeboard.name" . }}
{{ include "leeboard.marked" (dict "root" . "annotations" .Values.admission.annotations) }}
{{- end }}

{{/* What all webhooks have alike; called with root, path and failurePolicy. */}}
{{- define "leeboard.webhook" -}}
admissionReviewVersions: [v1]
# A new pod that can run now has its room kept for a moment, unless it is only a try.
sideEffects: NoneOnDryRun
# Where no answer is needed, one is waited for no longer than users notice. Where it is, a slow one beats a refused pod.
timeoutSeconds: {{ ternary 1 3 (eq .failurePolicy "Ignore") }}
failurePolicy: {{ .failurePolicy }}
clientConfig:
  {{- with .root.Values.certificate.caBundle }}
  caBundle: {{ b64enc . }}
  {{- end }}
  service:
    name: {{ include "leeboard.name" .root }}-admission
    namespace: {{ include "leeboard.namespace" .root }}
    path: {{ .path }}
    port: 443
{{- end }}

{{/* Pods that name their node are not scheduled. */}}
{{- define "leeboard.managedPods" -}}
- name: names-our-scheduler
  expression: object.spec.schedulerName in {{ include "leeboard.profiles" . }}
- name: names-no-node
  expression: "!has(object.spec.nodeName) || object.spec.nodeName == ''"
{{- end }}

{{- define "leeboard.optedInPods" -}}
- name: names-a-queue
  expression: has(object.metadata.labels) && ['kai.scheduler/queue', 'runai/queue'].exists(key, key in object.metadata.labels)
- name: names-no-scheduler
  expression: object.spec.schedulerName == 'default-scheduler'
- name: names-no-node
  expression: "!has(object.spec.nodeName) || object.spec.nodeName == ''"
{{- end }}

{{/* Where the policy holds pods: a pod that still has its gate and its bind marker got no answer of the webhook, or waits anyway. */}}
{{- define "leeboard.answeredPods" -}}
- name: was-answered
  expression: >-
    !object.spec.?schedulingGates.orValue([]).exists(gate, gate.name == "leeboard.dev/held")
    || !object.spec.containers.exists(each, "leeboard.dev/bind" in each.?resources.?limits.orValue({}))
{{- end }}
