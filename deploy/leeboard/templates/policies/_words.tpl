{{/* What the policies say alike. Every piece is a CEL expression, or a list that CEL reads as JSON. */}}

{{/* "true" when ValidatingAdmissionPolicies are installed: whoever asks for `secure` gets them in every form. */}}
{{- define "leeboard.validating" -}}
{{- if or (include "leeboard.admission" .) (include "leeboard.secure" .) }}true{{ end }}
{{- end }}

{{/* "true" in the profile that asks RBAC. */}}
{{- define "leeboard.secure" -}}
{{- if eq .Values.security.profile "secure" }}true{{ end }}
{{- end }}

{{/* The user that the node agent is; each of its tokens also names the node it runs on. */}}
{{- define "leeboard.agentUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "leeboard.name" . }}-agent
{{- end }}

{{/* Selects the namespaces that the rules of `secure` are for. */}}
{{- define "leeboard.guardedNamespaces" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{ concat (include "leeboard.systemNamespaces" . | fromJsonArray) .Values.security.exemptNamespaces | uniq | toJson }}
{{- end }}

{{/* Whether the requester stands above these rules. Who may do everything may: they could delete the policies, too. */}}
{{- define "leeboard.mayBypass" -}}
authorizer.group("leeboard.dev").resource("policies").check("bypass").allowed()
{{- end }}

{{/* Whether the scheduler of a pod's spec is one of ours. Given: the context, and the expression of the spec. */}}
{{- define "leeboard.isManaged" -}}
{{ .spec }}.?schedulerName.orValue("") in {{ include "leeboard.profiles" .root }}
{{- end }}

{{/* Whether a pod asks for GPUs: whole ones, parts of them, or MIG profiles. */}}
{{- define "leeboard.asksForGpus" -}}
["gpu-fraction", "gpu-memory"].exists(key, key in object.metadata.?annotations.orValue({}))
|| (
  object.spec.containers.map(each, dyn(each)) + object.spec.?initContainers.orValue([]).map(each, dyn(each))
).exists(each, each.?resources.?limits.orValue({}).exists(name,
  (name == "nvidia.com/gpu" || name.startsWith("nvidia.com/mig-")) && string(each.resources.limits[name]) != "0"
))
{{- end }}

{{/*
The queues that labels name, the one that counts first, as the decoder reads them: project labels count for managed pods
only. Given: the expressions of the labels and of whether the pod is managed.
*/}}
{{- define "leeboard.queuesOf" -}}
[
  {{ .labels }}[?"kai.scheduler/queue"].orValue(""),
  {{ .labels }}[?"runai/queue"].orValue(""),
  {{ .managed }} && {{ .labels }}[?"project"].orValue("") != ""
    ? {{ .labels }}["project"] + (
        {{ .labels }}[?"kai.scheduler/node-pool"].orValue("") == "" ? "" : "-" + {{ .labels }}["kai.scheduler/node-pool"]
      )
    : ""
].filter(name, name != "")
{{- end }}

{{/* Whether the requester, or the service account `variables.account`, may use the queue `variables.queue`. */}}
{{- define "leeboard.mayUseQueue" -}}
authorizer.group("scheduling.run.ai").resource("queues").name(variables.queue).check("use").allowed()
|| authorizer.serviceAccount(request.namespace, variables.account)
  .group("scheduling.run.ai").resource("queues").name(variables.queue).check("use").allowed()
{{- end }}

{{/* The same for the priority class named by an expression. */}}
{{- define "leeboard.mayUseClass" -}}
authorizer.group("scheduling.k8s.io").resource("priorityclasses").name({{ . }}).check("use").allowed()
|| authorizer.serviceAccount(request.namespace, variables.account)
  .group("scheduling.k8s.io").resource("priorityclasses").name({{ . }}).check("use").allowed()
{{- end }}

{{/* What to say to those who may not use the queue. */}}
{{- define "leeboard.queueRefusal" -}}
"You may not use queue " + variables.queue + ". Name a queue that is yours in the label kai.scheduler/queue, or ask for"
+ " the right to `use` queues.scheduling.run.ai/" + variables.queue + ", for yourself or for the service account "
+ request.namespace + "/" + variables.account + ", as which controllers create pods."
{{- end }}

{{/* The binding of a policy, which refuses. Given: its name and the context. */}}
{{- define "leeboard.refusing" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels: {{- include "leeboard.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}

{{/* The head of a policy. Given: its name and the context. */}}
{{- define "leeboard.policyHead" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  labels: {{- include "leeboard.labels" .root | nindent 4 }}
{{- end }}
