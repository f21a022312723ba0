{{/* At most 47 characters: with what a Deployment appends, the name of a pod has then no more than the 64 of instance_id. */}}
{{- define "drawbridge.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 47 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 47 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 47 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "drawbridge.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "drawbridge.labels" -}}
{{ include "drawbridge.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "drawbridge.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "drawbridge.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* drawbridge.yaml: what the values say, and what the manifests rely on. */}}
{{- define "drawbridge.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- range $path := list "public.listen" "admin.listen" "admin.probes" "data_dir" "seal" "drain.deadline" "instance_id" "redis" "database" -}}
{{- $keys := splitList "." $path -}}
{{- $section := $config -}}
{{- range initial $keys -}}{{- $section = default dict (get $section .) -}}{{- end -}}
{{- if hasKey $section (last $keys) -}}
{{- fail (printf "config.%s: the chart sets this itself; see drainSeconds, seal, redis and database in its values" $path) -}}
{{- end -}}
{{- end -}}
{{- $keys := list -}}
{{- range .Values.seal.keys -}}
{{- $keys = append $keys (dict "id" . "key" (dict "file" (printf "/etc/drawbridge-seal/%s" .))) -}}
{{- end -}}
{{- $own := dict
      "public" (dict "listen" "0.0.0.0:8080")
      "admin" (dict "listen" "127.0.0.1:9090" "probes" "0.0.0.0:9091")
      "data_dir" "/var/lib/drawbridge"
      "seal" (dict "keys" $keys)
      "drain" (dict "deadline" (printf "%ds" (int .Values.drainSeconds))) -}}
{{- if .Values.database.enabled -}}
{{- $_ := set $own "database" (dict "url" (dict "env" "DATABASE_URL")) -}}
{{- end -}}
{{- mergeOverwrite $config $own | toYaml -}}
{{- end -}}
