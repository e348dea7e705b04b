mock_data "aws_kms_alias" {
  defaults = {
    target_key_arn = "arn:aws:kms:us-west-2:123456789012:key/11111111-1111-1111-1111-111111111111"
  }
}

mock_resource "aws_ecs_task_definition" {
  defaults = {
    arn = "arn:aws:ecs:us-west-2:123456789012:task-definition/mocked:1"
  }
}

mock_resource "aws_service_discovery_service" {
  defaults = {
    arn = "arn:aws:servicediscovery:us-west-2:123456789012:service/srv-mocked"
  }
}

mock_resource "aws_appautoscaling_policy" {
  defaults = {
    arn = "arn:aws:autoscaling:us-west-2:123456789012:scalingPolicy:00000000-0000-0000-0000-000000000000:resource/ecs/service/mocked/mocked:policyName/mocked"
  }
}

mock_resource "aws_lb" {
  defaults = {
    arn      = "arn:aws:elasticloadbalancing:us-west-2:123456789012:loadbalancer/app/mocked/0123456789abcdef"
    dns_name = "internal-mocked-0123456789.us-west-2.elb.amazonaws.com"
  }
}

mock_resource "aws_lb_target_group" {
  defaults = {
    arn = "arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/mocked/0123456789abcdef"
  }
}

mock_resource "aws_lb_listener" {
  defaults = {
    arn = "arn:aws:elasticloadbalancing:us-west-2:123456789012:listener/app/mocked/0123456789abcdef/0123456789abcdef"
  }
}
