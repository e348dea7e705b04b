mock_resource "aws_msk_configuration" {
  defaults = {
    arn             = "arn:aws:kafka:us-west-2:123456789012:configuration/mocked/12345678-1234-1234-1234-123456789012-1"
    latest_revision = 1
  }
}

mock_resource "aws_cloudwatch_log_stream" {
  defaults = {
    arn = "arn:aws:logs:us-west-2:123456789012:log-group:mocked:log-stream:mocked"
  }
}
