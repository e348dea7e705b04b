# What the mocked provider answers where the real one checks the form of a value. Everything else it makes up itself.
mock_data "aws_caller_identity" {
  defaults = {
    account_id = "123456789012"
    arn        = "arn:aws:sts::123456789012:assumed-role/deployer/mocked"
  }
}

mock_data "aws_iam_session_context" {
  defaults = {
    issuer_arn = "arn:aws:iam::123456789012:role/deployer"
  }
}

mock_data "aws_partition" {
  defaults = {
    partition  = "aws"
    dns_suffix = "amazonaws.com"
  }
}

mock_data "aws_vpc" {
  defaults = {
    id         = "vpc-0123456789abcdef0"
    cidr_block = "10.0.0.0/16"
  }
}

mock_resource "aws_vpc" {
  defaults = {
    id = "vpc-0a0a0a0a0a0a0a0a0"
  }
}

mock_resource "aws_iam_role" {
  defaults = {
    arn = "arn:aws:iam::123456789012:role/mocked"
  }
}

mock_resource "aws_cloudwatch_log_group" {
  defaults = {
    arn = "arn:aws:logs:us-west-2:123456789012:log-group:mocked"
  }
}

mock_resource "aws_kms_key" {
  defaults = {
    arn    = "arn:aws:kms:us-west-2:123456789012:key/00000000-0000-0000-0000-000000000000"
    key_id = "00000000-0000-0000-0000-000000000000"
  }
}

mock_resource "aws_s3_bucket" {
  defaults = {
    arn = "arn:aws:s3:::mocked"
  }
}

mock_data "aws_ssm_parameter" {
  defaults = {
    value = "ami-0123456789abcdef0"
  }
}

mock_resource "aws_eks_cluster" {
  defaults = {
    arn                   = "arn:aws:eks:us-west-2:123456789012:cluster/mocked"
    endpoint              = "https://mocked.eks.amazonaws.com"
    certificate_authority = [{ data = "bW9ja2Vk" }]
  }
}

mock_resource "aws_iam_instance_profile" {
  defaults = {
    arn = "arn:aws:iam::123456789012:instance-profile/mocked"
  }
}

mock_resource "aws_sqs_queue" {
  defaults = {
    arn = "arn:aws:sqs:us-west-2:123456789012:mocked"
    url = "https://sqs.us-west-2.amazonaws.com/123456789012/mocked"
  }
}

mock_resource "aws_launch_template" {
  defaults = {
    id = "lt-0123456789abcdef0"
  }
}

mock_resource "aws_ec2_capacity_reservation" {
  defaults = {
    arn = "arn:aws:ec2:us-west-2:123456789012:capacity-reservation/cr-0123456789abcdef9"
  }
}

mock_resource "aws_resourcegroups_group" {
  defaults = {
    arn = "arn:aws:resource-groups:us-west-2:123456789012:group/mocked"
  }
}

mock_resource "aws_lambda_function" {
  defaults = {
    arn = "arn:aws:lambda:us-east-1:123456789012:function:mocked"
  }
}
