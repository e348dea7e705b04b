mock_provider "aws" {
  source = "./mocks"
}

run "edge" {
  module {
    source = "./stacks/gateway-edge"
  }

  assert {
    condition = (
      aws_db_instance.database.multi_az && !aws_db_instance.database.publicly_accessible && aws_db_instance.database.storage_encrypted &&
      length(aws_db_subnet_group.database-subnets.subnet_ids) == 2
    )
    error_message = "the database is private and encrypted, with a standby in another zone"
  }

  assert {
    condition = (
      aws_db_instance.database.backup_retention_period == 7 && !aws_db_instance.database.delete_automated_backups &&
      one(aws_db_parameter_group.database-parameters.parameter[*].name) == "rds.force_ssl" &&
      one(aws_db_parameter_group.database-parameters.parameter[*].value) == "1" &&
      aws_db_instance.database.parameter_group_name == aws_db_parameter_group.database-parameters.name
    )
    error_message = "the database is backed up, also after it is gone, and reached over TLS only"
  }

  assert {
    condition = (
      aws_elasticache_replication_group.cache.engine == "valkey" && aws_elasticache_replication_group.cache.transit_encryption_enabled &&
      aws_elasticache_replication_group.cache.automatic_failover_enabled && aws_elasticache_replication_group.cache.multi_az_enabled
    )
    error_message = "the cache fails over to another zone, and is reached over TLS only"
  }

  assert {
    condition = alltrue([for key in [aws_db_instance.database.kms_key_id, aws_elasticache_replication_group.cache.kms_key_id, aws_secretsmanager_secret.secret.kms_key_id, aws_cloudwatch_log_group.tasks-logs.kms_key_id] :
      key == aws_kms_key.gateway-key.arn
    ])
    error_message = "database, counts, secrets and logs are encrypted by the gateway's own key"
  }

  assert {
    condition     = aws_ecs_service.gateway-0.desired_count == 2 && one(aws_ecs_service.gateway-0.load_balancer[*].container_port) == 8080
    error_message = "two tasks are behind the load balancer"
  }
}

run "pods" {
  module {
    source = "./stacks/gateway-pods"
  }

  assert {
    condition = (
      aws_db_instance.database.instance_class == "db.r7g.large" && aws_db_instance.database.allocated_storage == 100 &&
      aws_db_instance.database.max_allocated_storage == 1000 &&
      aws_db_instance.database.backup_retention_period == 35
    )
    error_message = "sizes are the blueprint's"
  }

  assert {
    condition = (
      aws_elasticache_replication_group.cache.engine_version == "8.2" &&
      aws_elasticache_replication_group.cache.parameter_group_name == aws_elasticache_parameter_group.cache-parameters.name &&
      aws_elasticache_parameter_group.cache-parameters.family == "valkey8" &&
      one(aws_elasticache_parameter_group.cache-parameters.parameter[*].name) == "reserved-memory-percent" &&
      one(aws_elasticache_parameter_group.cache-parameters.parameter[*].value) == "30"
    )
    error_message = "small nodes that search set memory aside, and their version searches"
  }

  assert {
    condition     = aws_eks_pod_identity_association.gateway-identity.namespace == "serving" && aws_eks_pod_identity_association.gateway-identity.role_arn == aws_iam_role.pods-gate-role.arn
    error_message = "pods of the gateway have its role"
  }
}
