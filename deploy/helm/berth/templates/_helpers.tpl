{{- /*
The metadata of an object. Argument: dict of root and name, and what it may have besides: component (the role that it is of), labels and
annotations, namespace (another one than the release's), cluster (true: it is in none).
*/}}
{{- define "berth.metadata" -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ .namespace | default .root.Release.Namespace }}
{{- end }}
labels:
  {{- include "berth.labels" . | nindent 2 }}
{{- with merge dict (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The labels of an object, by Kubernetes' convention. Argument: as above. */}}
{{- define "berth.labels" -}}
{{- $chart := .root.Chart -}}
{{- $own := dict
  "app.kubernetes.io/version" ($chart.AppVersion | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $chart.Name $chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- toYaml (merge (include "berth.identity" . | fromYaml) $own (.labels | default dict) .root.Values.commonLabels) }}
{{- end }}

{{- /* What of these pods have too, and is the same in all versions. Selectors go by name and part-of, and nothing else. */}}
{{- define "berth.identity" -}}
app.kubernetes.io/name: {{ .component | default "berth" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/part-of: berth
{{- end }}

{{- /* The metadata of a workload's pods. Argument: dict of root, role, values and annotations. */}}
{{- define "berth.podMetadata" -}}
{{- $values := .values | default dict -}}
labels:
  {{- toYaml (merge (include "berth.identity" (dict "root" .root "component" .role) | fromYaml) ($values.podLabels | default dict) .root.Values.podLabels .root.Values.commonLabels) | nindent 2 }}
{{- with merge dict (.annotations | default dict) ($values.podAnnotations | default dict) .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* An image. Argument: list of the root and its values. */}}
{{- define "berth.image" -}}
{{- $root := index . 0 -}}{{- with index . 1 -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $root.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- /* The name of the PriorityClass of all pods. Argument: the root. */}}
{{- define "berth.priorityClass" -}}
{{ .Values.priorityClassName | default .Release.Name }}
{{- end }}

{{- /* The endpoints of etcd, comma-separated. */}}
{{- define "berth.etcdEndpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- range $i := until 3 -}}{{ if $i }},{{ end }}https://etcd-{{ $i }}.etcd.{{ $.Release.Namespace }}.svc:2379{{- end -}}
{{- else -}}
{{- join "," .Values.etcd.endpoints -}}
{{- end -}}
{{- end }}

{{- /* What pods of all kinds have: who places them, and from where their images come. Argument: the root. */}}
{{- define "berth.placedBy" -}}
{{- with .Values.ownSchedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /*
The spec of a pod, but for its containers and volumes. Argument: dict of root, role and values (the role's), and what it may have: token
(true: of the role's account), once (true: it ends, and is spread over nothing).
*/}}
{{- define "berth.pod" -}}
{{- $root := .root -}}
{{- include "berth.placedBy" $root }}
serviceAccountName: {{ $root.Release.Name }}-{{ .role }}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
priorityClassName: {{ include "berth.priorityClass" $root }}
securityContext:
  {{- include "berth.podSecurity" . | nindent 2 }}
{{- with merge dict (.values.nodeSelector | default dict) $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat $root.Values.tolerations (.values.tolerations | default list) }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity | default $root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if not .once }}
topologySpreadConstraints:
  {{- include "berth.spread" . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "berth.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* Over what the pods of a role are spread: by default hosts and zones, as far as that is possible. Argument: as of berth.pod. */}}
{{- define "berth.spread" -}}
{{- $alike := dict "labelSelector" (dict "matchLabels" (dict "app.kubernetes.io/name" .role)) -}}
{{- if ne .role "etcd" }}{{ $_ := set $alike "matchLabelKeys" (list "pod-template-hash") }}{{ end -}}
{{- $all := deepCopy (.values.topologySpreadConstraints | default .root.Values.topologySpreadConstraints) -}}
{{- if not $all }}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
{{- $all = append $all (dict "topologyKey" . "maxSkew" 1 "whenUnsatisfiable" "ScheduleAnyway") }}
{{- end }}
{{- end }}
{{- range $all }}
{{- /* One that selects by itself says all of it. */}}
{{- if not .labelSelector }}{{ $_ := merge . (deepCopy $alike) }}{{ end }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}

{{- define "berth.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "berth.tlsVolume" -}}
name: tls
secret:
  secretName: {{ .root.Release.Name }}-{{ .role }}-tls
  defaultMode: 288 # 0440
{{- end }}

{{- /* The PodDisruptionBudget of a role: one at a time, and those that do not work anyway. */}}
{{- define "berth.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "berth.metadata" (dict "root" .root "name" .role "component" .role) | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .role }}
{{- end }}

{{- /*
The command line of a container, those of the chart and then the role's extraArgs, which may not say again what the chart says. Argument:
dict of args (the chart's), values (the role's) and of (its name in the values).
*/}}
{{- define "berth.args" -}}
{{- $said := dict }}
{{- range .args }}
{{- $_ := set $said (regexFind "^--[a-z0-9-]+" .) . }}
{{- end }}
{{- range .values.extraArgs }}
{{- with get $said (regexFind "^--[a-z0-9-]+" .) }}
{{- fail (printf "%s.extraArgs: the chart itself gives %s. Take yours out; README.md of the chart says which value it follows, if any" $.of .) }}
{{- end }}
{{- end }}
{{- range concat .args (.values.extraArgs | default list) }}
- {{ toJson . }}
{{- end }}
{{- end }}

{{- /* Environment variables of all pods and of a role. Argument: as of berth.pod. */}}
{{- define "berth.env" -}}
{{- with concat .root.Values.env (.values.env | default list) }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- /*
A role: its Deployment and its PodDisruptionBudget. Argument: dict of root, role, port, its values, of (their name), and what it has beyond
others: args, vars (name to value), ports (name to number), token, annotations (of its pods), more (bytes of memory for what it runs), and as text: mounts, volumes, beside (containers).
*/}}
{{- define "berth.role" -}}
{{- $values := .root.Values -}}
{{- $args := list .role "--id=$(POD_NAME)" (printf "--listen=0.0.0.0:%d" (int .port)) "--advertise=$(POD_IP)" "--metrics-listen=0.0.0.0:9090" "--etcd-endpoints=$(ETCD_ENDPOINTS)" }}
{{- if $values.etcd.insecurePlaintext }}
{{- $args = append $args "--etcd-insecure-plaintext" }}
{{- else }}
{{- $args = concat $args (list "--etcd-ca=/tls/ca.crt" "--etcd-cert=/tls/tls.crt" "--etcd-key=/tls/tls.key") }}
{{- end }}
{{- $args = concat $args (list "--tls-ca=/tls/ca.crt" "--tls-cert=/tls/tls.crt" "--tls-key=/tls/tls.key") (.args | default list) -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "berth.metadata" (dict "root" .root "name" .role "component" .role) | nindent 2 }}
spec:
  {{- with .values.replicas }}
  replicas: {{ . }}
  {{- end }}
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .role }}
  template:
    metadata:
      {{- include "berth.podMetadata" . | nindent 6 }}
    spec:
      {{- include "berth.pod" . | trim | nindent 6 }}
      containers:
        - name: {{ .role }}
          image: {{ include "berth.image" (list .root $values.image) }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args:
            {{- include "berth.args" (dict "args" $args "values" .values "of" .of) | trim | nindent 12 }}
          env:
            - name: POD_NAME
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: POD_IP
              valueFrom:
                fieldRef:
                  fieldPath: status.podIP
            - name: ETCD_ENDPOINTS
              value: {{ include "berth.etcdEndpoints" .root }}
            {{- range $name, $value := .vars }}
            - name: {{ $name }}
              value: {{ $value | quote }}
            {{- end }}
            {{- with include "berth.env" . }}
            {{- . | nindent 12 }}
            {{- end }}
          ports:
            - name: grpc
              containerPort: {{ .port }}
            {{- range $name, $port := .ports }}
            - name: {{ $name }}
              containerPort: {{ $port }}
            {{- end }}
            - name: metrics
              containerPort: 9090
          # It answers as soon as the process has read its files; five minutes are for a machine, or a volume, that is very slow.
          startupProbe:
            httpGet:
              path: /livez
              port: metrics
              scheme: HTTPS
            periodSeconds: 2
            failureThreshold: 150
          # Available is a binder whose epoch is open, or one that stands by. Asked by the binary itself, since a gRPC probe of the
          # kubelet has no TLS.
          readinessProbe:
            exec:
              command: [/berth, health, "--address=127.0.0.1:{{ .port }}", --service=available, --tls-ca=/tls/ca.crt, --tls-cert=/tls/tls.crt, --tls-key=/tls/tls.key]
            periodSeconds: 5
            timeoutSeconds: 5
          livenessProbe:
            httpGet:
              path: /livez
              port: metrics
              scheme: HTTPS
            failureThreshold: 6
          securityContext:
            {{- include "berth.containerSecurity" . | nindent 12 }}
          resources:
            {{- include "berth.resources" (dict "resources" .values.resources "of" .of "more" .more) | nindent 12 }}
          volumeMounts:
            - name: tls
              mountPath: /tls
              readOnly: true
            {{- with .mounts }}
            {{- trim . | nindent 12 }}
            {{- end }}
            {{- with .values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        {{- with .beside }}
        {{- trim . | nindent 8 }}
        {{- end }}
      volumes:
        - {{ include "berth.tlsVolume" . | nindent 10 | trim }}
        {{- with .volumes }}
        {{- trim . | nindent 8 }}
        {{- end }}
        {{- with .values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
---
{{ include "berth.budget" . }}
{{- end }}

{{- /* The HorizontalPodAutoscaler of a role. Argument: as above. */}}
{{- define "berth.autoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "berth.metadata" (dict "root" .root "name" .role "component" .role) | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ .role }}
  minReplicas: {{ .values.minReplicas }}
  maxReplicas: {{ .values.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ .values.targetCPUUtilization }}
{{- end }}

{{- /* A NetworkPolicy that lets some roles reach one port of another. Argument: dict of root, role, port (a name), from (roles). */}}
{{- define "berth.from" -}}
- from:
    {{- range .from }}
    - podSelector:
        matchLabels:
          app.kubernetes.io/name: {{ . }}
    {{- end }}
  ports:
    - port: {{ .port }}
{{- end }}

{{- define "berth.policy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "berth.metadata" (dict "root" .root "name" .role "component" .role) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ .role }}
  policyTypes: [Ingress]
  ingress:
{{- end }}

{{- /* Where those may go who may go to Berth only. */}}
{{- define "berth.toBerth" -}}
- to:
    - podSelector:
        matchLabels:
          app.kubernetes.io/part-of: berth
- to:
    - namespaceSelector: {}
      podSelector:
        matchLabels:
          k8s-app: kube-dns
  ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- end }}

{{- /* Where an etcd is that is not the release's: an address that policies cannot name, with the ports of its endpoints. */}}
{{- define "berth.toEtcd" -}}
{{- if not .Values.etcd.enabled }}
{{- $ports := list }}
{{- range .Values.etcd.endpoints }}
{{- $ports = append $ports (regexFind ":[0-9]+$" (urlParse .).host | trimPrefix ":" | default "2379") }}
{{- end }}
- ports:
    {{- range sortAlpha (uniq $ports) }}
    - port: {{ . }}
      protocol: TCP
    {{- end }}
{{- end }}
{{- end }}

{{- /* The bytes of a quantity of memory, as text. */}}
{{- define "berth.bytes" -}}
{{- $text := toString . }}
{{- if regexMatch "^[0-9.]+([eE][+-]?[0-9]+)?$" $text }}
{{- int64 (float64 $text) }}
{{- else }}
{{- $units := dict "m" 0.001 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000
  "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 }}
{{- $number := regexFind "^[0-9.]+" $text }}
{{- $unit := get $units (trimPrefix $number $text) }}
{{- if and $number $unit }}
{{- int64 (mulf (float64 $number) $unit) }}
{{- else }}
{{- fail (printf "%s: no quantity of memory. Write it as 512Mi, or 2Gi" $text) }}
{{- end }}
{{- end }}
{{- end }}

{{- /*
The resources of a container. Who requests more memory than the default limit, and gives no limit, has none: the API server refuses a request above the
limit. Argument: dict of resources, of (their name in the values), and more (bytes that go onto the default limit).
*/}}
{{- define "berth.resources" -}}
{{- $defaults := dict "binder" "2Gi" "queue" "1Gi" "filterWorker" "1Gi" "scoreWorker" "1Gi" "gateway" "1Gi" "yoda" "2Gi" "yoda.collector" "128Mi" }}
{{- $resources := deepCopy .resources }}
{{- $limit := ($resources.limits | default dict).memory }}
{{- if $limit }}
{{- if and .more (eq (toString $limit) (get $defaults .of)) }}
{{- $_ := set $resources.limits "memory" (printf "%dMi" (div (add (include "berth.bytes" $limit | int64) .more 1048575) 1048576)) }}
{{- end }}
{{- if gt (include "berth.bytes" $resources.requests.memory | int64) (include "berth.bytes" $resources.limits.memory | int64) }}
{{- if ne (toString $limit) (get $defaults .of | default "") }}
{{- fail (printf "%s.resources: it requests %v of memory, and is limited to %v. Raise limits.memory, or set it to null" .of $resources.requests.memory $limit) }}
{{- end }}
{{- $_ := set $resources "limits" (omit $resources.limits "memory") }}
{{- end }}
{{- end }}
{{- toYaml $resources }}
{{- end }}
