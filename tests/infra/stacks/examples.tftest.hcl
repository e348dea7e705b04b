# The example fleets that the other files do not cover. The layouts of interfaces are written out from AWS's own pages
# (EC2 user guide, "Maximize network bandwidth on Amazon EC2 instances with multiple network cards", 2026-11).
mock_provider "aws" {
  source = "./mocks"
}

run "the_cheapest_that_serves" {
  command = plan
  module {
    source = "./one-gpu/stacks/ecs"
  }

  assert {
    condition     = length(aws_ecs_cluster_capacity_providers.capacity-providers.capacity_providers) == 6
    error_message = "two families, each as spot and on demand"
  }

  assert {
    condition     = sum([for group in [aws_autoscaling_group.general-g6-b-spot-machines, aws_autoscaling_group.general-g6-b-od-machines] : group.min_size]) == 1
    error_message = "the first choice keeps the least"
  }
}

run "four_zones_by_karpenter" {
  command = plan
  module {
    source = "./eks-multi-az/stacks/eks"
  }

  assert {
    condition     = length(aws_eks_cluster.cluster.vpc_config[0].subnet_ids) == 4 && !aws_eks_cluster.cluster.vpc_config[0].endpoint_public_access
    error_message = "the cluster stands in four zones, and its endpoint is private"
  }

  assert {
    condition     = aws_cloudwatch_log_group.cluster-logs.retention_in_days == 365 && contains(aws_eks_cluster.cluster.enabled_cluster_log_types, "audit")
    error_message = "the audit log is kept for a year"
  }

  assert {
    condition     = aws_sqs_queue.interruptions.message_retention_seconds == 300
    error_message = "Karpenter hears of machines that are about to go"
  }
}

run "p5_in_a_capacity_block" {
  command = plan
  module {
    source = "./p5-efa/stacks/eks"
  }

  assert {
    condition = toset([for one in aws_launch_template.h100-p5-48xlarge-b-cb-template.network_interfaces :
      "${one.network_card_index}/${one.device_index}/${one.interface_type}"]) == toset(concat(
      ["0/0/interface", "0/1/efa-only"],
      [for card in range(1, 32) : "${card}/0/efa-only"],
    ))
    error_message = "P5 has EFA on each of its 32 cards, and one address"
  }

  assert {
    condition     = length(aws_eks_node_group.h100-p5-48xlarge-b-cb.subnet_ids) == 1 && aws_eks_node_group.h100-p5-48xlarge-b-cb.capacity_type == "CAPACITY_BLOCK"
    error_message = "the block's machines stand in its zone"
  }

  assert {
    condition = alltrue([for rule in [aws_vpc_security_group_ingress_rule.efa-ingress, aws_vpc_security_group_egress_rule.efa-egress] :
      rule.ip_protocol == "-1"
    ])
    error_message = "EFA's group lets everything of its own in and out"
  }
}

run "trainium2_in_a_capacity_block" {
  command = plan
  module {
    source = "./trn2/stacks/eks"
  }

  assert {
    condition = [for one in aws_launch_template.trainium-trn2-48xlarge-b-cb-template.network_interfaces :
      "${one.network_card_index}/${one.device_index}/${one.interface_type}"] == concat(
      ["0/0/interface", "0/1/efa-only"], [for card in range(1, 16) : "${card}/0/efa-only"],
    )
    error_message = "Trainium2 has EFA on each of its 16 cards, beside the ENA interface on the first"
  }

  assert {
    condition     = length(aws_eks_node_group.trainium-trn2-48xlarge-b-cb.subnet_ids) == 1
    error_message = "EFA machines stand in one zone"
  }
}

run "trainium1_beside_gpus" {
  command = plan
  module {
    source = "./mixed/stacks/eks"
  }

  assert {
    condition = [for one in aws_launch_template.trainium-trn1-32xlarge-c-od-template.network_interfaces :
      "${one.network_card_index}/${one.device_index}/${one.interface_type}"] == concat(
      ["0/0/interface", "0/1/efa-only"], [for card in range(1, 8) : "${card}/0/efa-only"],
    )
    error_message = "Trainium1 has EFA on each of its 8 cards, beside the ENA interface on the first"
  }
}
