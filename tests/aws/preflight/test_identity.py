"""IAM's simulator is not in the embedded AWS: its answers are recorded here in the service's own shape."""

from __future__ import annotations

from typing import Any

import pytest

from llm_serving.aws.preflight import identity, permissions
from llm_serving.aws.preflight.identity import Identity
from llm_serving.catalog import account_needs
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import InputError, Unavailable

ROLE = Identity("123456789012", "arn:aws:sts::123456789012:assumed-role/deployer/anna")
POOL = "  general:\n    types: g6e.xlarge\n    size: 1\n"


BOUNDARY = "arn:aws:iam::123456789012:policy/platform-boundary"


def _stub_simulation(stubbed_aws: Any, decide: Any, boundary: str | None = None) -> None:
    role = {"Path": "/teams/", "RoleName": "deployer", "RoleId": "AROAEXAMPLEEXAMPLE12", "CreateDate": 0}
    arn = "arn:aws:iam::123456789012:role/teams/deployer"
    stubbed_aws.stub("iam").add_response("get_role", {"Role": {**role, "Arn": arn}}, {"RoleName": "deployer"})

    def build_response(actions: list[str]) -> dict[str, Any]:
        return {
            "EvaluationResults": [{"EvalActionName": action, **decide(action)} for action in actions],
            "IsTruncated": False,
        }

    known = {"ContextKeyName": "iam:PermissionsBoundary", "ContextKeyValues": [boundary], "ContextKeyType": "string"}
    for actions in stubbed_aws.requested_actions:
        context = {"ContextEntries": [known] if boundary else []}
        expected = {"PolicySourceArn": arn, "ActionNames": actions, **context}
        stubbed_aws.stub("iam").add_response("simulate_principal_policy", build_response(actions), expected)


def _list_asked(fleet: Fleet) -> set[str]:
    parts = (*permissions.list_actions_by_part(fleet).values(), *permissions.list_actions_by_kind(fleet).values())
    return {action for part in (*parts, account_needs.load_fleet().permissions["with_data"]) for action in part}


@pytest.fixture
def simulate_permissions(stubbed_aws: Any, read_fleet: Any) -> Any:
    fleet = read_fleet(POOL).value
    actions = sorted(_list_asked(fleet))
    stubbed_aws.requested_actions = [actions[first : first + 50] for first in range(0, len(actions), 50)]

    def collect_lines(decide: Any, boundary: str | None = None) -> dict[str, Any]:
        _stub_simulation(stubbed_aws, decide, boundary)
        with_boundary = fleet.model_copy(update={"permissions_boundary": boundary})
        return {line.name: line for line in identity.check_permissions(stubbed_aws, with_boundary, ROLE)}

    return collect_lines


def test_all_that_is_allowed_passes_by_part(simulate_permissions: Any) -> None:
    lines = simulate_permissions(lambda _: {"EvalDecision": "allowed"})
    assert list(lines) == [
        "permission to create network",
        "permission to create storage",
        "permission to create instances",
        "permission to create EKS",
        "permission to delete data",
        "permission to deploy kind: batch",
        "permission to deploy kind: gateway",
    ]
    assert {line.status for line in lines.values()} == {"pass"}
    assert lines["permission to create network"].message.startswith("all 54 ")


def test_an_outright_denial_fails_and_names_the_action(simulate_permissions: Any) -> None:
    lines = simulate_permissions(
        lambda action: {"EvalDecision": "explicitDeny" if action == "eks:CreateCluster" else "allowed"}
    )
    assert lines["permission to create EKS"].status == "fail"
    assert "actions are denied outright: eks:CreateCluster" in lines["permission to create EKS"].message
    assert lines["permission to create storage"].status == "pass"


def test_a_service_control_policy_that_denies_fails(simulate_permissions: Any) -> None:
    by_scp = {"EvalDecision": "implicitDeny", "OrganizationsDecisionDetail": {"AllowedByOrganizations": False}}
    lines = simulate_permissions(lambda action: by_scp if action == "ec2:RunInstances" else {"EvalDecision": "allowed"})
    assert lines["permission to create instances"].status == "fail"
    assert "SCP" in lines["permission to create instances"].fix


def test_a_role_that_may_only_read_fails(simulate_permissions: Any) -> None:
    lines = simulate_permissions(lambda _: {"EvalDecision": "implicitDeny"})
    kinds = {kind: lines.pop(f"permission to deploy kind: {kind}") for kind in ("batch", "gateway")}
    data = lines.pop("permission to delete data")
    assert (data.status, data.fix.split(": ")[0]) == ("warn", "only if you run blueprint fleet destroy --with-data")
    assert {line.status for line in lines.values()} == {"fail"}
    for kind, line in kinds.items():
        assert line.status == "warn"
        assert line.fix.startswith(f"only if you deploy blueprints of kind: {kind}: use another identity")
    assert "none of its" in lines["permission to create storage"].message


def test_a_permission_on_some_names_alone_is_doubted_and_not_refused(simulate_permissions: Any) -> None:
    lines = simulate_permissions(
        lambda action: {"EvalDecision": "implicitDeny" if action.startswith("s3:") else "allowed"}
    )
    assert lines["permission to create storage"].status == "warn"
    assert "are not allowed on every resource: s3:CreateBucket" in lines["permission to create storage"].message


def test_a_policy_that_allows_roles_with_the_boundary_alone_sees_it(simulate_permissions: Any) -> None:
    lines = simulate_permissions(lambda _: {"EvalDecision": "allowed"}, BOUNDARY)
    assert {line.status for line in lines.values()} == {"pass"}


def _find_boundary_check(aws: Any, fleet: Fleet) -> Any:
    checks = identity.list_checks(aws, fleet.model_copy(update={"permissions_boundary": BOUNDARY}), ROLE)
    return next((check for check in checks if check.name == "permissions boundary"), None)


def test_a_boundary_that_does_not_exist_fails(stubbed_aws: Any, read_fleet: Any) -> None:
    check = _find_boundary_check(stubbed_aws, read_fleet(POOL).value)
    iam = stubbed_aws.stub("iam")
    iam.add_client_error("get_policy", "NoSuchEntity", "not found", expected_params={"PolicyArn": BOUNDARY})
    (line,) = check.list_results()
    assert (line.status, line.fix) == ("fail", "create it, or correct permissions_boundary")
    assert line.message == f"{BOUNDARY} does not exist, and no role can be created with it"
    iam.add_response("get_policy", {"Policy": {"Arn": BOUNDARY}}, {"PolicyArn": BOUNDARY})
    (line,) = check.list_results()
    assert line.status == "pass"


def test_an_embedded_aws_is_not_asked_for_the_boundary(stubbed_aws: Any, read_fleet: Any) -> None:
    stubbed_aws.emulator = "http://127.0.0.1:1"
    assert _find_boundary_check(stubbed_aws, read_fleet(POOL).value) is None
    assert "permissions boundary" not in [
        check.name for check in identity.list_checks(stubbed_aws, read_fleet(POOL).value, ROLE)
    ]


def test_who_is_neither_user_nor_role_is_not_judged(stubbed_aws: Any, read_fleet: Any) -> None:
    federated = Identity("123456789012", "arn:aws:sts::123456789012:federated-user/anna")
    (line,) = identity.check_permissions(stubbed_aws, read_fleet(POOL).value, federated)
    assert (line.status, line.is_known) == ("warn", False)
    assert line.unknown_reason == "IAM's simulator takes users and roles, and this is federated-user/anna"


def test_the_root_user_is_warned_of_and_cannot_administer_a_cluster(read_fleet: Any) -> None:
    root = Identity("123456789012", "arn:aws:iam::123456789012:root")
    fleet = read_fleet(POOL).value
    on_ecs = fleet.model_copy(update={"orchestrator": "ecs"})
    assert identity.check_credentials(root, on_ecs).status == "warn"
    assert identity.check_credentials(root, fleet).status == "fail"
    assert identity.check_credentials(ROLE, fleet).status == "pass"


OF_ACCOUNT = (
    'name: demo\naccount: "{}"\nregion: us-west-2\nzones: [us-west-2a, us-west-2b, us-west-2c]\norchestrator: ecs\n'
)


def _stub_caller(stubbed_aws: Any) -> None:
    response = {"Account": ROLE.account, "Arn": ROLE.arn, "UserId": "AROAEXAMPLEEXAMPLE12"}
    stubbed_aws.stub("sts").add_response("get_caller_identity", response)


def test_an_account_that_the_fleet_does_not_name_is_refused(stubbed_aws: Any, read_fleet: Any) -> None:
    document = read_fleet(POOL, head=OF_ACCOUNT.format("999999999999"))
    _stub_caller(stubbed_aws)
    with pytest.raises(InputError) as error:
        identity.require_account(document, stubbed_aws)
    assert str(error.value) == (
        f'{document.path}:2:10: account: "999999999999": assumed-role/deployer/anna is signed in to account '
        '123456789012. Fix: use a profile of 999999999999, set in AWS_PROFILE, or account: "123456789012".'
    )
    (line,) = identity.list_checks(stubbed_aws, document.value, ROLE)[0].list_results()
    assert (line.status, line.fix) == ("fail", "sign in to 999999999999, or correct `account`")


def test_the_account_that_the_fleet_names_is_accepted(stubbed_aws: Any, read_fleet: Any) -> None:
    document = read_fleet(POOL, head=OF_ACCOUNT.format(ROLE.account))
    _stub_caller(stubbed_aws)
    assert identity.require_account(document, stubbed_aws) == ROLE
    (line,) = identity.list_checks(stubbed_aws, document.value, ROLE)[0].list_results()
    assert line.status == "pass"


def test_refused_credentials_are_one_line(stubbed_aws: Any) -> None:
    stub = stubbed_aws.stub("sts")
    stub.add_client_error("get_caller_identity", "ExpiredToken", "The security token is expired")
    with pytest.raises(Unavailable) as error:
        identity.fetch_identity(stubbed_aws)
    assert str(error.value) == "the AWS credentials have expired. Fix: sign in again (`aws sso login`)."
    stub.add_client_error("get_caller_identity", "InvalidClientTokenId", "The security token is invalid")
    with pytest.raises(Unavailable) as error:
        identity.fetch_identity(stubbed_aws)
    assert str(error.value) == "AWS refused GetCallerIdentity: InvalidClientTokenId: The security token is invalid"


def _list_role_checks(stubbed_aws: Any, document: Any) -> dict[str, Any]:
    checks = identity.list_checks(stubbed_aws, document.value, ROLE)
    return {check.name: check for check in checks if check.name.startswith("AWSServiceRoleFor")}


def test_a_missing_spot_role_is_reported_with_the_command_that_creates_it(stubbed_aws: Any, read_fleet: Any) -> None:
    checks = _list_role_checks(stubbed_aws, read_fleet(f"{POOL}    buy: spot\n"))
    stubbed_aws.stub("iam").add_client_error("get_role", "NoSuchEntity", "not found")
    (line,) = checks["AWSServiceRoleForEC2Spot"].list_results()
    assert line.status == "warn"
    assert line.command == ("aws", "iam", "create-service-linked-role", "--aws-service-name", "spot.amazonaws.com")


def test_a_role_that_exists_passes(stubbed_aws: Any, read_fleet: Any) -> None:
    checks = _list_role_checks(stubbed_aws, read_fleet(POOL))
    role = {"Path": "/", "RoleName": "AWSServiceRoleForAutoScaling", "RoleId": "AROAEXAMPLEEXAMPLE12", "CreateDate": 0}
    arn = "arn:aws:iam::123456789012:role/AWSServiceRoleForAutoScaling"
    stubbed_aws.stub("iam").add_response("get_role", {"Role": {**role, "Arn": arn}}, {"RoleName": role["RoleName"]})
    (line,) = checks["AWSServiceRoleForAutoScaling"].list_results()
    assert line.status == "pass"


@pytest.mark.parametrize(
    ("orchestrator", "roles"),
    [
        ("eks", ["ElasticLoadBalancing", "AutoScaling", "AmazonEKS", "AmazonEKSNodegroup"]),
        ("ecs", ["AutoScaling", "ECS"]),
    ],
)
def test_a_fleet_asks_for_the_service_roles_that_it_needs(
    stubbed_aws: Any, read_fleet: Any, orchestrator: str, roles: list[str]
) -> None:
    head = f"name: demo\nregion: us-west-2\nzones: [us-west-2a, us-west-2b]\norchestrator: {orchestrator}\n"
    checks = _list_role_checks(stubbed_aws, read_fleet(POOL, head=head))
    assert list(checks) == [f"AWSServiceRoleFor{role}" for role in roles]


_API_NAMES = {"states": "stepfunctions", "elasticloadbalancing": "elbv2"}
"""AWS's own name of an API, by IAM's prefix of its actions."""

_FURTHER = (
    ("Add", "Remove"), ("AddTagsTo", "RemoveTagsFrom"), ("Associate", "Disassociate"), ("Attach", "Detach"),
    ("Authorize", "Revoke"), ("Create", "Delete"), ("Create", "Modify"), ("Create", "Update"), ("Put", "Delete"),
    ("Register", "Deregister"), ("Tag", "Untag"),
)  # fmt: skip
"""How actions begin that make things, and those that change or end them."""

_NEVER_ASKED = {"iam:DeleteServiceLinkedRole", "logs:DeleteResourcePolicy", "logs:DeleteRetentionPolicy"}
"""The account keeps these, and a log group loses its last with itself."""

_NO_CALLS = ("budgets:ModifyBudget", "elasticloadbalancing:SetWebAcl", "iam:PassRole", "lambda:InvokeFunction")


def test_every_action_of_the_tables_exists_in_its_service() -> None:
    from botocore.loaders import Loader

    loader = Loader()  # it keeps what it has read
    tables = (account_needs.load_fleet(), *account_needs.load_all().values())
    asked = {action for table in tables for actions in table.permissions.values() for action in actions}
    unasked = set[str]()
    for action in sorted(asked):
        prefix, _, name = action.partition(":")
        service = _API_NAMES.get(prefix, prefix)
        # IAM's names of S3's actions are often not those of S3's API, so S3 is left out; Lambda's of a call
        # is not the API's either, nor Budgets', and PassRole and SetWebAcl are no calls; log deliveries are made by EC2's own calls, and
        # MSK's.
        if service != "s3" and action not in _NO_CALLS and "LogDeliver" not in name:
            operations = loader.load_service_model(service, "service-2")["operations"]
            assert name in operations, action
            further = {name.replace(verb, other, 1) for verb, other in _FURTHER if name.startswith(verb)}
            unasked |= {f"{prefix}:{other}" for other in further & operations.keys()} - asked
    assert unasked == _NEVER_ASKED, "who may make a thing may change and end it"
