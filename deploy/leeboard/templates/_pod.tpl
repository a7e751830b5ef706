{{/* The pod of every form; Deployment and DaemonSet differ only around it. */}}

{{/* "true" when our pods use the network of control-plane nodes, else empty. */}}
{{- define "leeboard.hostNetwork" -}}
{{- if and (eq .Values.form "beside") (not .Values.beside.address) }}true{{ end }}
{{- end }}

{{/* A repository, or a whole image, at the registry for all images if there is one. Given: the context and the repository. */}}
{{- define "leeboard.atRegistry" -}}
{{- $registry := .root.Values.global.imageRegistry | trimSuffix "/" -}}
{{- /* The part before the first slash is a registry when it has a dot or a port, or is localhost. */ -}}
{{ ternary (printf "%s/%s" $registry (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" .repository "")) .repository (ne $registry "") }}
{{- end }}

{{- define "leeboard.image" -}}
{{- with .Values.image -}}
{{ include "leeboard.atRegistry" (dict "root" $ "repository" .repository) }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "leeboard.reservationImage" -}}
{{ include "leeboard.atRegistry" (dict "root" . "repository" .Values.gpuSharing.reservation.image) }}
{{- end }}

{{/*
The cluster's own version; what a provider adds to it ("-gke.100") names no image. Who renders without a cluster may know
the minor version alone ("v1.34"), of which there is always a first release.
*/}}
{{- define "leeboard.kubeSchedulerTag" -}}
{{- $known := trimPrefix "v" .Capabilities.KubeVersion.Version -}}
{{- $minor := regexFind "^[0-9]+\\.[0-9]+" $known -}}
{{- $version := regexFind "^[0-9]+\\.[0-9]+\\.[0-9]+" $known | default (printf "%s.0" $minor) -}}
{{ .Values.kubeScheduler.image.tag | default (printf "v%s" $version) }}
{{- end }}

{{- define "leeboard.kubeSchedulerImage" -}}
{{- $tag := include "leeboard.kubeSchedulerTag" . -}}
{{- with .Values.kubeScheduler.image -}}
{{ include "leeboard.atRegistry" (dict "root" $ "repository" .repository) }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}
{{- end }}

{{/*
The flags of our kube-scheduler. To it the pods of a native PodGroup are single pods, whatever becomes the default: bind
makes them a gang. A version before 1.35 does not know the gate and would not start; a tag that is no version is as new as
the cluster.
*/}}
{{- define "leeboard.kubeSchedulerFlags" -}}
{{- $version := regexFind "^[0-9]+\\.[0-9]+" (trimPrefix "v" (include "leeboard.kubeSchedulerTag" .)) -}}
{{- $cluster := regexFind "^[0-9]+\\.[0-9]+" (trimPrefix "v" .Capabilities.KubeVersion.Version) -}}
{{- $flags := list "--config=/etc/leeboard/scheduler/config.yaml" -}}
{{- if semverCompare ">=1.35.0" (printf "%s.0" ($version | default $cluster)) -}}
{{- $flags = append $flags "--feature-gates=GenericWorkload=false" -}}
{{- end -}}
{{ concat $flags .Values.kubeScheduler.extraArgs | toJson }}
{{- end }}

{{- define "leeboard.pullSecrets" -}}
{{- with concat .Values.global.imagePullSecrets .Values.imagePullSecrets -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* `::` is every address, of IPv4 too. */}}
{{- define "leeboard.env" -}}
{{- $name := include "leeboard.name" . -}}
- {name: LEEBOARD_PROFILES, value: {{ .Values.schedulerName | quote }}}
- {name: LEEBOARD_WEBHOOK_PORT, value: {{ .Values.ports.extender | quote }}}
{{- if include "leeboard.fixedAddress" . }}
- {name: LEEBOARD_WEBHOOK_HOST, value: "::"}
- {name: LEEBOARD_WEBHOOK_TLS_DIR, value: /etc/leeboard/extender-tls}
{{- else if eq .Values.form "beside" }}
- {name: LEEBOARD_SCHEDULER_LEASE, value: {{ .Values.beside.lease }}}
{{- else }}
- {name: LEEBOARD_SCHEDULER_LEASE, value: {{ include "leeboard.namespace" . }}/{{ $name }}-scheduler}
{{- end }}
{{- if and (eq .Values.form "beside") .Values.beside.groupScheduling }}
- {name: LEEBOARD_KUBE_SCHEDULER_GROUPS, value: "true"}
{{- end }}
- {name: LEEBOARD_OPERATIONS_HOST, value: "::"}
- {name: LEEBOARD_OPERATIONS_PORT, value: {{ .Values.ports.operations | quote }}}
{{- if .Values.security.anonymousReads }}
- {name: LEEBOARD_ANONYMOUS_READS, value: "true"}
{{- end }}
{{- if .Values.view.enabled }}
- {name: LEEBOARD_VIEW_HOST, value: "::"}
- {name: LEEBOARD_VIEW_PORT, value: {{ .Values.ports.view | quote }}}
{{- end }}
- {name: LEEBOARD_PROBE_HOST, value: "::"}
- {name: LEEBOARD_PROBE_PORT, value: {{ .Values.ports.probes | quote }}}
{{- if include "leeboard.admission" . }}
- {name: LEEBOARD_ADMISSION_HOST, value: "::"}
- {name: LEEBOARD_ADMISSION_PORT, value: {{ .Values.ports.admission | quote }}}
{{- end }}
{{- if .Values.aggregatedApi.enabled }}
- {name: LEEBOARD_AGGREGATED_HOST, value: "::"}
- {name: LEEBOARD_AGGREGATED_PORT, value: {{ .Values.ports.aggregated | quote }}}
{{- end }}
{{- if include "leeboard.ownCertificates" . }}
- {name: LEEBOARD_CERTIFICATE_SECRET, value: {{ include "leeboard.namespace" . }}/{{ $name }}-ca}
- {name: LEEBOARD_CERTIFICATE_NAMES, value: {{ include "leeboard.certificateNames" . | fromJsonArray | join "," | quote }}}
{{- if include "leeboard.admission" . }}
- {name: LEEBOARD_WEBHOOK_CONFIGURATION, value: {{ $name }}}
{{- end }}
{{- else if include "leeboard.apiServerCalls" . }}
- {name: LEEBOARD_ADMISSION_TLS_DIR, value: /etc/leeboard/admission-tls}
{{- end }}
{{- with .Values.admission.gpuRuntimeClass }}
- {name: LEEBOARD_GPU_RUNTIME_CLASS, value: {{ . | quote }}}
{{- end }}
- {name: LEEBOARD_POD_GROUPING, value: {{ .Values.grouping.enabled | quote }}}
{{- if include "leeboard.secure" . }}
# No policy checks this label on owners, such as a Deployment with pods of another scheduler.
- {name: LEEBOARD_OWNERS_PROJECT, value: "false"}
{{- end }}
{{- with include "leeboard.autoscaling" . }}
- {name: LEEBOARD_AUTOSCALING, value: {{ . }}}
{{- end }}
{{- if eq (include "leeboard.autoscaling" .) "scaling-pods" }}
- {name: LEEBOARD_AUTOSCALING_NAMESPACE, value: {{ include "leeboard.scalingNamespace" . }}}
{{- if not (include "leeboard.gpuSharing" .) }}
- {name: LEEBOARD_RESERVATION_IMAGE, value: {{ include "leeboard.reservationImage" . | quote }}}
{{- end }}
{{- end }}
{{- if include "leeboard.gpuSharing" . }}
- {name: LEEBOARD_GPU_SHARING, value: "true"}
- {name: LEEBOARD_RESERVATION_NAMESPACE, value: {{ include "leeboard.reservationNamespace" . }}}
- {name: LEEBOARD_RESERVATION_PRIORITY_CLASS, value: {{ include "leeboard.reservationClass" . }}}
{{- with .Values.gpuSharing }}
- {name: LEEBOARD_RESERVATION_IMAGE, value: {{ include "leeboard.reservationImage" $ | quote }}}
- {name: LEEBOARD_CONTEXT_OVERHEAD_MIB, value: {{ int .contextOverheadMib | quote }}}
- {name: LEEBOARD_OVERUSE_TOLERANCE_MIB, value: {{ int .overuseToleranceMib | quote }}}
{{- if not (kindIs "invalid" .evictOveruseAfter) }}
- {name: LEEBOARD_EVICT_OVERUSE_AFTER_S, value: {{ toJson .evictOveruseAfter | quote }}}
{{- end }}
{{- end }}
{{- else }}
- {name: LEEBOARD_GPU_SHARING, value: "false"}
{{- end }}
{{- with include "leeboard.markers" . }}
- {name: LEEBOARD_MARKERS, value: {{ fromJsonArray . | join "," | quote }}}
{{- end }}
{{- range $setting, $value := .Values.settings }}
- {name: {{ $setting }}, value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}}
{{- end }}
{{- end }}

{{/* Names by which the API server calls Leeboard, as a JSON list. */}}
{{- define "leeboard.certificateNames" -}}
{{- $names := list }}
{{- range $service, $called := dict "admission" (include "leeboard.admission" .) "api" (ternary "true" "" .Values.aggregatedApi.enabled) }}
  {{- if $called }}{{ $names = append $names (printf "%s-%s.%s.svc" (include "leeboard.name" $) $service (include "leeboard.namespace" $)) }}{{ end }}
{{- end }}
{{- $names | toJson }}
{{- end }}

{{/* Folders with certificates that another tool maintains: name and Secret of each, as a JSON object. */}}
{{- define "leeboard.tlsFolders" -}}
{{- $folders := dict }}
{{- if and (include "leeboard.apiServerCalls" .) .Values.certificate.secretName }}
  {{- $_ := set $folders "admission-tls" .Values.certificate.secretName }}
{{- end }}
{{- if include "leeboard.fixedAddress" . }}
  {{- $_ := set $folders "extender-tls" .Values.beside.tlsSecret }}
{{- end }}
{{- toJson $folders }}
{{- end }}

{{/* Where recordings are, in MiB: while the disk is slow, up to 64 MiB may be written at once beyond each half. */}}
{{- define "leeboard.recordingVolumeMiB" -}}
{{ add .Values.recording.sizeMiB 128 }}
{{- end }}

{{/* With recordings the pod requests their room, so that it is not among the first to go when the node's disk is full. */}}
{{- define "leeboard.resources" -}}
{{- $resources := deepCopy .Values.resources }}
{{- $given := or (hasKey (get $resources "requests" | default dict) "ephemeral-storage") (hasKey (get $resources "limits" | default dict) "ephemeral-storage") }}
{{- if and .Values.recording.enabled (not $given) }}
  {{- $room := dict "ephemeral-storage" (printf "%sMi" (include "leeboard.recordingVolumeMiB" .)) }}
  {{- $_ := set $resources "requests" (merge $room (get $resources "requests" | default dict)) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* A cluster autoscaler would never remove a node with an emptyDir. */}}
{{- define "leeboard.podAnnotations" -}}
{{- $local := dict "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes" "recordings" }}
{{- toYaml (merge (deepCopy .Values.podAnnotations) .Values.commonAnnotations (ternary $local dict .Values.recording.enabled)) }}
{{- end }}

{{- define "leeboard.pod" -}}
{{- $recording := .Values.recording.enabled -}}
{{- $folders := include "leeboard.tlsFolders" . | fromJson -}}
metadata:
  labels:
    {{- merge (include "leeboard.ownLabels" . | fromYaml) .Values.podLabels .Values.commonLabels | toYaml | nindent 4 }}
  annotations:
    checksum/scheduler-config: {{ include "leeboard.schedulerConfig" . | sha256sum }}
    {{- with include "leeboard.podAnnotations" . | fromYaml }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "leeboard.serviceAccountName" . }}
  automountServiceAccountToken: {{ .Values.serviceAccount.automount }}
  # What Kubernetes would tell of Services (LEEBOARD_ADMISSION_PORT=tcp://...) reads like settings of ours.
  enableServiceLinks: false
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with include "leeboard.pullSecrets" . }}{{ . | nindent 2 }}{{ end }}
  {{- if include "leeboard.hostNetwork" . }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  securityContext: {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- include "leeboard.whichNodes" . | nindent 2 }}
  containers:
    - name: leeboard
      image: {{ include "leeboard.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve]
      env:
        {{- include "leeboard.env" . | nindent 8 }}
        {{- if $recording }}
        - {name: LEEBOARD_RECORD_DIR, value: /var/lib/leeboard/recordings}
        - {name: LEEBOARD_RECORD_MIB, value: {{ int .Values.recording.sizeMiB | quote }}}
        {{- end }}
        {{- with .Values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - {name: operations, containerPort: {{ .Values.ports.operations }}}
        - {name: probes, containerPort: {{ .Values.ports.probes }}}
        {{- if .Values.view.enabled }}
        - {name: view, containerPort: {{ .Values.ports.view }}}
        {{- end }}
        {{- if include "leeboard.admission" . }}
        - {name: admission, containerPort: {{ .Values.ports.admission }}}
        {{- end }}
        {{- if .Values.aggregatedApi.enabled }}
        - {name: aggregated, containerPort: {{ .Values.ports.aggregated }}}
        {{- end }}
        {{- if include "leeboard.fixedAddress" . }}
        - {name: extender, containerPort: {{ .Values.ports.extender }}}
        {{- end }}
      # Fails when the event loop is blocked for long. A standby replica is alive and ready.
      livenessProbe:
        httpGet: {path: /livez, port: probes}
        {{- toYaml .Values.livenessProbe | nindent 8 }}
      readinessProbe:
        httpGet: {path: "/readyz?exclude=active&exclude=rights&exclude=certificate-renewal&exclude=ca-bundle", port: probes}
        {{- toYaml .Values.readinessProbe | nindent 8 }}
      startupProbe:
        httpGet: {path: /livez, port: probes}
        {{- toYaml .Values.startupProbe | nindent 8 }}
      resources: {{- include "leeboard.resources" . | nindent 8 }}
      securityContext: {{- toYaml .Values.containerSecurityContext | nindent 8 }}
      {{- if or $folders $recording .Values.volumeMounts }}
      volumeMounts:
        {{- if $recording }}
        - {name: recordings, mountPath: /var/lib/leeboard/recordings}
        {{- end }}
        {{- range $folder, $_ := $folders }}
        - {name: {{ $folder }}, mountPath: /etc/leeboard/{{ $folder }}, readOnly: true}
        {{- end }}
        {{- with .Values.volumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- end }}
    {{- if ne .Values.form "beside" }}
    - name: kube-scheduler
      image: {{ include "leeboard.kubeSchedulerImage" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [kube-scheduler]
      args: {{ include "leeboard.kubeSchedulerFlags" . }}
      ports:
        - {name: scheduler, containerPort: 10259}
      # Asks Leeboard: a kube-scheduler whose Leeboard is gone must give its lease to a replica that works. Of itself it
      # ends when it cannot renew the lease. By number: a port's name is known in its own container only.
      livenessProbe:
        httpGet: {path: /livez, port: {{ .Values.ports.probes }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      startupProbe:
        httpGet: {path: /livez, port: scheduler, scheme: HTTPS}
        periodSeconds: 2
        failureThreshold: 60
      resources: {{- toYaml .Values.kubeScheduler.resources | nindent 8 }}
      securityContext: {{- toYaml .Values.kubeScheduler.containerSecurityContext | nindent 8 }}
      volumeMounts:
        - {name: scheduler-config, mountPath: /etc/leeboard/scheduler, readOnly: true}
    {{- end }}
  {{- if or $folders $recording .Values.volumes (ne .Values.form "beside") }}
  volumes:
    {{- if $recording }}
    # Above what recordings may take: the kubelet evicts the pod when the limit is passed.
    - name: recordings
      emptyDir: {sizeLimit: {{ include "leeboard.recordingVolumeMiB" . }}Mi}
    {{- end }}
    {{- if ne .Values.form "beside" }}
    - name: scheduler-config
      configMap: {name: {{ include "leeboard.name" . }}-scheduler}
    {{- end }}
    {{- range $folder, $secret := $folders }}
    - name: {{ $folder }}
      secret: {secretName: {{ $secret }}}
    {{- end }}
    {{- with .Values.volumes }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- end }}
{{- end }}

{{- define "leeboard.nodeSelector" -}}
{{ merge (dict "kubernetes.io/os" "linux") .Values.nodeSelector | toYaml }}
{{- end }}

{{- define "leeboard.whichNodes" -}}
{{- $host := include "leeboard.hostNetwork" . -}}
nodeSelector: {{- include "leeboard.nodeSelector" . | nindent 2 }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- merge (deepCopy .) (dict "labelSelector" (dict "matchLabels" (include "leeboard.selectorLabels" $ | fromYaml))) | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
{{- $taint := dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists" }}
{{- with concat .Values.tolerations (ternary (list $taint) list (eq $host "true")) }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.affinity }}
affinity: {{- toYaml .Values.affinity | nindent 2 }}
{{- else if $host }}
# Whatever the label's value: kubeadm leaves it empty, others write "true".
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]
{{- else }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "leeboard.selectorLabels" . | nindent 14 }}
{{- end }}
{{- end }}
