mock_provider "aws" {
  source = "./mocks"
}

run "a_new_network_for_eks" {
  module {
    source = "./eks/stacks/network"
  }

  assert {
    condition     = output.vpc_id == aws_vpc.vpc.id && aws_vpc.vpc.enable_dns_hostnames && aws_vpc.vpc.enable_dns_support
    error_message = "interface endpoints answer under the services' own names only with both DNS settings"
  }

  assert {
    condition = output.private_subnet_ids == {
      us-west-2a = aws_subnet.private-us-west-2a.id
      us-west-2b = aws_subnet.private-us-west-2b.id
      us-west-2c = aws_subnet.private-us-west-2c.id
    }
    error_message = "private subnets are handed on by zone"
  }

  assert {
    condition = alltrue([for subnet in [
      aws_subnet.private-us-west-2a, aws_subnet.private-us-west-2b, aws_subnet.private-us-west-2c,
      aws_subnet.public-us-west-2a, aws_subnet.public-us-west-2b, aws_subnet.public-us-west-2c,
    ] : !subnet.map_public_ip_on_launch])
    error_message = "no subnet gives out public addresses"
  }

  assert {
    condition = length(distinct([
      aws_nat_gateway.nat-us-west-2a.subnet_id, aws_nat_gateway.nat-us-west-2b.subnet_id, aws_nat_gateway.nat-us-west-2c.subnet_id,
    ])) == 3
    error_message = "each zone has a NAT gateway of its own"
  }

  assert {
    condition = (
      aws_route.private-us-west-2a-way-out.nat_gateway_id == aws_nat_gateway.nat-us-west-2a.id &&
      aws_route.private-us-west-2b-way-out.nat_gateway_id == aws_nat_gateway.nat-us-west-2b.id &&
      aws_route.private-us-west-2c-way-out.nat_gateway_id == aws_nat_gateway.nat-us-west-2c.id
    )
    error_message = "a zone's way out is its own NAT gateway"
  }

  assert {
    condition     = length(aws_default_security_group.default.ingress) + length(aws_default_security_group.default.egress) == 0
    error_message = "the default security group lets nothing through"
  }

  assert {
    condition = (
      aws_vpc_security_group_ingress_rule.endpoints-https.cidr_ipv4 == "10.0.0.0/16" &&
      aws_vpc_security_group_ingress_rule.endpoints-https.from_port == 443 &&
      aws_vpc_security_group_ingress_rule.endpoints-https.to_port == 443
    )
    error_message = "endpoints take HTTPS from inside the VPC and nothing else"
  }

  assert {
    condition = (
      aws_vpc_endpoint.s3.vpc_endpoint_type == "Gateway" && length(aws_vpc_endpoint.s3.route_table_ids) == 3 &&
      aws_vpc_endpoint.s3.service_name == "com.amazonaws.us-west-2.s3"
    )
    error_message = "S3 is reached through the gateway endpoint from each private subnet"
  }

  assert {
    condition = (
      aws_vpc_endpoint.ecr-api.private_dns_enabled && length(aws_vpc_endpoint.ecr-api.subnet_ids) == 3 &&
      aws_vpc_endpoint.eks-auth.service_name == "com.amazonaws.us-west-2.eks-auth"
    )
    error_message = "interface endpoints stand in every zone, under the services' own names"
  }

  assert {
    condition = (
      one(aws_s3_bucket_lifecycle_configuration.flow-logs-lifecycle.rule[2].expiration).days == 30 &&
      aws_flow_log.flow-log.log_destination_type == "s3" &&
      aws_kms_key.flow-logs-key.enable_key_rotation
    )
    error_message = "flow logs are encrypted with a rotated key, and end"
  }

  assert {
    condition = (
      aws_flow_log.flow-log.traffic_type == "ALL" && aws_flow_log.flow-log.vpc_id == aws_vpc.vpc.id
    )
    error_message = "flow logs hold accepted and rejected traffic of the VPC"
  }

  assert {
    condition = alltrue([
      for statement in jsondecode(aws_s3_bucket_policy.flow-logs-policy.policy).Statement :
      statement.Condition.StringEquals["aws:SourceAccount"] == "123456789012" if statement.Effect == "Allow"
    ])
    error_message = "no other account's flow logs can borrow the bucket"
  }
}

run "a_new_network_for_ecs" {
  module {
    source = "./ecs/stacks/network"
  }

  assert {
    condition     = aws_vpc_endpoint.ecs-agent.service_name == "com.amazonaws.us-west-2.ecs-agent"
    error_message = "the ECS agent reaches its service"
  }
}

run "a_network_without_a_way_out" {
  module {
    source = "./closed/stacks/network"
  }

  assert {
    condition     = aws_subnet.private-us-west-2a.cidr_block == "10.32.0.0/23"
    error_message = "a /20 gives each zone 512 addresses"
  }
}

run "an_existing_network" {
  module {
    source = "./existing/stacks/network"
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
    condition = output.private_subnet_ids == {
      us-west-2a = "subnet-0aaaaaaaaaaaaaaaa"
      us-west-2b = "subnet-0bbbbbbbbbbbbbbbb"
    }
    error_message = "the subnets of the fleet file are handed on"
  }

  assert {
    condition     = output.vpc_id == "vpc-0123456789abcdef0"
    error_message = "the VPC of the fleet file is handed on"
  }
}

run "existing_subnets_in_another_order_or_public_or_elsewhere_are_refused" {
  command = plan

  module {
    source = "./existing/stacks/network"
  }

  override_data {
    target = data.aws_subnet.private-us-west-2a
    values = { availability_zone = "us-west-2b", vpc_id = "vpc-0123456789abcdef0", map_public_ip_on_launch = false }
  }

  override_data {
    target = data.aws_subnet.private-us-west-2b
    values = { availability_zone = "us-west-2b", vpc_id = "vpc-0fffffffffffffff0", map_public_ip_on_launch = true }
  }

  expect_failures = [data.aws_subnet.private-us-west-2a, data.aws_subnet.private-us-west-2b]
}

run "endpoints_of_one_account" {
  module {
    source = "./machines/stacks/network"
  }

  override_data {
    target = data.aws_vpc_endpoint_service.sts-service
    values = { vpc_endpoint_policy_supported = true }
  }

  assert {
    condition = (
      jsondecode(aws_vpc_endpoint.sts.policy).Statement[0].Condition.StringEquals == { "aws:PrincipalAccount" = "123456789012" } &&
      jsondecode(aws_vpc_endpoint.s3.policy).Statement[0].Condition.StringEquals == {
        "aws:PrincipalAccount" = "123456789012", "aws:ResourceAccount" = "123456789012"
      }
    )
    error_message = "the endpoints serve the account by its number"
  }
}
