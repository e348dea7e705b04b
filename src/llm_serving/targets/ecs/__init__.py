"""The target `ecs`: a Terraform stack of ECS services."""
