{{/* What the policies say alike. Every piece is a CEL expression, or a list that CEL reads as JSON. */}}

{{/* "true" when ValidatingAdmissionPolicies are installed; with `secure` they are, in every form. */}}
{{- define "leeboard.validating" -}}
{{- if or (include "leeboard.admission" .) (include "leeboard.secure" .) }}true{{ end }}
{{- end }}

{{/* "true" in the profile that asks RBAC. */}}
{{- define "leeboard.secure" -}}
{{- if eq .Values.security.profile "secure" }}true{{ end }}
{{- end }}

{{/* The user that the node agent is; each of its tokens also names the node it runs on. */}}
{{- define "leeboard.agentUser" -}}
system:serviceaccount:{{ include "leeboard.namespace" . }}:{{ include "leeboard.agentServiceAccountName" . }}
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

{{/*
Whether a new pod makes itself preemptible, and kube-scheduler binds it without us: our webhook, which alone takes the
marker of bind off a pod, has written what our bind writes on others. To a policy that is the requester's own doing.
*/}}
{{- define "leeboard.yields" -}}
{{- if include "leeboard.admission" . -}}
oldObject == null && object.metadata.?annotations[?"leeboard.dev/preemptible"].orValue("") == "true"
&& {{ include "leeboard.isManaged" (dict "spec" "object.spec" "root" .) }}
&& object.spec.?nodeName.orValue("") == "" && !("pod-group-name" in object.metadata.annotations)
&& (object.spec.containers + object.spec.?initContainers.orValue([]))
  .all(each, !("leeboard.dev/bind" in each.?resources.?requests.orValue({})))
{{- else }}false{{ end }}
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
Whether a pod may get GPUs. A policy sees no claims, so every ResourceClaim may be for GPUs, and every resource that stands
for a DeviceClass.
*/}}
{{- define "leeboard.mayGetGpus" -}}
{{ include "leeboard.asksForGpus" . }}
|| object.spec.?resourceClaims.orValue([]).size() > 0
|| (
  object.spec.containers.map(each, dyn(each)) + object.spec.?initContainers.orValue([]).map(each, dyn(each))
).exists(each, each.?resources.?limits.orValue({}).exists(name, name.startsWith("deviceclass.resource.kubernetes.io/")))
{{- end }}

{{/*
The queues that labels name, the one that counts first, as the decoder reads them: project labels count for managed pods
only, and not on what owns them. Given: the expressions of the labels and of whether they are of managed pods.
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

{{/*
What owns pods, as rules: the kinds that grouping reads, and those that only have a template. Whatever else our account
may read of a namespace can be named as an owner, too.
*/}}
{{- define "leeboard.ownerRules" -}}
- {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [replicationcontrollers]}
- {apiGroups: [apps], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [daemonsets]}
- {apiGroups: [policy], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [poddisruptionbudgets]}
- apiGroups: [scheduling.run.ai, scheduling.k8s.io]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [podgroups]
{{- range $group, $resources := include "leeboard.owners" . | fromYaml }}
- apiGroups: [{{ $group }}]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: {{ $resources | toJson }}
{{- end }}
# Labels of Kubernetes' own kinds can be written through the status, too, save of Deployments; not of custom resources.
{{- range $group := list "apps" "batch" }}
- apiGroups: [{{ $group }}]
  apiVersions: ["*"]
  operations: [UPDATE]
  resources:
    {{- range without (get (include "leeboard.owners" $ | fromYaml) $group) "deployments" }}
    - {{ . }}/status
    {{- end }}
{{- end }}
{{- if eq (include "leeboard.autoscaling" .) "provisioning-request" }}
- apiGroups: [autoscaling.x-k8s.io]
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: [provisioningrequests]
{{- end }}
{{- range .Values.grouping.extraResources }}
- apiGroups: {{ .apiGroups | toJson }}
  apiVersions: ["*"]
  operations: [CREATE, UPDATE]
  resources: {{ .resources | toJson }}
{{- end }}
{{- end }}

{{/*
Labels of an owner as it is, then as it was, each as three: its own, those of the Jobs that it makes (CronJob), and those
of its pods where their template has the usual place. Whatever shape a custom resource has, each is a map of texts, empty
where there is none.
*/}}
{{- define "leeboard.labelsOfOwner" -}}
[dyn(object), dyn(oldObject)].map(owner, [
  [owner].filter(each, each != null),
  {{ include "leeboard.jobTemplates" "owner" | indent 2 | trim }},
  {{ include "leeboard.podTemplates" "owner" | indent 2 | trim }}
].map(found, (
  found.map(each, each.?metadata.orValue({})).filter(each, type(each) == map)
    .map(each, each.?labels.orValue({}))
    .filter(each, type(each) == map && each.all(key, type(each[key]) == string))
  + [{}]
)[0]))
{{- end }}

{{/* The specs of an owner's pods, as it is and as it was: a list of one each, or none where no template is found. */}}
{{- define "leeboard.podsOfOwner" -}}
[dyn(object), dyn(oldObject)].map(owner, (
  {{ include "leeboard.podTemplates" "owner" | indent 2 | trim }}
).map(each, each.?spec.orValue(null)).filter(each, type(each) == map))
{{- end }}

{{- define "leeboard.jobTemplates" -}}
[{{ . }}].filter(each, each != null).map(each, each.?spec.orValue(null)).filter(each, type(each) == map)
  .map(each, each.?jobTemplate.orValue(null)).filter(each, type(each) == map)
{{- end }}

{{- define "leeboard.podTemplates" -}}
({{ include "leeboard.jobTemplates" . }} + [{{ . }}].filter(each, each != null))
  .map(each, each.?spec.orValue(null)).filter(each, type(each) == map)
  .map(each, each.?template.orValue(null)).filter(each, type(each) == map)
{{- end }}

{{/* The service account of those pods, once they are in `variables.pods`. */}}
{{- define "leeboard.accountOfOwner" -}}
(
  variables.pods[0].map(each, each.?serviceAccountName.orValue("")).filter(name, type(name) == string && name != "")
  + ["default"]
)[0]
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

{{/* The message for users that may not use the queue. */}}
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
  {{- include "leeboard.marked" (dict "root" .root) | nindent 2 }}
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
  {{- include "leeboard.marked" (dict "root" .root) | nindent 2 }}
{{- end }}
