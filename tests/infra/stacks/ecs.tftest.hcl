mock_provider "aws" {
  source = "./mocks"
}

run "three_zones_two_ways" {
  module {
    source = "./ecs-multi-az/stacks/ecs"
  }

  assert {
    condition     = [for setting in aws_ecs_cluster.cluster.setting : setting.value if setting.name == "containerInsights"] == ["enabled"]
    error_message = "Container Insights counts tasks, which the alarms read"
  }

  assert {
    condition = (
      aws_ecs_cluster.cluster.configuration[0].execute_command_configuration[0].logging == "OVERRIDE" &&
      aws_ecs_cluster.cluster.configuration[0].execute_command_configuration[0].kms_key_id == aws_kms_key.cluster-key.arn &&
      aws_ecs_cluster.cluster.configuration[0].execute_command_configuration[0].log_configuration[0].cloud_watch_encryption_enabled &&
      aws_ecs_cluster.cluster.configuration[0].execute_command_configuration[0].log_configuration[0].cloud_watch_log_group_name == "/aws/ecs/ecs-multi-az/exec"
    )
    error_message = "every command run inside a task is logged, encrypted with the cluster's key"
  }

  assert {
    condition = [for group in [aws_cloudwatch_log_group.exec-logs, aws_cloudwatch_log_group.insights-logs] :
      group.retention_in_days if group.kms_key_id == aws_kms_key.cluster-key.arn
    ] == [365, 90]
    error_message = "both log groups are encrypted; what was done inside tasks is kept for a year, metrics are not"
  }

  assert {
    condition = [for statement in jsondecode(aws_kms_key.cluster-key.policy).Statement : statement.Condition.ArnEquals["kms:EncryptionContext:aws:logs:arn"] if statement.Sid != "AccountUsesIam"] == [
      "arn:aws:logs:us-east-1:123456789012:log-group:/aws/ecs/ecs-multi-az/exec",
      "arn:aws:logs:us-east-1:123456789012:log-group:/aws/ecs/containerinsights/ecs-multi-az/performance",
      "arn:aws:logs:us-east-1:123456789012:log-group:/aws/lambda/ecs-multi-az-ecs-fallback",
      "arn:aws:logs:us-east-1:123456789012:log-group:/aws/lambda/ecs-multi-az-gpu-repair",
    ]
    error_message = "the key serves the cluster's own log groups"
  }

  assert {
    condition     = aws_ecs_cluster.cluster.service_connect_defaults[0].namespace == aws_service_discovery_http_namespace.service-connect.arn
    error_message = "services find each other by Service Connect without naming a namespace"
  }

  assert {
    condition     = aws_service_discovery_private_dns_namespace.peers.name == "ecs-multi-az.internal"
    error_message = "peers have a private DNS namespace"
  }

  assert {
    condition = (
      aws_autoscaling_group.general-g6e-a-spot-machines.min_size == 1 && aws_autoscaling_group.general-g6e-a-spot-machines.max_size == 8 &&
      aws_autoscaling_group.general-g6e-a-spot-machines.protect_from_scale_in &&
      one([for tag in aws_autoscaling_group.general-g6e-a-spot-machines.tag : tag.propagate_at_launch if tag.key == "AmazonECSManaged"]) &&
      length(aws_autoscaling_group.general-g6e-a-spot-machines.vpc_zone_identifier) == 1
    )
    error_message = "a spot group stands in one zone, protected, and ECS scales it"
  }

  assert {
    condition = (
      aws_ecs_capacity_provider.general-g6e-a-spot.auto_scaling_group_provider[0].auto_scaling_group_arn == aws_autoscaling_group.general-g6e-a-spot-machines.arn &&
      aws_ecs_capacity_provider.general-g6e-a-spot.auto_scaling_group_provider[0].managed_termination_protection == "ENABLED" &&
      aws_ecs_capacity_provider.general-g6e-a-spot.auto_scaling_group_provider[0].managed_draining == "ENABLED" &&
      aws_ecs_capacity_provider.general-g6e-a-spot.auto_scaling_group_provider[0].managed_scaling[0].target_capacity == 100 &&
      aws_ecs_capacity_provider.general-g6e-a-spot.auto_scaling_group_provider[0].managed_scaling[0].maximum_scaling_step_size == 8
    )
    error_message = "a capacity provider scales, protects and drains its own group"
  }

  assert {
    condition     = length(aws_ecs_cluster_capacity_providers.capacity-providers.capacity_providers) == 11
    error_message = "the cluster has every provider"
  }

  assert {
    condition = (
      length(aws_ecs_cluster_capacity_providers.capacity-providers.default_capacity_provider_strategy) == 3 &&
      alltrue([for one in aws_ecs_cluster_capacity_providers.capacity-providers.default_capacity_provider_strategy : one.weight == 1 && endswith(one.capacity_provider, "-spot")])
    )
    error_message = "the default strategy is the first pool's first choice, its zones alike"
  }

  assert {
    condition = (
      aws_lambda_function.ecs-fallback.role == aws_iam_role.ecs-fallback-role.arn &&
      aws_lambda_function.ecs-fallback.runtime == "python3.13" &&
      aws_cloudwatch_log_group.ecs-fallback-log.name == "/aws/lambda/${aws_lambda_function.ecs-fallback.function_name}" &&
      aws_cloudwatch_log_group.ecs-fallback-log.kms_key_id == aws_kms_key.cluster-key.arn
    )
    error_message = "the function that falls back has a role of its own and an encrypted log"
  }

  assert {
    condition = (
      aws_cloudwatch_event_rule.ecs-fallback-minute.schedule_expression == "rate(1 minute)" &&
      jsondecode(aws_cloudwatch_event_target.ecs-fallback-minute-target.input).cluster == "ecs-multi-az" &&
      contains(jsondecode(aws_cloudwatch_event_rule.ecs-fallback-failed.event_pattern).detail.AutoScalingGroupName, aws_autoscaling_group.general-g6e-a-spot-machines.name) &&
      aws_cloudwatch_event_target.ecs-fallback-failed-target.input_transformer[0].input_paths.group == "$.detail.AutoScalingGroupName" &&
      alltrue([for one in [aws_lambda_permission.ecs-fallback-minute-permission, aws_lambda_permission.ecs-fallback-failed-permission] : one.principal == "events.amazonaws.com"]) &&
      aws_lambda_permission.ecs-fallback-failed-permission.source_arn == aws_cloudwatch_event_rule.ecs-fallback-failed.arn
    )
    error_message = "it is called each minute, and when a group of the fleet could not start a machine"
  }

  assert {
    condition = (
      aws_lambda_event_source_mapping.gpu-repair-calls.event_source_arn == aws_sqs_queue.gpu-repair-queue.arn &&
      aws_sqs_queue.gpu-repair-queue.fifo_queue && aws_sqs_queue.gpu-repair-queue.visibility_timeout_seconds > aws_lambda_function.gpu-repair.timeout &&
      alltrue([for one in [aws_cloudwatch_event_target.gpu-repair-health-target, aws_cloudwatch_event_target.gpu-repair-minute-target] :
        one.arn == aws_sqs_queue.gpu-repair-queue.arn && one.sqs_target[0].message_group_id == "ecs-multi-az"
      ])
    )
    error_message = "broken GPUs are handled one call at a time"
  }

  assert {
    condition     = length(regexall("ECS_CLUSTER=ecs-multi-az\n", base64decode(aws_launch_template.general-g6e-a-spot-template.user_data))) == 1
    error_message = "machines are told which cluster to join"
  }

  assert {
    condition = (
      aws_launch_template.general-g6e-a-spot-template.iam_instance_profile[0].arn == aws_iam_instance_profile.instance-profile.arn &&
      aws_iam_instance_profile.instance-profile.role == "ecs-multi-az-us-east-1-instance"
    )
    error_message = "machines have the instance role"
  }

  assert {
    condition = [for statement in jsondecode(aws_iam_role_policy.instance-role-policy.policy).Statement : statement.Resource] == [
      "arn:aws:ecs:us-east-1:123456789012:cluster/ecs-multi-az",
      "arn:aws:ecs:us-east-1:123456789012:container-instance/ecs-multi-az/*",
      "*", # where to call
      "*", # Session Manager
    ]
    error_message = "the instance role may join this cluster alone"
  }
}

run "over_ten_thousand_gpus" {
  module {
    source = "./ads-scale/stacks/ecs"
  }

  assert {
    condition     = length(aws_ecs_cluster_capacity_providers.capacity-providers.capacity_providers) == 18
    error_message = "a provider for each family, zone and way to buy"
  }

  assert {
    condition     = alltrue(flatten([for pool in values(output.strategies) : [for service in pool : length(service) <= 6]]))
    error_message = "no strategy has more than six providers"
  }

  assert {
    condition = (
      length(aws_launch_template.spanning-p6-b200-48xlarge-c-cb-template.network_interfaces) == 8 &&
      [for interface in aws_launch_template.spanning-p6-b200-48xlarge-c-cb-template.network_interfaces : interface.network_card_index] == [0, 1, 2, 3, 4, 5, 6, 7] &&
      [for interface in aws_launch_template.spanning-p6-b200-48xlarge-c-cb-template.network_interfaces : interface.device_index] == [0, 0, 0, 0, 0, 0, 0, 0]
    )
    error_message = "P6 has EFA on each of its eight cards, and room for a task on the first"
  }

  assert {
    condition = (
      aws_launch_template.spanning-p6-b200-48xlarge-c-cb-template.instance_market_options[0].market_type == "capacity-block" &&
      length(aws_autoscaling_group.spanning-p6-b200-48xlarge-c-cb-machines.vpc_zone_identifier) == 1 &&
      aws_autoscaling_group.spanning-p6-b200-48xlarge-c-cb-machines.min_size == 16
    )
    error_message = "the block's machines stand in its zone"
  }

  assert {
    condition = alltrue([for rule in [aws_vpc_security_group_ingress_rule.efa-ingress, aws_vpc_security_group_egress_rule.efa-egress] :
      rule.ip_protocol == "-1" && rule.security_group_id == rule.referenced_security_group_id
    ])
    error_message = "EFA traffic stays within its group"
  }
}

run "every_kind_of_instance" {
  module {
    source = "./instances/stacks/ecs"
  }

  assert {
    condition = (
      aws_ec2_capacity_reservation.held-p5-48xlarge-b-cr-reservation.instance_count == 2 &&
      aws_resourcegroups_resource.held-p5-48xlarge-b-cr-reservations-member.group_arn == aws_launch_template.held-p5-48xlarge-b-cr-template.capacity_reservation_specification[0].capacity_reservation_target[0].capacity_reservation_resource_group_arn &&
      aws_autoscaling_group.held-p5-48xlarge-b-cr-machines.max_size == 2 &&
      aws_launch_template.held-p5-48xlarge-b-cr-template.placement[0].group_name == aws_placement_group.placement-held-b.name
    )
    error_message = "a reservation of the fleet's own holds the machines of one group, close together"
  }

  assert {
    condition = (
      aws_placement_group.placement-wide-a.strategy == "cluster" &&
      aws_launch_template.wide-p5-48xlarge-a-od-template.placement[0].group_name == aws_placement_group.placement-wide-a.name
    )
    error_message = "machines of the pool stand close together"
  }

  assert {
    condition = (
      aws_launch_template.pulled-g6e-a-od-template.block_device_mappings[1].ebs[0].snapshot_id == "snap-0123456789abcdef0" &&
      aws_launch_template.pulled-g6e-a-od-template.image_id == "ami-0123456789abcdef0"
    )
    error_message = "images come on a volume made from the snapshot, under the user's own AMI"
  }

  assert {
    condition     = aws_autoscaling_group.warm-g6e-2xlarge-a-od-machines.warm_pool[0].pool_state == "Stopped"
    error_message = "warm machines stand stopped"
  }
}
