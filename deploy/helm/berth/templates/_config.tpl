{{- /* What binders read besides their flags: a KubeSchedulerConfiguration, and which plugins of others there are. */}}

{{- /* The binder's configuration, or nothing if its flags say it all. Argument: the root. */}}
{{- define "berth.config" -}}
{{- $values := .Values -}}
{{- if or $values.config $values.pluginServices $values.yoda.enabled }}
{{- $config := merge dict (deepCopy $values.config) (dict "apiVersion" "kubescheduler.config.k8s.io/v1" "kind" "KubeSchedulerConfiguration") }}
{{- if not $config.profiles }}
{{- $_ := set $config "profiles" (list (dict)) }}
{{- end }}
{{- if eq (len $config.profiles) 1 }}
{{- $profile := first $config.profiles }}
{{- $_ := set $profile "schedulerName" ($profile.schedulerName | default $values.schedulerName) }}
{{- if and $values.yoda.enabled (not $values.config.profiles) }}
{{- $_ := set $profile "plugins" (include "berth.yoda.plugins" . | fromYaml) }}
{{- end }}
{{- end }}
{{- toYaml $config }}
{{- end }}
{{- end }}

{{- /* The names of the schedulers that Berth is, as a list of JSON. Argument: the root. */}}
{{- define "berth.names" -}}
{{- $names := list }}
{{- with include "berth.config" . }}
{{- range $i, $profile := (fromYaml .).profiles }}
{{- if not $profile.schedulerName }}
{{- fail (printf "config.profiles[%d].schedulerName: of several profiles each has a name of its own" $i) }}
{{- end }}
{{- $names = append $names $profile.schedulerName }}
{{- end }}
{{- else }}
{{- $names = list .Values.schedulerName }}
{{- end }}
{{- toJson $names }}
{{- end }}

{{- /* The plugin services, or nothing. Argument: the root. */}}
{{- define "berth.pluginServices" -}}
{{- $services := .Values.pluginServices }}
{{- if .Values.yoda.enabled }}
{{- $services = concat (include "berth.yoda.services" . | fromYamlArray) $services }}
{{- end }}
{{- with $services }}
{{- toYaml (dict "apiVersion" "berth.dev/v1" "kind" "PluginServices" "services" .) }}
{{- end }}
{{- end }}

{{- /* Whether there is a plugin service that is found through etcd: true, or nothing. Argument: the root. */}}
{{- define "berth.discovered" -}}
{{- range .Values.pluginServices }}{{ if .discovered }}true{{ end }}{{ end }}
{{- end }}

{{- /* The files of the ConfigMap, or nothing. Argument: the root. */}}
{{- define "berth.configFiles" -}}
{{- with include "berth.config" . }}
config.yaml: |
  {{- . | nindent 2 }}
{{- end }}
{{- with include "berth.pluginServices" . }}
plugin-services.yaml: |
  {{- . | nindent 2 }}
{{- end }}
{{- end }}
