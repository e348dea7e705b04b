mock_provider "aws" {
  source = "./mocks"
}

run "catalog" {
  module {
    source = "./stacks/batch-catalog"
  }

  assert {
    condition = (
      aws_sfn_state_machine.workflow.name == "cotton-catalog" && aws_sfn_state_machine.workflow.type == "STANDARD" &&
      aws_sfn_state_machine.workflow.logging_configuration[0].level == "ERROR" &&
      !aws_sfn_state_machine.workflow.logging_configuration[0].include_execution_data
    )
    error_message = "the state machine logs its failures, and nothing of the rows"
  }

  assert {
    condition = (
      jsondecode(aws_sfn_state_machine.workflow.definition).States.Plan.Parameters.QueueUrl == aws_sqs_queue.queue-control.url &&
      jsondecode(aws_sfn_state_machine.workflow.definition).States.Plan.Parameters.MessageBody["token.$"] == "$$.Task.Token" &&
      jsondecode(aws_sfn_state_machine.workflow.definition).States.Notify.Parameters.Entries[0].Detail.deployment == "cotton-catalog"
    )
    error_message = "the definition comes through Terraform as it is written"
  }

  assert {
    condition = alltrue([for queue in [aws_sqs_queue.queue-control, aws_sqs_queue.queue-inbox, aws_sqs_queue.queue-ads-high, aws_sqs_queue.queue-undelivered] :
      queue.sqs_managed_sse_enabled && queue.message_retention_seconds == 1209600 && queue.visibility_timeout_seconds == 45
    ])
    error_message = "queues are encrypted, and keep a step for as long as it may wait"
  }

  assert {
    condition     = aws_sns_topic.ended.kms_master_key_id == aws_kms_key.batch-key.arn && aws_scheduler_schedule.schedule-nightly.kms_key_arn == aws_kms_key.batch-key.arn
    error_message = "notifications and schedules are encrypted by the batch's own key"
  }

  assert {
    condition = alltrue([for one in [aws_cloudwatch_log_group.tasks-logs, aws_cloudwatch_log_group.workflow-logs] :
      one.kms_key_id == aws_kms_key.batch-key.arn && one.retention_in_days == 90
    ])
    error_message = "logs are encrypted and end some day"
  }

  assert {
    condition = alltrue([for one in [aws_ecs_service.batch-worker-0, aws_ecs_service.batch-api-0] :
      one.deployment_circuit_breaker[0].rollback && one.enable_execute_command && !one.network_configuration[0].assign_public_ip
    ])
    error_message = "a deployment that fails is taken back, and nothing has a public address"
  }

  assert {
    condition = (
      aws_service_discovery_service.batch-api-name.name == "catalog-batch-api" &&
      output.url == "http://catalog-batch-api.cotton.internal:8080" &&
      one([for row in jsondecode(aws_ecs_task_definition.batch-api-task.container_definitions)[0].environment : row.value if row.name == "BATCH_STATE_MACHINE"]) == "arn:aws:states:us-west-2:123456789012:stateMachine:${aws_sfn_state_machine.workflow.name}"
    )
    error_message = "clients find the Batch API by its name, and it finds the state machine"
  }

  assert {
    condition = (
      aws_glue_catalog_table.results-table.database_name == "cotton_catalog" &&
      aws_glue_catalog_table.results-table.storage_descriptor[0].location == "s3://cotton-results-123456789012-us-west-2/batch/catalog/results/" &&
      aws_glue_catalog_table.results-table.storage_descriptor[0].columns[0].type == "string" &&
      aws_glue_catalog_table.results-table.partition_keys[1].name == "date" &&
      aws_glue_catalog_table.results-table.parameters["projection.enabled"] == "true"
    )
    error_message = "the table shows the Parquet results, in partitions that nobody registers"
  }
}

run "outside" {
  module {
    source = "./stacks/batch-outside"
  }

  assert {
    condition     = length(aws_ecs_service.batch-worker-0.capacity_provider_strategy) == 1 && one(aws_ecs_service.batch-worker-0.capacity_provider_strategy).capacity_provider == "FARGATE"
    error_message = "without spot all workers run on Fargate"
  }

  assert {
    condition = (
      !can(jsondecode(aws_ecs_task_definition.batch-worker-task.container_definitions)[0].secrets) &&
      contains(jsondecode(aws_iam_role_policy.outside-work-role-policy.policy).Statement, {
        Sid    = "Secrets"
        Effect = "Allow"
        Action = ["secretsmanager:GetSecretValue"]
        Resource = [
          "arn:aws:secretsmanager:us-west-2:123456789012:secret:mocked-AbCdEf",
          "arn:aws:secretsmanager:us-west-2:210987654321:secret:cache/login-AbCdEf"
        ]
      })
    )
    error_message = "workers read the two secrets that they are told of, and no others"
  }
}

run "pods" {
  module {
    source = "./stacks/batch-pods"
  }

  assert {
    condition = alltrue([for name, one in { worker = aws_eks_pod_identity_association.batch-worker-identity, api = aws_eks_pod_identity_association.batch-api-identity } :
      one.cluster_name == "cotton" && one.namespace == "serving" && one.service_account == "pods-batch-${name}"
    ])
    error_message = "the service accounts of charts/batch have their roles in the fleet's cluster"
  }

  assert {
    condition     = aws_sfn_state_machine.workflow.name == "cotton-pods" && aws_cloudwatch_log_group.workflow-logs.kms_key_id == aws_kms_key.batch-key.arn
    error_message = "the workflow is that of ECS, with a key of its own"
  }
}

run "pods-outside" {
  module {
    source = "./stacks/batch-pods-outside"
  }
}
