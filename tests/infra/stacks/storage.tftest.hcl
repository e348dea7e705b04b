mock_provider "aws" {
  source = "./mocks"
}

run "buckets_and_registries" {
  module {
    source = "./eks/stacks/storage"
  }

  assert {
    condition = (
      output.model_bucket == "demo-models-123456789012-us-west-2" &&
      output.results_bucket == "demo-results-123456789012-us-west-2"
    )
    error_message = "bucket names are the account's own, and the same every time"
  }

  assert {
    condition     = !aws_s3_bucket.models.force_destroy && !aws_s3_bucket.results.force_destroy && !aws_ecr_repository.image-vllm.force_delete
    error_message = "on AWS nothing that holds data is taken away with its stack"
  }

  assert {
    condition = alltrue([for versioning in [aws_s3_bucket_versioning.models-versioning, aws_s3_bucket_versioning.results-versioning] :
    versioning.versioning_configuration[0].status == "Enabled"])
    error_message = "both buckets keep versions"
  }

  assert {
    condition = alltrue(flatten([for encryption in [
      aws_s3_bucket_server_side_encryption_configuration.models-encryption,
      aws_s3_bucket_server_side_encryption_configuration.results-encryption,
      ] : [for rule in encryption.rule : [
        rule.bucket_key_enabled,
        rule.apply_server_side_encryption_by_default[0].sse_algorithm == "aws:kms",
        rule.apply_server_side_encryption_by_default[0].kms_master_key_id == output.kms_key_arn,
    ]]]))
    error_message = "both buckets are encrypted with the fleet's key, through a bucket key"
  }

  assert {
    condition = alltrue(flatten([for block in [
      aws_s3_bucket_public_access_block.models-public-access, aws_s3_bucket_public_access_block.results-public-access,
    ] : [block.block_public_acls, block.block_public_policy, block.ignore_public_acls, block.restrict_public_buckets]]))
    error_message = "no way leads to a public object"
  }

  assert {
    condition = alltrue([for policy in [aws_s3_bucket_policy.models-policy, aws_s3_bucket_policy.results-policy] :
      jsondecode(policy.policy).Statement[0] == {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = ["arn:aws:s3:::mocked", "arn:aws:s3:::mocked/*"]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }])
    error_message = "plain HTTP is refused for buckets and objects"
  }

  assert {
    condition = alltrue([for ownership in [aws_s3_bucket_ownership_controls.models-ownership, aws_s3_bucket_ownership_controls.results-ownership] :
    ownership.rule[0].object_ownership == "BucketOwnerEnforced"])
    error_message = "access lists are off"
  }

  assert {
    condition = (
      [for rule in aws_s3_bucket_lifecycle_configuration.models-lifecycle.rule : rule.id] == ["old-versions", "abandoned-uploads"] &&
      aws_s3_bucket_lifecycle_configuration.models-lifecycle.rule[0].noncurrent_version_expiration[0].noncurrent_days == 30 &&
      aws_s3_bucket_lifecycle_configuration.models-lifecycle.rule[1].abort_incomplete_multipart_upload[0].days_after_initiation == 7
    )
    error_message = "models stay; their old versions and abandoned uploads go"
  }

  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.results-lifecycle.rule[2].expiration[0].days == 90
    error_message = "results go after the time that the fleet file says"
  }

  assert {
    condition = (
      aws_ecr_repository.image-vllm.image_tag_mutability == "IMMUTABLE" &&
      aws_ecr_repository.image-vllm.image_scanning_configuration[0].scan_on_push &&
      aws_ecr_repository.image-vllm.encryption_configuration[0].kms_key == output.kms_key_arn &&
      aws_ecr_repository.image-vllm.name == "demo/vllm"
    )
    error_message = "an image's tag never moves, it is scanned, and it is encrypted with the fleet's key"
  }

  assert {
    condition     = aws_s3_bucket_notification.results-events.eventbridge && aws_s3_bucket_notification.results-events.bucket == aws_s3_bucket.results.bucket
    error_message = "EventBridge hears of files in inboxes"
  }

  assert {
    condition     = output.repositories == { vllm = aws_ecr_repository.image-vllm.repository_url, vllm-cpu = aws_ecr_repository.image-vllm-cpu.repository_url, llama-cpp = aws_ecr_repository.image-llama-cpp.repository_url, diffusion = aws_ecr_repository.image-diffusion.repository_url, router = aws_ecr_repository.image-router.repository_url, load-driver = aws_ecr_repository.image-load-driver.repository_url, batch-worker = aws_ecr_repository.image-batch-worker.repository_url, gateway = aws_ecr_repository.image-gateway.repository_url }
    error_message = "registries are handed on by the image's name"
  }

  assert {
    condition = (
      aws_kms_key.storage-key.enable_key_rotation && aws_kms_key.storage-key.deletion_window_in_days == 30 &&
      jsondecode(aws_kms_key.storage-key.policy).Statement[*].Principal == [{ AWS = "arn:aws:iam::123456789012:root" }]
    )
    error_message = "the key is rotated, and open to the account's own IAM policies alone"
  }
}

run "several_registries_with_the_state_in_s3" {
  module {
    source = "./s3/stacks/storage"
  }

  assert {
    condition     = keys(output.repositories) == ["batch-worker", "vllm"]
    error_message = "a registry for each image"
  }

  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.results-lifecycle.rule[2].expiration[0].days == 7
    error_message = "results go after the time that the fleet file says"
  }
}
