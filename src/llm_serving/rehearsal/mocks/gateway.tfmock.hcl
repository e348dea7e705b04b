mock_resource "aws_secretsmanager_secret" {
  defaults = {
    arn = "arn:aws:secretsmanager:us-west-2:123456789012:secret:mocked-AbCdEf"
  }
}

mock_resource "aws_db_instance" {
  defaults = {
    master_user_secret = [{ secret_arn = "arn:aws:secretsmanager:us-west-2:123456789012:secret:rds!db-mocked-AbCdEf" }]
  }
}

mock_resource "aws_ssm_parameter" {
  defaults = {
    arn = "arn:aws:ssm:us-west-2:123456789012:parameter/mocked"
  }
}

mock_data "aws_eks_cluster" {
  defaults = {
    vpc_config = [{ cluster_security_group_id = "sg-0123456789abcdef0" }]
  }
}
