{{/*
Parts of a role's pod. Arguments: (dict "root" $ "role" "prefill" "values" .Values.prefill "port" 8101 "admin" 9100)
*/}}

{{/* Numbers of values files are floats: a large one would be written with an exponent. */}}
{{- define "tandem.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . | toString }}{{- end -}}
{{- end -}}

{{- define "tandem.env" -}}
{{- $v := .root.Values -}}
{{- $role := upper .role -}}
{{- $settings := dict "host" "0.0.0.0" "admin_host" "0.0.0.0" "model" $v.model "log_format" "json" "otlp_endpoint" $v.otlpEndpoint -}}
{{- $drain := ternary "drain_timeout_s" "drain_s" (eq .role "gateway") -}}
{{- $_ := set $settings $drain .values.shutdown.drainSeconds -}}
{{- $tls := $v.tls.workers -}}
{{- if eq .role "gateway" -}}
{{- if $v.apiKeysSecret }}{{ $_ := set $settings "api_keys" "/etc/tandem/keys/keys.json" }}{{ end -}}
{{- if $v.tls.publicSecret }}{{ $_ := set $settings "tls_cert" "/etc/tandem/public/tls.crt" }}{{ $_ := set $settings "tls_key" "/etc/tandem/public/tls.key" }}{{ end -}}
{{- if eq $v.discovery "static" }}
{{- $_ := set $settings "prefill_workers" (printf "%s-prefill:8101" (include "tandem.name" .root)) -}}
{{- $_ := set $settings "decode_workers" (printf "%s-decode:8201" (include "tandem.name" .root)) -}}
{{- end -}}
{{- else if gt (int .values.gpus) 0 }}{{ $_ := set $settings "device" "cuda:0" }}{{- end -}}
{{- if $tls.serverName -}}
{{- $prefix := ternary "worker_tls_" "tls_" (eq .role "gateway") -}}
{{- range $name, $file := dict "cert" "tls.crt" "key" "tls.key" "ca" "ca.crt" }}{{ $_ := set $settings (print $prefix $name) (print "/etc/tandem/workers/" $file) }}{{ end -}}
{{- if ne .role "decode" }}{{ $_ := set $settings (print $prefix "name") $tls.serverName }}{{ end -}}
{{- end -}}
{{- range $name, $value := merge (deepCopy .values.settings) $settings }}
- {name: TANDEM_{{ $role }}__{{ upper $name }}, value: {{ include "tandem.text" $value | quote }}}
{{- end }}
{{- if ne .role "gateway" }}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: TANDEM_{{ $role }}__ADVERTISE_ADDRESS, value: "$(POD_IP):{{ .port }}"}
{{- end }}
{{- if eq $v.discovery "redis" }}
{{- if $v.redis.urlSecret.name }}
- {name: TANDEM_{{ $role }}__REDIS_URL, valueFrom: {secretKeyRef: {name: {{ $v.redis.urlSecret.name }}, key: {{ $v.redis.urlSecret.key }}}}}
{{- else }}
- {name: TANDEM_{{ $role }}__REDIS_URL, value: "redis://{{ include "tandem.name" .root }}-redis:6379/0"}
{{- end }}
{{- end }}
- {name: HF_HUB_OFFLINE, value: {{ ternary "0" "1" $v.allowDownloads | quote }}}
{{- if $v.hubTokenSecret }}
- {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: {{ $v.hubTokenSecret }}, key: HF_TOKEN}}}
{{- end }}
{{- end -}}

{{/* Native gRPC probes cannot speak TLS; the admin pages say the same in plain text. */}}
{{- define "tandem.probe" -}}
{{- $tls := ternary .root.Values.tls.publicSecret .root.Values.tls.workers.serverName (eq .role "gateway") -}}
{{- if $tls -}}
httpGet: {path: {{ ternary "/health/ready" "/health/live" (eq .service "readiness") }}, port: admin}
{{- else -}}
grpc: {port: {{ .port }}, service: {{ .service }}}
{{- end -}}
{{- end -}}

{{- define "tandem.probes" -}}
startupProbe:
  {{- include "tandem.probe" (merge (dict "service" "liveness") .) | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div .values.startupSeconds 5 }}
readinessProbe:
  {{- include "tandem.probe" (merge (dict "service" "readiness") .) | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  {{- include "tandem.probe" (merge (dict "service" "liveness") .) | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{- define "tandem.mounts" -}}
- {name: cache, mountPath: /var/lib/tandem}
- {name: tmp, mountPath: /tmp}
{{- if ne .role "gateway" }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- if and (eq .role "gateway") .root.Values.apiKeysSecret }}
- {name: keys, mountPath: /etc/tandem/keys, readOnly: true}
{{- end }}
{{- if and (eq .role "gateway") .root.Values.tls.publicSecret }}
- {name: public, mountPath: /etc/tandem/public, readOnly: true}
{{- end }}
{{- if .root.Values.tls.workers.serverName }}
- {name: workers, mountPath: /etc/tandem/workers, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tandem.volumes" -}}
{{- $v := .root.Values -}}
{{- if $v.cache.existingClaim }}
- {name: cache, persistentVolumeClaim: {claimName: {{ $v.cache.existingClaim }}}}
{{- else }}
- {name: cache, emptyDir: {sizeLimit: {{ $v.cache.sizeLimit }}}}
{{- end }}
- {name: tmp, emptyDir: {sizeLimit: 1Gi}}
{{- if ne .role "gateway" }}
- {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .values.sharedMemory }}}}
{{- end }}
{{- if and (eq .role "gateway") $v.apiKeysSecret }}
- {name: keys, secret: {secretName: {{ $v.apiKeysSecret }}, defaultMode: 0440}}
{{- end }}
{{- if and (eq .role "gateway") $v.tls.publicSecret }}
- {name: public, secret: {secretName: {{ $v.tls.publicSecret }}, defaultMode: 0440}}
{{- end }}
{{- if $v.tls.workers.serverName }}
- {name: workers, secret: {secretName: {{ index $v.tls.workers (print .role "Secret") }}, defaultMode: 0440}}
{{- end }}
{{- end -}}

{{- define "tandem.resources" -}}
{{- $resources := deepCopy .values.resources -}}
{{- if gt (int (default 0 .values.gpus)) 0 -}}
{{- $_ := set $resources "limits" (merge (dict "nvidia.com/gpu" (int .values.gpus)) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "tandem.affinity" -}}
{{- $affinity := deepCopy .values.affinity -}}
{{- if and (eq .role "prefill") (ne .root.Values.pairAffinity "none") (not (hasKey $affinity "podAffinity")) -}}
{{- $decode := include "tandem.selector" (list .root "decode") | fromYaml -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $decode) -}}
{{- if eq .root.Values.pairAffinity "required" -}}
{{- $_ := set $affinity "podAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) -}}
{{- else -}}
{{- $_ := set $affinity "podAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) -}}
{{- end -}}{{- end -}}
{{- if $affinity }}
affinity:
  {{- toYaml $affinity | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tandem.podTemplate" -}}
metadata:
  labels:
    {{- include "tandem.labels" (list .root .role) | nindent 4 }}
  {{- with .values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ .root.Values.serviceAccountName }}
  automountServiceAccountToken: false
  # Links of services would be variables like TANDEM_PREFILL_PORT, which no role knows.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add .values.shutdown.preStopSeconds .values.shutdown.drainSeconds .values.shutdown.slackSeconds }}
  securityContext:
    {{- toYaml .root.Values.podSecurityContext | nindent 4 }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- include "tandem.affinity" . | nindent 2 }}
  {{- if .root.Values.spreadOverNodes }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "tandem.selector" (list .root .role) | nindent 10 }}
  {{- end }}
  containers:
    - name: {{ .role }}
      image: {{ include "tandem.image" .values.image }}
      imagePullPolicy: {{ .values.image.pullPolicy }}
      args: [{{ .role }}]
      env:
        {{- include "tandem.env" . | trim | nindent 8 }}
      ports:
        {{- range $name, $port := .ports }}
        - {name: {{ $name }}, containerPort: {{ $port }}}
        {{- end }}
      {{- include "tandem.probes" . | nindent 6 }}
      lifecycle:
        preStop:
          exec:
            command: [sleep, {{ .values.shutdown.preStopSeconds | quote }}]
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      resources:
        {{- include "tandem.resources" . | nindent 8 }}
      volumeMounts:
        {{- include "tandem.mounts" . | trim | nindent 8 }}
  volumes:
    {{- include "tandem.volumes" . | trim | nindent 4 }}
{{- end -}}

{{- define "tandem.deployment" -}}
{{- $scaling := dig "autoscaling" "kind" "none" .values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "tandem.name" .root }}-{{ .role }}
  labels:
    {{- include "tandem.labels" (list .root .role) | nindent 4 }}
spec:
  {{- if eq $scaling "none" }}
  replicas: {{ .values.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "tandem.selector" (list .root .role) | nindent 6 }}
  strategy:
    {{- toYaml .values.strategy | nindent 4 }}
  template:
    {{- include "tandem.podTemplate" . | nindent 4 }}
{{- end -}}

{{- define "tandem.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "tandem.name" .root }}-{{ .role }}
  labels:
    {{- include "tandem.labels" (list .root .role) | nindent 4 }}
spec:
  {{- toYaml .values.disruptionBudget | nindent 2 }}
  selector:
    matchLabels:
      {{- include "tandem.selector" (list .root .role) | nindent 6 }}
{{- end -}}
