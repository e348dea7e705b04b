{{/* framework: aibrix. Envoy beside the router: it asks AIBrix's gateway of the cluster for this release's engines only. */}}
{{- define "inference.aibrixSidecar" -}}
- name: envoy
  image: {{ .Values.frameworkConfig.aibrixGateway.proxyImage }}
  args: [--disable-hot-restart, --log-level, warn, --drain-strategy, immediate, --config-yaml, {{ include "inference.aibrixEnvoy" . | fromYaml | toJson | quote }}]
  resources:
    requests: {cpu: 500m, memory: 1Gi}
    limits: {memory: 1Gi}
{{- end -}}

{{/* How AIBrix's gateway knows a pod: by its model's name, for which a label has no room, its ports and its engine. */}}
{{- define "inference.aibrixLabels" -}}
model.aibrix.ai/port: {{ int .role.port | quote }}
model.aibrix.ai/metric-port: {{ int .role.port | quote }}
model.aibrix.ai/engine: {{ .root.Values.frameworkConfig.aibrixGateway.engine }}
# A model of the same name may run in another namespace.
inference/namespace: {{ .root.Release.Namespace | quote }}
{{- end -}}

{{- define "inference.aibrixEnvoy" -}}
{{- $aibrix := .Values.frameworkConfig.aibrixGateway -}}
{{- $http := "type.googleapis.com/envoy.extensions.filters.http" -}}
{{- $manager := "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager" -}}
{{- $router := dict "name" "envoy.filters.http.router" "typed_config" (dict "@type" (printf "%s.router.v3.Router" $http) "suppress_envoy_headers" true) -}}
{{- $wait := printf "%ds" (int .Values.route.timeoutSeconds) -}}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}
static_resources:
  listeners:
    - name: requests
      address: {socket_address: {address: 127.0.0.1, port_value: {{ int $aibrix.proxyPort }}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": {{ $manager }}
                stat_prefix: requests
                route_config:
                  virtual_hosts:
                    - name: release
                      domains: ["*"]
                      routes:
                        - match: {path: /liveness}
                          direct_response: {status: 200}
                        - match: {safe_regex: {regex: {{ printf "/v1/(%s)" (join "|" $aibrix.paths) | quote }}}}
                          stat_prefix: gateway
                          route: {cluster: gateway, timeout: {{ $wait }}, idle_timeout: {{ $wait }}}
                          request_headers_to_add:
                            - header: {key: routing-strategy, value: {{ $aibrix.strategy }}}
                              append_action: OVERWRITE_IF_EXISTS_OR_ADD
                            - header: {key: external-filter, value: {{ printf "app.kubernetes.io/instance=%s,inference/namespace=%s" (include "inference.fullname" .) .Release.Namespace | quote }}}
                              append_action: OVERWRITE_IF_EXISTS_OR_ADD
                          # The gateway would follow a client to any address.
                          request_headers_to_remove: [target-pod, config-profile, model]
                        - match: {prefix: /}
                          route: {cluster: engines, timeout: {{ $wait }}, idle_timeout: {{ $wait }}}
                http_filters:
                  # Ready with the gateway and an engine.
                  - name: envoy.filters.http.health_check
                    typed_config:
                      "@type": {{ $http }}.health_check.v3.HealthCheck
                      pass_through_mode: false
                      cluster_min_healthy_percentages: {gateway: {value: 1}, engines: {value: 1}}
                      headers: [{name: ":path", string_match: {exact: /readiness}}]
                  - {{ $router | toJson }}
    - name: metrics
      address: {socket_address: {address: 0.0.0.0, port_value: {{ int $aibrix.metricsPort }}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": {{ $manager }}
                stat_prefix: metrics
                route_config:
                  virtual_hosts:
                    - name: metrics
                      domains: ["*"]
                      routes:
                        - match: {path: /metrics, headers: [{name: ":method", string_match: {exact: GET}}]}
                          route: {cluster: admin, prefix_rewrite: /stats/prometheus}
                http_filters: [{{ $router | toJson }}]
  clusters:
    {{- range $name, $place := dict "gateway" (list $aibrix.gateway 80) "engines" (list (printf "%s-engines" (include "inference.fullname" .)) $aibrix.enginePort) "admin" (list "127.0.0.1" 9901) }}
    - name: {{ $name | quote }}
      type: STRICT_DNS
      connect_timeout: 5s
      circuit_breakers: {thresholds: [{max_connections: 40000, max_pending_requests: 40000, max_requests: 40000}]}
      load_assignment:
        cluster_name: {{ $name | quote }}
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: {{ first $place }}, port_value: {{ last $place | int }}}}}}]}]
    {{- end }}
{{- end -}}
