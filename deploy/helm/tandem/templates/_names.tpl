{{- define "tandem.name" -}}
{{- if contains .Chart.Name .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{/* Arguments: (list $ "role") */}}
{{- define "tandem.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tandem.labels" -}}
{{- $root := index . 0 -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tandem.image" -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag }}{{- end -}}
{{- end -}}

{{/* Stops what could not work before the cluster sees it. */}}
{{- define "tandem.check" -}}
{{- $v := .Values -}}
{{- if eq $v.discovery "static" -}}
{{- range $role := list "prefill" "decode" -}}
{{- $worker := index $v $role -}}
{{- if or (gt (int $worker.replicas) 1) (ne $worker.autoscaling.kind "none") -}}
{{- fail (printf "discovery static names one %s worker: set discovery to redis, or %s.replicas to 1 and %s.autoscaling.kind to none" $role $role $role) -}}
{{- end -}}{{- end -}}
{{- else if not (or $v.redis.enabled $v.redis.urlSecret.name) -}}
{{- fail "discovery redis needs redis.enabled or redis.urlSecret.name" -}}
{{- end -}}
{{- if and (not (hasPrefix "/opt/tandem/" $v.model)) (not $v.cache.existingClaim) -}}
{{- fail "a model that is not in the image needs cache.existingClaim: the gateway reads its tokenizer from there" -}}
{{- end -}}
{{- $workers := $v.tls.workers -}}
{{- $given := compact (list $workers.gatewaySecret $workers.prefillSecret $workers.decodeSecret $workers.serverName) -}}
{{- if and $given (lt (len $given) 4) -}}
{{- fail "tls.workers needs a Secret of each role and serverName, or none of them" -}}
{{- end -}}
{{- range $role := list "prefill" "decode" -}}
{{- $worker := index $v $role -}}
{{- $scaling := $worker.autoscaling -}}
{{- if and (eq $v.workers "disaggregatedSet") (or (ne $scaling.kind "none") (ne $worker.strategy.type "RollingUpdate")) -}}
{{- fail (printf "workers disaggregatedSet has a fixed number of replicas and rolls them: set %s.autoscaling.kind to none and %s.strategy.type to RollingUpdate, or workers to deployments" $role $role) -}}
{{- end -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "%s.autoscaling.minReplicas is above maxReplicas" $role) -}}
{{- end -}}{{- end -}}
{{- end -}}
