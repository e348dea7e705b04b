mock_provider "aws" {
  source = "./mocks"
}

run "shop" {
  module {
    source = "./stacks/streaming-shop"
  }

  assert {
    condition = (
      aws_msk_cluster.kafka.client_authentication[0].sasl[0].iam && !aws_msk_cluster.kafka.client_authentication[0].unauthenticated &&
      aws_msk_cluster.kafka.encryption_info[0].encryption_in_transit[0].client_broker == "TLS" &&
      aws_msk_cluster.kafka.encryption_info[0].encryption_in_transit[0].in_cluster
    )
    error_message = "clients of Kafka log in with a role, over TLS only"
  }

  assert {
    condition = (
      length(aws_msk_cluster.kafka.broker_node_group_info[0].client_subnets) == 3 && aws_msk_cluster.kafka.number_of_broker_nodes == 3 &&
      aws_msk_cluster.kafka.kafka_version == "3.9.x" && strcontains(aws_msk_configuration.kafka-configuration.server_properties, "min.insync.replicas=2")
    )
    error_message = "brokers are in three zones, and an event is on two of them before it counts"
  }

  assert {
    condition = (
      aws_elasticache_replication_group.cache.engine == "valkey" && aws_elasticache_replication_group.cache.transit_encryption_enabled &&
      aws_elasticache_replication_group.cache.automatic_failover_enabled && aws_elasticache_replication_group.cache.multi_az_enabled
    )
    error_message = "the cache fails over to another zone, and is reached over TLS only"
  }

  assert {
    condition = alltrue([for key in [aws_msk_cluster.kafka.encryption_info[0].encryption_at_rest_kms_key_arn, aws_elasticache_replication_group.cache.kms_key_id, aws_cloudwatch_log_group.logs.kms_key_id] :
      key == aws_kms_key.stream-key.arn
    ])
    error_message = "events, answers and logs are encrypted by the stream's own key"
  }

  assert {
    condition = (
      aws_kinesisanalyticsv2_application.job.runtime_environment == "FLINK-1_20" && aws_kinesisanalyticsv2_application.job.start_application &&
      aws_kinesisanalyticsv2_application.job.application_configuration[0].application_snapshot_configuration[0].snapshots_enabled &&
      aws_kinesisanalyticsv2_application.job.application_configuration[0].flink_application_configuration[0].checkpoint_configuration[0].checkpoint_interval == 1000
    )
    error_message = "the job runs, and keeps its state while it is stopped or changed"
  }

  assert {
    condition = (
      one(aws_kinesisanalyticsv2_application.job.application_configuration[0].application_code_configuration[0].code_content[0].s3_content_location[*].file_key) == aws_s3_object.job-archive.key &&
      length(aws_kinesisanalyticsv2_application.job.application_configuration[0].vpc_configuration[0].subnet_ids) == 3
    )
    error_message = "the job is what was uploaded, and runs in the fleet's network"
  }

  assert {
    condition = (
      strcontains(aws_iam_role.shop-send-role.assume_role_policy, "ecs-tasks.amazonaws.com") &&
      aws_vpc_security_group_egress_rule.driver-https.from_port == 443 && aws_security_group.driver-group.name == "cotton-shop-driver"
    )
    error_message = "a task of a validation has a role and a way to AWS"
  }

  assert {
    condition     = output.brokers == aws_msk_cluster.kafka.bootstrap_brokers_sasl_iam && output.clients_group == aws_security_group.clients-group.id
    error_message = "producers learn where Kafka is, and which group reaches it"
  }
}

run "outside" {
  module {
    source = "./stacks/streaming-outside"
  }

  assert {
    condition = (
      aws_msk_cluster.kafka.number_of_broker_nodes == 12 && aws_msk_cluster.kafka.broker_node_group_info[0].instance_type == "kafka.m7g.xlarge" &&
      aws_msk_cluster.kafka.broker_node_group_info[0].storage_info[0].ebs_storage_info[0].volume_size == 1024 &&
      aws_elasticache_replication_group.cache.node_type == "cache.r7g.large" &&
      aws_kinesisanalyticsv2_application.job.application_configuration[0].flink_application_configuration[0].parallelism_configuration[0].parallelism == 12
    )
    error_message = "sizes are the blueprint's"
  }

  assert {
    condition = (
      aws_glue_catalog_table.results-table.database_name == aws_glue_catalog_database.results-database.name &&
      aws_glue_catalog_table.results-table.parameters["classification"] == "parquet" &&
      aws_vpc_security_group_egress_rule.job-to-s3.prefix_list_id == data.aws_prefix_list.s3-addresses.id
    )
    error_message = "answers in S3 have a table, and the job reaches S3"
  }
}
