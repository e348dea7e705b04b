mock_data "aws_secretsmanager_secret" {
  defaults = {
    arn = "arn:aws:secretsmanager:us-west-2:123456789012:secret:mocked-AbCdEf"
  }
}

mock_resource "aws_sns_topic" {
  defaults = {
    arn = "arn:aws:sns:us-west-2:123456789012:mocked"
  }
}

mock_resource "aws_sfn_state_machine" {
  defaults = {
    arn = "arn:aws:states:us-west-2:123456789012:stateMachine:mocked"
  }
}
