"""The targets on AWS, `eks` and `ecs`: where a deployment runs there, and what it is rendered to."""
