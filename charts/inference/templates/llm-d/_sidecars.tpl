{{/* framework: llm-d. What runs beside the router: the endpoint picker, and Envoy, which asks it. */}}
{{- define "inference.pickerSidecars" -}}
{{- $picker := .Values.frameworkConfig.endpointPicker -}}
- name: endpoint-picker
  image: {{ $picker.image }}
  args:
    - --pool-name={{ include "inference.fullname" . }}
    - --pool-namespace={{ .Release.Namespace }}
    - --pool-group=inference.networking.k8s.io
    - --config-text={{ $picker.config | toJson }}
    - --grpc-port=9002
    - --grpc-health-port=9003
    - --metrics-port={{ int $picker.metricsPort }}
    # Network policies decide who reads them.
    - --metrics-endpoint-auth=false
    - --tracing=false
  env:
    - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  startupProbe: {grpc: {port: 9003, service: inference-extension}, periodSeconds: 2, failureThreshold: 60}
  livenessProbe: {grpc: {port: 9003, service: inference-extension}, periodSeconds: 10, timeoutSeconds: 5}
  resources:
    requests: {cpu: "1", memory: 4Gi}
    limits: {memory: 4Gi}
- name: envoy
  image: {{ $picker.proxyImage }}
  args: [--disable-hot-restart, --log-level, warn, --drain-strategy, immediate, --config-yaml, {{ include "inference.envoy" . | fromYaml | toJson | quote }}]
  resources:
    requests: {cpu: 500m, memory: 1Gi}
    limits: {memory: 1Gi}
{{- end -}}

{{/* Envoy before the engines, on loopback only: the picker names the engine in a header, and answers pass both. */}}
{{- define "inference.envoy" -}}
{{- $picker := .Values.frameworkConfig.endpointPicker -}}
{{- $http := "type.googleapis.com/envoy.extensions.filters.http" -}}
static_resources:
  listeners:
    - name: requests
      address: {socket_address: {address: 127.0.0.1, port_value: {{ int $picker.proxyPort }}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: requests
                route_config:
                  virtual_hosts:
                    - name: engines
                      domains: ["*"]
                      routes:
                        - match: {path: /liveness}
                          direct_response: {status: 200}
                          typed_per_filter_config:
                            envoy.filters.http.ext_proc: {"@type": {{ $http }}.ext_proc.v3.ExtProcPerRoute, disabled: true}
                        # Of any engine: without one the router is not ready.
                        - match: {path: /readiness}
                          route: {cluster: engines, prefix_rewrite: /health}
                        - match: {prefix: /}
                          route: {cluster: engines, timeout: {{ int .Values.route.timeoutSeconds }}s, idle_timeout: {{ int .Values.route.timeoutSeconds }}s}
                http_filters:
                  - name: envoy.filters.http.ext_proc
                    typed_config:
                      "@type": {{ $http }}.ext_proc.v3.ExternalProcessor
                      # Without the picker a request has no engine.
                      failure_mode_allow: false
                      grpc_service: {envoy_grpc: {cluster_name: picker, authority: "localhost:9002"}, timeout: 10s}
                      processing_mode:
                        request_header_mode: SEND
                        response_header_mode: SEND
                        request_body_mode: FULL_DUPLEX_STREAMED
                        response_body_mode: FULL_DUPLEX_STREAMED
                        request_trailer_mode: SEND
                        response_trailer_mode: SEND
                      message_timeout: 1000s
                  - name: envoy.filters.http.router
                    typed_config: {"@type": {{ $http }}.router.v3.Router, suppress_envoy_headers: true}
  clusters:
    - name: engines
      type: ORIGINAL_DST
      connect_timeout: 5s
      lb_policy: CLUSTER_PROVIDED
      circuit_breakers: {thresholds: [{max_connections: 40000, max_pending_requests: 40000, max_requests: 40000}]}
      original_dst_lb_config: {use_http_header: true, http_header_name: x-gateway-destination-endpoint}
    - name: picker
      type: STATIC
      connect_timeout: 5s
      circuit_breakers: {thresholds: [{max_connections: 40000, max_pending_requests: 40000, max_requests: 40000}]}
      # The picker signs its certificate itself, at each start.
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
      load_assignment:
        cluster_name: picker
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 9002}}}}]}]
{{- end -}}
