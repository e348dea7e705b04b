from llm_serving.catalog import account_needs
from llm_serving.fleet import endpoints


def list_services(orchestrator: str) -> set[str]:
    return {row.service for row in endpoints.list_required(orchestrator)}  # type: ignore[arg-type]


def test_a_closed_network_has_the_endpoints_that_others_reach_by_the_internet() -> None:
    for orchestrator, services in (
        ("eks", {"secretsmanager", "sqs", "states"}),
        ("ecs", {"kms", "data-servicediscovery", "secretsmanager", "sqs", "states"}),
    ):
        closed = {row.service for row in endpoints.list_required(orchestrator, closed=True)}  # type: ignore[arg-type]
        assert closed - list_services(orchestrator) == services


def test_drivers_of_file_systems_reach_their_service_from_a_closed_network() -> None:
    def list_added(*, closed: bool) -> set[str]:
        rows = endpoints.list_required("eks", closed=closed, csi_drivers=("efs", "fsx", "s3"))
        return {row.service for row in rows} - {row.service for row in endpoints.list_required("eks", closed=closed)}

    assert list_added(closed=True) == {"elasticfilesystem", "fsx"}
    assert list_added(closed=False) == set()


def test_both_orchestrators_need_endpoints_for_images_and_credentials() -> None:
    assert {"ecr.api", "ecr.dkr", "logs", "sts", "ssm", "ssmmessages"} == list_services("eks") & list_services("ecs")


def test_eks_needs_its_own_endpoints_and_none_of_ecs() -> None:
    assert {"eks", "eks-auth", "ec2", "elasticloadbalancing", "autoscaling"} == list_services("eks") - list_services(
        "ecs"
    )


def test_ecs_needs_its_own_endpoints_and_none_of_eks() -> None:
    assert {"ecs", "ecs-agent", "ecs-telemetry"} == list_services("ecs") - list_services("eks")


def test_a_fleet_with_both_orchestrators_needs_both_sets_of_endpoints() -> None:
    assert list_services("both") == list_services("eks") | list_services("ecs")


def test_every_row_has_a_reason() -> None:
    assert all(len(row.reason) > 20 for row in account_needs.load_fleet().endpoints)


def test_s3_has_no_interface_endpoint_because_its_gateway_endpoint_is_free() -> None:
    assert "s3" not in {row.service for row in account_needs.load_fleet().endpoints}
