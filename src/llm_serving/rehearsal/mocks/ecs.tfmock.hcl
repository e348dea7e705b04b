mock_resource "aws_ecs_cluster" {
  defaults = {
    arn = "arn:aws:ecs:us-east-1:123456789012:cluster/mocked"
  }
}

mock_resource "aws_autoscaling_group" {
  defaults = {
    arn = "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:00000000-0000-0000-0000-000000000000:autoScalingGroupName/mocked"
  }
}

mock_resource "aws_ecs_capacity_provider" {
  defaults = {
    arn = "arn:aws:ecs:us-east-1:123456789012:capacity-provider/mocked"
  }
}

mock_resource "aws_service_discovery_http_namespace" {
  defaults = {
    arn = "arn:aws:servicediscovery:us-east-1:123456789012:namespace/ns-mocked"
  }
}

mock_resource "aws_cloudwatch_event_rule" {
  defaults = {
    arn = "arn:aws:events:us-east-1:123456789012:rule/mocked"
  }
}
