{{- /* The metadata of an object in the namespace. Argument: list of the root and the name. */}}
{{- define "berth.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels:
  app.kubernetes.io/part-of: berth
{{- end }}

{{- /* The endpoints of etcd, comma-separated. */}}
{{- define "berth.etcdEndpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- range $i := until 3 -}}{{ if $i }},{{ end }}https://etcd-{{ $i }}.etcd.{{ $.Release.Namespace }}.svc:2379{{- end -}}
{{- else -}}
{{- join "," .Values.etcd.endpoints -}}
{{- end -}}
{{- end }}

{{- /* The spec of a pod, but for its containers and volumes. Argument: dict of root and role. */}}
{{- define "berth.pod" -}}
{{- if eq .root.Values.schedulerName (.root.Values.ownSchedulerName | default "default-scheduler") }}
{{- fail (printf "ownSchedulerName: Berth's own pods would be %s's, which is Berth (schedulerName): after the loss of all of them none would be placed. Set ownSchedulerName to a name that another scheduler has, such as kube-scheduler under another name: docs/deploy.md, \"In kube-scheduler's place\"" .root.Values.schedulerName) }}
{{- end }}
{{- with .root.Values.ownSchedulerName }}
schedulerName: {{ . }}
{{- end }}
serviceAccountName: {{ .root.Release.Name }}-{{ .role }}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
priorityClassName: {{ .root.Release.Name }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        app.kubernetes.io/name: {{ $.role }}
    {{- if ne $.role "etcd" }}
    matchLabelKeys: [pod-template-hash]
    {{- end }}
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
  {{- include "berth.metadata" (list .root .role) | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .role }}
{{- end }}

{{- /*
A role: its Deployment and its PodDisruptionBudget. Argument: dict of root, role, port, its values, and what it has beyond
others: args, env (name to value), ports (name to number), token, and as text: mounts, volumes, beside (containers).
*/}}
{{- define "berth.role" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "berth.metadata" (list .root .role) | nindent 2 }}
spec:
  {{- with .values.replicas }}
  replicas: {{ . }}
  {{- end }}
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ .role }}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {{ .role }}
        app.kubernetes.io/part-of: berth
    spec:
      {{- include "berth.pod" . | trim | nindent 6 }}
      containers:
        - name: {{ .role }}
          image: {{ .root.Values.image.repository }}:{{ .root.Values.image.tag }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args:
            - {{ .role }}
            - --id=$(POD_NAME)
            - --listen=0.0.0.0:{{ .port }}
            - --advertise=$(POD_IP)
            - --metrics-listen=0.0.0.0:9090
            - --etcd-endpoints=$(ETCD_ENDPOINTS)
            {{- if .root.Values.etcd.insecurePlaintext }}
            - --etcd-insecure-plaintext
            {{- else }}
            - --etcd-ca=/tls/ca.crt
            - --etcd-cert=/tls/tls.crt
            - --etcd-key=/tls/tls.key
            {{- end }}
            - --tls-ca=/tls/ca.crt
            - --tls-cert=/tls/tls.crt
            - --tls-key=/tls/tls.key
            {{- range .args }}
            - {{ toJson . }}
            {{- end }}
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
            {{- range $name, $value := .env }}
            - name: {{ $name }}
              value: {{ $value }}
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
            {{- toYaml .values.resources | nindent 12 }}
          volumeMounts:
            - name: tls
              mountPath: /tls
              readOnly: true
            {{- with .mounts }}
            {{- trim . | nindent 12 }}
            {{- end }}
        {{- with .beside }}
        {{- trim . | nindent 8 }}
        {{- end }}
      volumes:
        - {{ include "berth.tlsVolume" . | nindent 10 | trim }}
        {{- with .volumes }}
        {{- trim . | nindent 8 }}
        {{- end }}
---
{{ include "berth.budget" . }}
{{- end }}

{{- /* The HorizontalPodAutoscaler of a role. Argument: as above. */}}
{{- define "berth.autoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "berth.metadata" (list .root .role) | nindent 2 }}
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
  {{- include "berth.metadata" (list .root .role) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ .role }}
  policyTypes: [Ingress]
  ingress:
{{- end }}
