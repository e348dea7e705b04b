mock_provider "aws" {
  source = "./mocks"
}

run "a_cluster_for_karpenter" {
  module {
    source = "./eks/stacks/eks"
  }

  assert {
    condition = (
      aws_eks_cluster.cluster.vpc_config[0].endpoint_private_access && !aws_eks_cluster.cluster.vpc_config[0].endpoint_public_access
    )
    error_message = "the endpoint is private unless the fleet file names ranges"
  }

  assert {
    condition = (
      aws_eks_cluster.cluster.encryption_config[0].resources == toset(["secrets"]) &&
      aws_eks_cluster.cluster.encryption_config[0].provider[0].key_arn == aws_kms_key.cluster-key.arn &&
      aws_kms_key.cluster-key.enable_key_rotation
    )
    error_message = "secrets are encrypted with a rotated key of the cluster's own"
  }

  assert {
    condition = (
      aws_eks_cluster.cluster.enabled_cluster_log_types == toset(["api", "audit", "authenticator", "controllerManager", "scheduler"]) &&
      aws_cloudwatch_log_group.cluster-logs.name == "/aws/eks/demo/cluster" &&
      aws_cloudwatch_log_group.cluster-logs.kms_key_id == aws_kms_key.cluster-key.arn
    )
    error_message = "every log of the control plane is kept, encrypted"
  }

  assert {
    condition = (
      aws_eks_cluster.cluster.access_config[0].authentication_mode == "API" && aws_eks_cluster.cluster.version == "1.35" &&
      !aws_eks_cluster.cluster.access_config[0].bootstrap_cluster_creator_admin_permissions &&
      keys(aws_eks_access_entry.admin) == ["arn:aws:iam::123456789012:role/deployer"] &&
      output.end_of_standard_support == "2027-03-27"
    )
    error_message = "access is by entries alone, and the version's end is said"
  }

  assert {
    condition = (
      jsondecode(aws_eks_addon.vpc-cni.configuration_values).env.ENABLE_PREFIX_DELEGATION == "true" &&
      one(aws_eks_addon.vpc-cni.pod_identity_association).service_account == "aws-node"
    )
    error_message = "the CNI hands out prefixes, with a role of its own"
  }

  assert {
    condition = (
      aws_eks_node_group.system.scaling_config[0].min_size == 3 && length(aws_eks_node_group.system.subnet_ids) >= 1 &&
      aws_eks_node_group.system.node_repair_config[0].enabled
    )
    error_message = "the system has a node in each zone, and broken ones are replaced"
  }

  assert {
    condition = (
      aws_lambda_invocation.system-settings.function_name == aws_lambda_function.node-groups.function_name &&
      aws_lambda_invocation.system-settings.triggers.group == aws_eks_node_group.system.arn &&
      jsondecode(aws_lambda_invocation.system-settings.input) == {
        cluster = "demo"
        group   = "system"
        config = {
          nodeRepairConfig = { enabled = true, maxUnhealthyNodeThresholdCount = 1, maxParallelNodesRepairedCount = 1 }
        }
        scaling = { minSize = 3, maxSize = 6 }
        block   = null
      } &&
      aws_cloudwatch_log_group.node-groups-log.kms_key_id == aws_kms_key.cluster-key.arn
    )
    error_message = "repair is capped: one at a time, and none where two of a few are broken"
  }

  assert {
    condition = (
      aws_sqs_queue.interruptions.kms_master_key_id == aws_kms_key.cluster-key.arn &&
      aws_cloudwatch_event_target.interruption-spot-queue.arn == aws_sqs_queue.interruptions.arn
    )
    error_message = "Karpenter hears of interruptions through an encrypted queue"
  }

  assert {
    condition     = aws_eks_access_entry.karpenter-nodes.type == "EC2_LINUX"
    error_message = "Karpenter's nodes may join"
  }
}

run "an_existing_network" {
  module {
    source = "./existing/stacks/eks"
  }

  override_data {
    target = data.aws_subnet.private-us-west-2a
    values = { id = "subnet-0aaaaaaaaaaaaaaaa", availability_zone = "us-west-2a", vpc_id = "vpc-0123456789abcdef0", map_public_ip_on_launch = false }
  }

  override_data {
    target = data.aws_subnet.private-us-west-2b
    values = { id = "subnet-0bbbbbbbbbbbbbbbb", availability_zone = "us-west-2b", vpc_id = "vpc-0123456789abcdef0", map_public_ip_on_launch = false }
  }

  assert {
    condition = aws_eks_cluster.cluster.vpc_config[0].subnet_ids == toset([
      "subnet-0aaaaaaaaaaaaaaaa", "subnet-0bbbbbbbbbbbbbbbb",
    ])
    error_message = "the cluster stands in the subnets of the fleet file"
  }

  assert {
    condition = (
      aws_eks_cluster.cluster.kubernetes_network_config[0].ip_family == "ipv4" &&
      strcontains(base64decode(aws_launch_template.system-template.user_data), aws_eks_cluster.cluster.kubernetes_network_config[0].service_ipv4_cidr)
    )
    error_message = "EKS chooses a range of services clear of the VPC's, and nodes are told which"
  }
}

run "machines_of_every_kind" {
  module {
    source = "./machines/stacks/eks"
  }

  assert {
    condition = (
      aws_eks_cluster.cluster.vpc_config[0].endpoint_public_access &&
      aws_eks_cluster.cluster.vpc_config[0].public_access_cidrs == toset(["203.0.113.0/24"]) &&
      keys(aws_eks_access_entry.admin) == ["arn:aws:iam::123456789012:role/deployer", "arn:aws:iam::123456789012:role/platform"] &&
      toset([for policy in aws_eks_access_policy_association.admin-policy : policy.principal_arn]) == toset(keys(aws_eks_access_entry.admin))
    )
    error_message = "the endpoint is open to the named ranges alone, and the named roles administer, with one entry for the one that applies"
  }

  assert {
    condition     = aws_eks_cluster.cluster.kubernetes_network_config[0].service_ipv4_cidr == "10.100.0.0/16"
    error_message = "services take a range that the VPC does not have"
  }

  assert {
    condition = (
      aws_launch_template.block-p5en-48xlarge-c-cb-template.instance_market_options[0].market_type == "capacity-block" &&
      aws_launch_template.block-p5en-48xlarge-c-cb-template.capacity_reservation_specification[0].capacity_reservation_target[0].capacity_reservation_id == "cr-0123456789abcdef0" &&
      aws_eks_node_group.block-p5en-48xlarge-c-cb.capacity_type == "CAPACITY_BLOCK"
    )
    error_message = "a Capacity Block is named in the template, and its node group says so"
  }

  assert {
    condition = (
      aws_resourcegroups_resource.odcr-g6e-12xlarge-a-cr-reservations-member.resource_arn == "arn:aws:ec2:us-west-2:123456789012:capacity-reservation/cr-0123456789abcdef1" &&
      aws_launch_template.odcr-g6e-12xlarge-a-cr-template.capacity_reservation_specification[0].capacity_reservation_target[0].capacity_reservation_resource_group_arn == "arn:aws:resource-groups:us-west-2:123456789012:group/${aws_resourcegroups_group.odcr-g6e-12xlarge-a-cr-reservations.name}" &&
      aws_launch_template.odcr-g6e-12xlarge-a-cr-template.capacity_reservation_specification[0].capacity_reservation_preference == "capacity-reservations-only" &&
      aws_eks_node_group.odcr-g6e-12xlarge-a-spot.capacity_type == "SPOT"
    )
    error_message = "a reservation is drawn on through its resource group, and spot stands in for it"
  }

  assert {
    condition = (
      aws_ec2_capacity_reservation.held-p5-48xlarge-b-cr-reservation.instance_count == 2 &&
      aws_ec2_capacity_reservation.held-p5-48xlarge-b-cr-reservation.instance_match_criteria == "targeted" &&
      aws_ec2_capacity_reservation.held-p5-48xlarge-b-cr-reservation.end_date_type == "unlimited" &&
      aws_ec2_capacity_reservation.held-p5-48xlarge-b-cr-reservation.availability_zone == "us-west-2b" &&
      aws_ec2_capacity_reservation.held-p5-48xlarge-b-cr-reservation.placement_group_arn == "arn:aws:ec2:us-west-2:123456789012:placement-group/${aws_placement_group.placement-held-b.name}" &&
      aws_resourcegroups_resource.held-p5-48xlarge-b-cr-reservations-member.resource_arn == aws_ec2_capacity_reservation.held-p5-48xlarge-b-cr-reservation.arn &&
      aws_eks_node_group.held-p5-48xlarge-b-cr.scaling_config[0].max_size == 2 &&
      aws_eks_node_group.held-p5-48xlarge-b-od.scaling_config[0].max_size == 6 &&
      length(aws_launch_template.held-p5-48xlarge-b-od-template.capacity_reservation_specification) == 0
    )
    error_message = "a reservation of the fleet's own is made inside its placement group, and holds as many machines as it says"
  }

  assert {
    condition = toset([for one in aws_resourcegroups_group.held-p5-48xlarge-b-cr-reservations.configuration : one.type]) == toset([
      "AWS::EC2::CapacityReservationPool", "AWS::ResourceGroups::Generic",
    ])
    error_message = "the resource group is one that launch templates can target"
  }

  assert {
    condition = (
      aws_launch_template.wide-p5-48xlarge-a-od-template.placement[0].group_name == aws_placement_group.placement-wide-a.name &&
      aws_placement_group.placement-wide-a.strategy == "cluster"
    )
    error_message = "a placement group holds the pool's machines of a zone"
  }

  assert {
    condition = (
      aws_vpc_security_group_ingress_rule.efa-ingress.referenced_security_group_id == aws_security_group.efa.id &&
      aws_vpc_security_group_egress_rule.efa-egress.referenced_security_group_id == aws_security_group.efa.id &&
      aws_vpc_security_group_ingress_rule.efa-ingress.ip_protocol == "-1" && aws_vpc_security_group_egress_rule.efa-egress.ip_protocol == "-1"
    )
    error_message = "EFA's group lets in and out everything of its own"
  }

  assert {
    condition = alltrue([for group in [
      aws_eks_node_group.block-p5en-48xlarge-c-cb, aws_eks_node_group.wide-p5-48xlarge-a-od,
    ] : length(group.subnet_ids) == 1])
    error_message = "EFA machines stand in one zone"
  }

  assert {
    condition = (
      aws_eks_node_group.block-p5en-48xlarge-c-cb.scaling_config[0].desired_size == 0 &&
      jsondecode(aws_lambda_invocation.block-p5en-48xlarge-c-cb-settings.input).scaling.minSize == 2 &&
      jsondecode(aws_lambda_invocation.block-p5en-48xlarge-c-cb-settings.input).config.updateConfig.updateStrategy == "MINIMAL"
    )
    error_message = "a Capacity Block's machines start with the block"
  }
}
