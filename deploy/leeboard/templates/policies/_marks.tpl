{{/* Which labels and annotations of pods are whose, as lists that CEL reads as JSON. */}}

{{/* Annotations that say what a pod shares of a device. */}}
{{- define "leeboard.sharingMarks" -}}
["gpu-fraction","gpu-memory","gpu-fraction-num-devices","gpu-fraction-container-name","mps"]
{{- end }}

{{/* Annotations, and labels, that say in which PodGroup a pod is, and in which part of it. */}}
{{- define "leeboard.groupAnnotations" -}}
["pod-group-name"]
{{- end }}
{{- define "leeboard.groupLabels" -}}
["kai.scheduler/subgroup-name"]
{{- end }}

{{/* Annotations that our webhook writes on a new pod that kube-scheduler binds by itself; on others, bind does. */}}
{{- define "leeboard.stamps" -}}
["leeboard.dev/preemptible","leeboard.dev/queue"]
{{- end }}

{{/* What KAI Scheduler alone writes, beside everything under runai-gpu-group/. */}}
{{- define "leeboard.kaisMarks" -}}
["runai-gpu-group","gpu-uuids","received-resource-type","run.ai/reserve_for_gpu_index","runai/shared-gpu-configmap"]
{{- end }}

{{/* What decides in which queue and group a pod is, and how urgent it is, beside everything under kai.scheduler/ and runai/. */}}
{{- define "leeboard.placingMarks" -}}
["project","priorityClassName","pod-group-name"]
{{- end }}
