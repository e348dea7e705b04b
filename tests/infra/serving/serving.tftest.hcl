mock_provider "aws" {
  source = "./mocks"
}

run "aggregated" {
  module {
    source = "./stacks/serving-aggregated"
  }

  assert {
    condition = (
      [for one in aws_ecs_service.worker-0.capacity_provider_strategy : one.capacity_provider] == ["cp-fabric-general-g6e-a-spot", "cp-fabric-general-g6e-b-spot"] &&
      [for one in aws_ecs_service.worker-1.capacity_provider_strategy : one.capacity_provider] == ["cp-fabric-general-g6e-a-od", "cp-fabric-general-g6e-b-od"] &&
      aws_ecs_service.worker-0.desired_count == 2 && aws_ecs_service.worker-1.desired_count == 0
    )
    error_message = "the first choice has the tasks, the second takes those that find no instance"
  }

  assert {
    condition = (
      aws_ecs_service.worker-0.tags == tomap({ fallback = "aggregated-worker", choice = "0", unavailable = "1" }) &&
      aws_ecs_service.worker-1.tags == tomap({ fallback = "aggregated-worker", choice = "1", unavailable = "1" })
    )
    error_message = "the fallback finds both services by their tags"
  }

  assert {
    condition = alltrue([for one in [aws_ecs_service.worker-0, aws_ecs_service.worker-1, aws_ecs_service.router-0] :
      one.deployment_circuit_breaker[0].enable && one.deployment_circuit_breaker[0].rollback && one.enable_execute_command &&
      one.alarms[0].rollback && one.alarms[0].alarm_names == toset(["fabric-aggregated-errors"]) &&
      !one.network_configuration[0].assign_public_ip
    ])
    error_message = "a deployment that fails is taken back, commands can be run inside, and nothing has a public address"
  }

  assert {
    condition = (
      aws_ecs_service.worker-0.deployment_minimum_healthy_percent == 50 && aws_ecs_service.worker-0.deployment_maximum_percent == 100 &&
      aws_ecs_service.router-0.deployment_minimum_healthy_percent == 100 && aws_ecs_service.router-0.deployment_maximum_percent == 200
    )
    error_message = "GPUs make room for their successors, one replica at a time; routers need not"
  }

  assert {
    condition = (
      aws_appautoscaling_target.worker-scaling.resource_id == "service/fabric/aggregated-worker" &&
      aws_appautoscaling_target.worker-scaling.min_capacity == 2 && aws_appautoscaling_target.worker-scaling.max_capacity == 6 &&
      aws_appautoscaling_policy.worker-scaling-policy.target_tracking_scaling_policy_configuration[0].target_value == 4 &&
      aws_appautoscaling_policy.worker-scaling-policy.target_tracking_scaling_policy_configuration[0].scale_in_cooldown == 600 &&
      aws_appautoscaling_policy.worker-scaling-policy.target_tracking_scaling_policy_configuration[0].customized_metric_specification[0].metric_name == "vllm:num_requests_waiting" &&
      aws_appautoscaling_policy.worker-scaling-policy.target_tracking_scaling_policy_configuration[0].customized_metric_specification[0].namespace == "Serving/fabric/aggregated"
    )
    error_message = "replicas come and go by the engine's own queue"
  }

  assert {
    condition = (
      aws_service_discovery_service.worker-name.name == "aggregated-worker" &&
      aws_service_discovery_service.worker-name.dns_config[0].routing_policy == "MULTIVALUE" &&
      one(aws_service_discovery_service.worker-name.dns_config[0].dns_records).type == "A"
    )
    error_message = "the router finds an address for each task"
  }

  assert {
    condition = (
      one(one(aws_ecs_service.router-0.service_connect_configuration[0].service).client_alias).dns_name == "aggregated-router.fabric.internal" &&
      one(one(aws_ecs_service.router-0.service_connect_configuration[0].service).client_alias).port == 8080
    )
    error_message = "clients reach the router by one name"
  }

  assert {
    condition = alltrue([for one in [aws_cloudwatch_log_group.tasks-logs, aws_cloudwatch_log_group.metrics-logs] :
      one.kms_key_id == aws_kms_key.logs-key.arn && one.retention_in_days == 90
    ])
    error_message = "logs are encrypted and end some day"
  }

  assert {
    condition = (
      aws_vpc_security_group_ingress_rule.router-from-vpc.cidr_ipv4 == "10.0.0.0/16" &&
      aws_vpc_security_group_ingress_rule.router-from-vpc.from_port == 8080 &&
      aws_vpc_security_group_ingress_rule.engine-8000-from-router.referenced_security_group_id == aws_security_group.router-group.id
    )
    error_message = "the VPC alone reaches the router, and the router alone the engines"
  }

  assert {
    condition = (
      length(aws_vpc_security_group_ingress_rule.router-from-vpc-secondary) == 0 &&
      aws_vpc_security_group_ingress_rule.router-from-balancer.referenced_security_group_id == aws_security_group.balancer-group.id
    )
    error_message = "the load balancer reaches the router whatever its addresses are"
  }
}

run "a_network_with_a_secondary_range" {
  module {
    source = "./stacks/serving-aggregated"
  }

  override_data {
    target = data.aws_vpc.range
    values = {
      cidr_block = "10.0.0.0/16"
      cidr_block_associations = [
        { association_id = "a", cidr_block = "10.0.0.0/16", state = "associated" },
        { association_id = "b", cidr_block = "100.64.0.0/16", state = "associated" },
      ]
    }
  }

  assert {
    condition = (
      [for rule in aws_vpc_security_group_ingress_rule.router-from-vpc-secondary : rule.cidr_ipv4] == ["100.64.0.0/16"] &&
      [for rule in aws_vpc_security_group_ingress_rule.balancer-from-vpc-secondary : rule.cidr_ipv4] == ["100.64.0.0/16"] &&
      aws_vpc_security_group_ingress_rule.router-from-vpc.cidr_ipv4 == "10.0.0.0/16"
    )
    error_message = "clients in each of the VPC's ranges reach the router and the load balancer"
  }
}

run "single" {
  module {
    source = "./stacks/serving-single"
  }

  # The mocked provider gives all policies one ARN.
  override_resource {
    target = aws_appautoscaling_policy.worker-wake-policy
    values = { arn = "arn:aws:autoscaling:us-west-2:123456789012:scalingPolicy:00000000-0000-0000-0000-000000000000:resource/ecs/service/fabric/single-worker:policyName/wake" }
  }
  override_resource {
    target = aws_appautoscaling_policy.worker-sleep-policy
    values = { arn = "arn:aws:autoscaling:us-west-2:123456789012:scalingPolicy:00000000-0000-0000-0000-000000000000:resource/ecs/service/fabric/single-worker:policyName/sleep" }
  }

  assert {
    condition     = aws_ecs_service.worker-0.deployment_minimum_healthy_percent == 0 && aws_ecs_service.worker-0.deployment_maximum_percent == 100
    error_message = "where no GPU is to spare, the only replica goes before the next one comes"
  }

  assert {
    condition = (
      aws_appautoscaling_target.worker-scaling.min_capacity == 0 && aws_ecs_service.worker-0.desired_count == 1 &&
      aws_appautoscaling_policy.worker-wake-policy.step_scaling_policy_configuration[0].adjustment_type == "ChangeInCapacity" &&
      one(aws_appautoscaling_policy.worker-wake-policy.step_scaling_policy_configuration[0].step_adjustment).scaling_adjustment == 1 &&
      one(aws_appautoscaling_policy.worker-sleep-policy.step_scaling_policy_configuration[0].step_adjustment).scaling_adjustment == 0
    )
    error_message = "a role that may sleep starts with one replica, and two steps take it to none and back"
  }

  assert {
    condition = (
      aws_cloudwatch_metric_alarm.worker-sleep-alarm.alarm_actions == toset([aws_appautoscaling_policy.worker-sleep-policy.arn]) &&
      alltrue([for one in [aws_cloudwatch_metric_alarm.worker-wake-errors, aws_cloudwatch_metric_alarm.worker-wake-requests] :
        one.alarm_actions == toset([aws_appautoscaling_policy.worker-wake-policy.arn]) && one.evaluation_periods == 1
      ])
    )
    error_message = "requests that find nobody wake it, and quiet sends it to sleep"
  }
}

run "disaggregated" {
  module {
    source = "./stacks/serving-disaggregated"
  }

  assert {
    condition = alltrue([for definition in [aws_ecs_task_definition.prefill-task, aws_ecs_task_definition.decode-task] : alltrue([
      for one in jsondecode(definition.container_definitions) :
      length(one.linuxParameters.devices) == 16 &&
      one.linuxParameters.devices[15].hostPath == "/dev/infiniband/uverbs15" && one.linuxParameters.devices[15].containerPath == "/dev/infiniband/uverbs15" &&
      one.ulimits[0].softLimit == -1 && one.linuxParameters.capabilities.add == ["IPC_LOCK"] && one.linuxParameters.sharedMemorySize == 16384 &&
      one.resourceRequirements[0].value == "4"
      if contains(["prefill", "decode"], one.name)
    ])])
    error_message = "tasks see EFA's devices, lock memory, and share it"
  }

  assert {
    condition = alltrue([for rule in [aws_vpc_security_group_ingress_rule.engine-from-engine, aws_vpc_security_group_egress_rule.engine-to-engine] :
      rule.ip_protocol == "-1" && rule.security_group_id == rule.referenced_security_group_id
    ])
    error_message = "prefill and decode reach each other, in and out"
  }

  assert {
    condition     = aws_appautoscaling_policy.decode-scaling-policy.target_tracking_scaling_policy_configuration[0].customized_metric_specification[0].metric_name == "vllm:kv_cache_usage_perc"
    error_message = "decode scales by its cache"
  }
}

run "distributed" {
  module {
    source = "./stacks/serving-distributed"
  }

  assert {
    condition = alltrue([for one in [aws_ecs_service.worker-0-0-0, aws_ecs_service.worker-0-1-0, aws_ecs_service.worker-1-0-0, aws_ecs_service.worker-1-1-0] :
      one.desired_count == 1 && length(one.capacity_provider_strategy) == 1 && length(one.network_configuration[0].subnets) == 1
    ])
    error_message = "each machine of a replica is a service, all in one zone"
  }

  assert {
    condition     = aws_service_discovery_service.worker-0-0-name.name == "distributed-worker-0-0"
    error_message = "the machines of a replica find the first of them by its name"
  }
}

run "wide" {
  module {
    source = "./stacks/serving-wide"
  }

  assert {
    condition = alltrue([for one in [aws_ecs_service.prefill-0-1-0, aws_ecs_service.decode-0-0-0, aws_ecs_service.decode-0-3-0] :
      one.desired_count == 1 && length(one.network_configuration[0].subnets) == 1
    ])
    error_message = "each machine of prefill and of decode is a service, all in one zone"
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.engine-from-engine.ip_protocol == "-1"
    error_message = "a rank of decode reaches any rank of prefill, whose ports follow one another"
  }
}

run "orchestrated" {
  module {
    source = "./stacks/serving-orchestrated"
  }

  assert {
    condition = alltrue([for one in [aws_ecs_service.prefill-0-0, aws_ecs_service.prefill-1-0, aws_ecs_service.decode-0-0, aws_ecs_service.decode-2-0] :
      one.desired_count == 1 && one.deployment_minimum_healthy_percent == 0 && one.deployment_maximum_percent == 100
    ])
    error_message = "each replica is a service of one task, which makes room for its successor"
  }

  assert {
    condition = (
      aws_service_discovery_service.prefill-1-name.name == "orchestrated-prefill-1" &&
      aws_ecs_service.prefill-1-0.service_registries[0].registry_arn == aws_service_discovery_service.prefill-1-name.arn
    )
    error_message = "and has a name of its own"
  }

  assert {
    condition     = aws_ecs_task_definition.router-task.ephemeral_storage[0].size_in_gib == 100
    error_message = "the engine's image has room beside the router's on Fargate"
  }

  assert {
    condition = (
      aws_vpc_security_group_ingress_rule.engine-from-engine.referenced_security_group_id == aws_security_group.engine-group.id &&
      aws_vpc_security_group_ingress_rule.engine-8000-from-router.referenced_security_group_id == aws_security_group.router-group.id
    )
    error_message = "caches pass between engines, and the router alone calls them"
  }
}

run "multi_model" {
  module {
    source = "./stacks/serving-multi-model"
  }

  assert {
    condition     = aws_ecs_service.small-0.desired_count == 1 && aws_ecs_service.large-0.desired_count == 2 && aws_ecs_service.large-1.desired_count == 0
    error_message = "each model has services of its own"
  }
}

run "shared" {
  module {
    source = "./stacks/serving-shared"
  }

  assert {
    condition = (
      aws_ecs_service.one-0.desired_count == 1 && aws_ecs_service.one-1.desired_count == 0 &&
      aws_appautoscaling_target.one-scaling.max_capacity == 3 &&
      aws_appautoscaling_policy.one-scaling-policy.target_tracking_scaling_policy_configuration[0].customized_metric_specification[0].metric_name == "vllm:num_requests_waiting"
    )
    error_message = "models that take turns have one service, which scales by the requests that wait"
  }
}
