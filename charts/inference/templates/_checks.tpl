{{/* Checks beyond the schema. Each message has the value, the reason and the fix; all are reported at once. */}}

{{- define "inference.checks" -}}
{{- $wrong := list -}}
{{- $roles := include "inference.roles" . | fromYaml -}}
{{- $routers := list -}}
{{- $engines := list -}}
{{- $toZero := list -}}
{{- range $name, $role := $roles -}}
{{- if eq $role.kind "router" -}}{{- $routers = append $routers $name -}}{{- else -}}{{- $engines = append $engines $name -}}{{- end -}}
{{- with $role.autoscaling -}}{{- if not .min -}}{{- $toZero = append $toZero $name -}}{{- end -}}{{- end -}}
{{- $wrong = concat $wrong (include "inference.roleChecks" (dict "root" $ "name" $name "role" $role) | fromYamlArray) -}}
{{- end -}}
{{- if and (not $roles) (not .Values.route.backends) -}}
{{- $wrong = append $wrong "roles: empty: nothing would run. Fix: pass -f charts/inference/presets/PRESET.yaml, roles of your own, or route.backends" -}}
{{- end -}}
{{- $fullname := include "inference.fullname" . -}}
{{- if and $roles (contains "." $fullname) -}}
{{- $wrong = append $wrong (printf "the name %s has a dot: Kubernetes takes no Service of such a name. Fix: use another name of the release, or pass --set fullnameOverride=NAME" $fullname) -}}
{{- end -}}
{{- if and $roles (not .Values.model.served) -}}
{{- $wrong = append $wrong "model.served: empty: requests of the probes need the model's name. Fix: write the value of `model` in clients' requests" -}}
{{- end -}}
{{- if gt (len $routers) 1 -}}
{{- $wrong = append $wrong (printf "roles: %s are routers: a release has one endpoint. Fix: keep one router, or a release for each" (join " and " $routers)) -}}
{{- end -}}
{{- if and (not $routers) (gt (len $engines) 1) -}}
{{- $wrong = append $wrong (printf "roles: %s have no router: a release has one endpoint. Fix: add a role with kind: router" (join " and " $engines)) -}}
{{- end -}}
{{- if $toZero -}}
{{- if not $routers -}}
{{- $wrong = append $wrong (printf "roles.%s.autoscaling.min: 0: without a router no request can start the first replica. Fix: set min: 1, or add a role with kind: router" (first $toZero)) -}}
{{- end -}}
{{- range $routers -}}
{{- $readiness := (get $roles .).probes.readiness -}}
{{- if or $readiness.body (eq $readiness.path "/readiness") -}}
{{- $wrong = append $wrong (printf "roles.%s.probes.readiness: it requires a ready engine: while %s is scaled to zero the router would not be ready, and no request could start a replica. Fix: set readiness: {path: /liveness, body: null}" . (join " and " $toZero)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.poolMaster.image -}}
{{- with include "inference.pinCheck" (dict "at" "poolMaster" "image" .) -}}{{- $wrong = append $wrong . -}}{{- end -}}
{{- end -}}
{{- with .Values.loadBalancer -}}
{{- if and .certificate (not .public) (not .gateway.service) $.Values.networkPolicy.enabled (not $.Values.networkPolicy.clients) -}}
{{- $wrong = append $wrong "loadBalancer.certificate: the network policy lets in the pods of the namespace only, and no load balancer would find a router healthy. Fix: write the subnets' range to networkPolicy.clients, as {ipBlock: {cidr: RANGE}}" -}}
{{- end -}}
{{- if and .public (not .gateway.service) -}}
{{- $wrong = append $wrong "loadBalancer.public: true: the internet would reach the routers, and no gateway before them authenticates requests. Fix: set false, or gateway.service that authenticates" -}}
{{- else if and .public (not .webAcl) -}}
{{- $wrong = append $wrong "loadBalancer.public: true: the internet reaches the load balancer, and nothing filters or limits its requests. Fix: set false, or webAcl" -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := dict "ingress.className" .Values.ingress.className "loadBalancer.certificate" .Values.loadBalancer.certificate -}}
{{- if and $value (not $roles) -}}
{{- $wrong = append $wrong (printf "%s: the release has no roles to send requests to. Fix: set route, or roles" $key) -}}
{{- end -}}
{{- end -}}
{{- with .Values.ingress -}}
{{- if and .className $.Values.loadBalancer.certificate -}}
{{- $wrong = append $wrong "ingress.className: loadBalancer.certificate makes an Ingress of its own. Fix: keep one of the two" -}}
{{- end -}}
{{- if and .className $.Values.networkPolicy.enabled (not $.Values.networkPolicy.clients) -}}
{{- $wrong = append $wrong (printf "ingress.className: %q: the network policy lets in the pods of the namespace only. Fix: write the controller's pods to networkPolicy.clients" .className) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.route.backends (not .Values.route.gateway.name) -}}
{{- $wrong = append $wrong "route.gateway.name: empty: route.backends requires a Gateway. Fix: write the Gateway's name" -}}
{{- end -}}
{{- if .Values.route.backends -}}
{{- $sum := 0 -}}
{{- range .Values.route.backends -}}{{- $sum = add $sum (int .weight) -}}{{- end -}}
{{- if not $sum -}}
{{- $wrong = append $wrong "route.backends: all weights are 0: every request would fail. Fix: write a weight above 0" -}}
{{- end -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "\n\n%s\n" (join "\n" $wrong)) -}}
{{- end -}}
{{- end -}}

{{/* Errors of one role, as a YAML list. */}}
{{- define "inference.roleChecks" -}}
{{- $wrong := list -}}
{{- $at := printf "roles.%s" .name -}}
{{- $role := .role -}}
{{- $name := printf "%s-%s" (include "inference.fullname" .root) .name -}}
{{- if gt (len $name) 52 -}}
{{- $wrong = append $wrong (printf "%s: the name %s has %d characters: labels of pods allow 52. Fix: use a shorter name of the release or role" $at $name (len $name)) -}}
{{- end -}}
{{- $config := .root.Values.frameworkConfig -}}
{{- $own := dict "engines" true "nodes" true "pool-master" true "planner" $config.planners "picker" $config.endpointPicker "operator" (include "inference.isRay" .root) -}}
{{- if get $own .name -}}
{{- $wrong = append $wrong (printf "%s: the chart has an object %s of its own. Fix: choose another name" $at $name) -}}
{{- end -}}
{{- range $variable, $_ := $role.env -}}
{{- if hasKey $role.secretEnv $variable -}}
{{- $wrong = append $wrong (printf "%s.secretEnv.%s: env has it too. Fix: remove one of the two" $at $variable) -}}
{{- end -}}
{{- end -}}
{{- $names := list (include "inference.portName" (dict "root" .root "role" $role)) -}}
{{- $numbers := list (int $role.port) -}}
{{- range $port, $number := $role.ports -}}
{{- if has $port $names -}}
{{- $wrong = append $wrong (printf "%s.ports.%s: the name of %s.port. Fix: choose another name" $at $port $at) -}}
{{- end -}}
{{- if has (int $number) $numbers -}}
{{- $wrong = append $wrong (printf "%s.ports.%s: %d: another port of the role. Fix: choose another number" $at $port (int $number)) -}}
{{- end -}}
{{- $numbers = append $numbers (int $number) -}}
{{- end -}}
{{- $paths := list "/scratch" "/tmp" "/dev/shm" "/etc/inference" -}}
{{- range $mount, $volume := $role.mounts -}}
{{- if has $volume.path $paths -}}
{{- $wrong = append $wrong (printf "%s.mounts.%s.path: %q: the container has another volume there. Fix: choose another path" $at $mount $volume.path) -}}
{{- end -}}
{{- $paths = append $paths $volume.path -}}
{{- range $key := list "hostPath" "subPath" -}}
{{- if has ".." (splitList "/" (get $volume $key)) -}}
{{- $wrong = append $wrong (printf "%s.mounts.%s.%s: %q: Kubernetes takes no path with \"..\". Fix: write where it leads to" $at $mount $key (get $volume $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $role.volumeMounts -}}
{{- if has .mountPath $paths -}}
{{- $wrong = append $wrong (printf "%s.volumeMounts: %q: the container has another volume there. Fix: choose another path" $at .mountPath) -}}
{{- end -}}
{{- $paths = append $paths .mountPath -}}
{{- end -}}
{{- $wrong = concat $wrong (include "inference.doubleChecks" (dict "at" (printf "%s.sidecars" $at) "items" (concat $role.initContainers $role.sidecars)) | fromYamlArray) -}}
{{- $wrong = concat $wrong (include "inference.doubleChecks" (dict "at" (printf "%s.volumes" $at) "items" $role.volumes) | fromYamlArray) -}}
{{- $rollout := list (toString $role.rollout.maxSurge) (toString $role.rollout.maxUnavailable) -}}
{{- if not (without $rollout "0" "0%") -}}
{{- $wrong = append $wrong (printf "%s.rollout: maxSurge and maxUnavailable are both 0: no replica could be replaced. Fix: set maxSurge: 1, with room for one replica more, or maxUnavailable: 1" $at) -}}
{{- end -}}
{{- $image := $role.image -}}
{{- $added := concat (include "inference.additionChecks" (dict "at" (printf "%s.initContainers" $at) "containers" $role.initContainers) | fromYamlArray) (include "inference.additionChecks" (dict "at" (printf "%s.sidecars" $at) "containers" $role.sidecars) | fromYamlArray) (include "inference.volumeChecks" (dict "at" $at "role" $role) | fromYamlArray) -}}
{{- $wrong = concat $wrong $added -}}
{{- if and (not $image) (eq $role.kind "router") -}}
{{- $wrong = append $wrong (printf "%s.image: empty: vllm-router publishes no releases. Fix: build images/router, and --set defaults.router.image=REGISTRY/router:0.1.17-15" $at) -}}
{{- else if not $image -}}
{{- $wrong = append $wrong (printf "%s.image: empty. Fix: pass --set image=REPOSITORY:VERSION (the first lines of a preset describe its image)" $at) -}}
{{- else -}}
{{- with include "inference.pinCheck" (dict "at" $at "image" $image) -}}{{- $wrong = append $wrong . -}}{{- end -}}
{{- end -}}
{{- if not (or $role.command .root.Values.frameworkConfig) -}}
{{- $wrong = append $wrong (printf "%s.command: empty. Fix: write the complete command line, a list" $at) -}}
{{- end -}}
{{- if and (gt (int $role.nodes) 1) (not $role.workerCommand) -}}
{{- $wrong = append $wrong (printf "%s.workerCommand: empty: %d of the %d nodes of a replica run it. Fix: write their command line" $at (sub (int $role.nodes) 1) (int $role.nodes)) -}}
{{- end -}}
{{- $accelerator := $role.resources.accelerator -}}
{{- if and (int $accelerator.count) (not $accelerator.name) -}}
{{- $wrong = append $wrong (printf "%s.resources.accelerator.name: empty: count is %d. Fix: write nvidia.com/gpu or aws.amazon.com/neuron" $at (int $accelerator.count)) -}}
{{- end -}}
{{- if ge (int $role.drain.preStopSeconds) (int $role.drain.graceSeconds) -}}
{{- $wrong = append $wrong (printf "%s.drain.graceSeconds: %d: it includes preStopSeconds, %d: requests in flight would be killed. Fix: set more than preStopSeconds" $at (int $role.drain.graceSeconds) (int $role.drain.preStopSeconds)) -}}
{{- end -}}
{{- with $role.autoscaling -}}
{{- $wrong = concat $wrong (include "inference.scalingChecks" (dict "root" $.root "name" $.name "at" (printf "%s.autoscaling" $at) "role" $role) | fromYamlArray) -}}
{{- end -}}
{{- $wrong = concat $wrong (include "inference.efaChecks" (dict "at" $at "role" $role) | fromYamlArray) -}}
{{- toYaml $wrong -}}
{{- end -}}

{{/* The error of an image that is not pinned; empty if there is none. (dict "at" PATH "image" IMAGE) */}}
{{- define "inference.pinCheck" -}}
{{- $last := splitList "/" .image | last -}}
{{- if and (not (contains "@sha256:" .image)) (or (not (contains ":" $last)) (hasSuffix ":latest" $last) (hasSuffix ":" $last)) -}}
{{- printf "%s.image: %q: not pinned: replicas could differ, and a rollback would have no effect. Fix: write REPOSITORY:VERSION or REPOSITORY@sha256:DIGEST" .at .image -}}
{{- end -}}
{{- end -}}

{{/* Errors of a user's containers: none may get more rights than the role's own has. (dict "at" PATH "containers" LIST) */}}
{{- define "inference.additionChecks" -}}
{{- $wrong := list -}}
{{- range $container := .containers -}}
{{- $at := printf "%s.%s" $.at $container.name -}}
{{- with include "inference.pinCheck" (dict "at" $at "image" $container.image) -}}{{- $wrong = append $wrong . -}}{{- end -}}
{{- if or (hasPrefix "fetch-" $container.name) (has $container.name (list "engine" "router" "main" "check-node")) -}}
{{- $wrong = append $wrong (printf "%s: the chart has a container of this name. Fix: choose another name" $at) -}}
{{- end -}}
{{- if not (dig "resources" "limits" "memory" "" $container) -}}
{{- $wrong = append $wrong (printf "%s.resources.limits.memory: not set: it could take the memory of the engine. Fix: write requests and a limit of memory" $at) -}}
{{- end -}}
{{- $security := $container.securityContext | default dict -}}
{{- range $key, $safe := dict "privileged" false "allowPrivilegeEscalation" false "runAsNonRoot" true -}}
{{- if and (hasKey $security $key) (ne (get $security $key) $safe) -}}
{{- $wrong = append $wrong (printf "%s.securityContext.%s: %v: it would have more rights than the role. Fix: remove it" $at $key (get $security $key)) -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey $security "runAsUser") (not (int $security.runAsUser)) -}}
{{- $wrong = append $wrong (printf "%s.securityContext.runAsUser: 0: it would have more rights than the role. Fix: write the id of another user" $at) -}}
{{- end -}}
{{- with dig "capabilities" "add" list $security -}}
{{- $wrong = append $wrong (printf "%s.securityContext.capabilities.add: %s: it would have more rights than the role. Fix: remove it" $at (join ", " .)) -}}
{{- end -}}
{{- range $container.ports -}}
{{- if .hostPort -}}
{{- $wrong = append $wrong (printf "%s.ports: hostPort %d: it listens on the node, past network policies. Fix: remove hostPort" $at (int .hostPort)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $wrong -}}
{{- end -}}

{{/* Errors of names that two of a pod's containers, or of its volumes, have. (dict "at" PATH "items" LIST) */}}
{{- define "inference.doubleChecks" -}}
{{- $wrong := list -}}
{{- $names := list -}}
{{- range .items -}}
{{- if has .name $names -}}
{{- $wrong = append $wrong (printf "%s.%s: another one of the pod has this name. Fix: choose another name" $.at .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- toYaml $wrong -}}
{{- end -}}

{{/* Errors of a role's further volumes. (dict "at" PATH "role" ROLE) */}}
{{- define "inference.volumeChecks" -}}
{{- $wrong := list -}}
{{- range $volume := .role.volumes -}}
{{- $at := printf "%s.volumes.%s" $.at $volume.name -}}
{{- if or (hasPrefix "mount-" $volume.name) (has $volume.name (list "scratch" "tmp" "shm" "probe")) -}}
{{- $wrong = append $wrong (printf "%s: the chart has a volume of this name. Fix: choose another name" $at) -}}
{{- end -}}
{{- if $volume.hostPath -}}
{{- $wrong = append $wrong (printf "%s.hostPath: a folder of the node. Fix: use %s.mounts, whose folder the role's container alone sees" $at $.at) -}}
{{- end -}}
{{- end -}}
{{- toYaml $wrong -}}
{{- end -}}

{{- define "inference.scalingChecks" -}}
{{- $wrong := list -}}
{{- $scaling := .role.autoscaling -}}
{{- if gt (int $scaling.min) (int $scaling.max) -}}
{{- $wrong = append $wrong (printf "%s.min: %d: above max, %d. Fix: write %d or less" .at (int $scaling.min) (int $scaling.max) (int $scaling.max)) -}}
{{- end -}}
{{- if and (eq $scaling.metric "kv-usage") (ge (float64 $scaling.threshold) 1.0) -}}
{{- $wrong = append $wrong (printf "%s.threshold: %v: kv-usage is at most 1: it would never scale out. Fix: write 0.8" .at $scaling.threshold) -}}
{{- end -}}
{{- if not (get .root.Values.metrics.engine $scaling.metric) -}}
{{- $wrong = append $wrong (printf "%s.metric: %s: metrics.engine has no such name. Fix: pass --set metrics.engine.%s=PROMETHEUS_NAME" .at $scaling.metric $scaling.metric) -}}
{{- end -}}
{{- if and $scaling.slo (not (include "inference.missedLimits" .)) -}}
{{- $wrong = append $wrong (printf "%s.slo: true: slo.latencies has no limit of this role. Fix: add one, or remove slo" .at) -}}
{{- end -}}
{{- if eq .role.kind "router" -}}
{{- $wrong = append $wrong (printf "%s: routers have no such metrics. Fix: set replicas" .at) -}}
{{- end -}}
{{- if not .root.Values.monitoring.podMonitors -}}
{{- $wrong = append $wrong (printf "%s: it needs the metrics of PodMonitors: monitoring.podMonitors is false. Fix: set monitoring: {podMonitors: true}" .at) -}}
{{- end -}}
{{- toYaml $wrong -}}
{{- end -}}

{{- define "inference.efaChecks" -}}
{{- $wrong := list -}}
{{- $role := .role -}}
{{- $command := join " " (concat ($role.command | default list) ($role.workerCommand | default list)) -}}
{{- $efa := int $role.resources.efa -}}
{{- if contains "NixlConnector" $command -}}
{{- if and $efa (not (contains "LIBFABRIC" $command)) -}}
{{- $wrong = append $wrong (printf "%s.command: its kv-transfer-config has no backend: NIXL then uses UCX, which is TCP on EFA: about 98 s to the first token instead of 1 s. Fix: write \"kv_connector_extra_config\": {\"backends\": [\"LIBFABRIC\"]}" .at) -}}
{{- end -}}
{{- if not (hasKey $role.env "VLLM_NIXL_SIDE_CHANNEL_HOST") -}}
{{- $wrong = append $wrong (printf "%s.env.VLLM_NIXL_SIDE_CHANNEL_HOST: not set: the other roles would connect to localhost. Fix: set $(POD_IP)" .at) -}}
{{- end -}}
{{- end -}}
{{- $placement := $role.placement -}}
{{- if and $efa (eq (int $role.nodes) 1) (not $placement.oneZone) (ne (len $placement.zones) 1) -}}
{{- $wrong = append $wrong (printf "%s.placement: EFA does not cross zones: these pods may be scheduled in any of %s. Fix: set oneZone: true, or a single zone in zones" .at (join ", " $placement.zones | default "several")) -}}
{{- end -}}
{{- toYaml $wrong -}}
{{- end -}}
