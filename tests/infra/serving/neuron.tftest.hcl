mock_provider "aws" {
  source = "./mocks"
}

run "neuron" {
  module {
    source = "./stacks/serving-neuron"
  }

  assert {
    condition = alltrue([
      for one in jsondecode(aws_ecs_task_definition.worker-task.container_definitions) :
      length(one.linuxParameters.devices) == 16 && one.dependsOn[0].condition == "SUCCESS" if one.name == "worker"
    ])
    error_message = "a replica has its machine's devices, and starts when its weights are there"
  }

  assert {
    condition = (
      one(aws_ecs_task_definition.worker-task.volume).name == "fetched" &&
      [for one in aws_ecs_service.worker-0.capacity_provider_strategy : one.capacity_provider] == ["cp-neuron-trainium-trn2-b-od"]
    )
    error_message = "weights lie on a volume of a machine with devices"
  }
}
