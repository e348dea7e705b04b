"""Who asks, and what that identity may do."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from llm_serving.aws import session as session
from llm_serving.aws.preflight import permissions
from llm_serving.aws.preflight.check import (
    Check,
    CheckResult,
    build_kind_result,
    build_optional_result,
    build_unknown_result,
)
from llm_serving.aws.session import AwsSession
from llm_serving.catalog import account_needs
from llm_serving.catalog.account_needs import ServiceRole
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.model import Fleet
from llm_serving.settings.document import Document
from llm_serving.settings.errors import InputError, Unavailable

_BATCH_SIZE = 50
"""Actions in one call: IAM gives no limit, and answers long ones slowly."""

_MAX_SHOWN_ACTIONS = 4


class Identity(NamedTuple):
    account: str
    arn: str

    @property
    def name(self) -> str:
        """The ARN without what is the same for all."""
        return self.arn.split(":", 5)[-1]


def fetch_identity(aws: AwsSession) -> Identity:
    """Return the caller.

    Raises:
        Unavailable: no credentials, no network, or credentials that AWS does not take.
    """
    with session.translate_errors():
        response = aws.client("sts").get_caller_identity()
    if not response.get("Account"):
        raise Unavailable("AWS answered GetCallerIdentity without an account")
    return Identity(response["Account"], response["Arn"])


def require_account(document: Document[Fleet], aws: AwsSession) -> Identity:
    """Return the caller, in the account that the fleet file names, if any. The embedded AWS is nobody's account.

    Raises:
        InputError: another account is signed in.
        Unavailable: as from `fetch_identity`.
    """
    caller, account = fetch_identity(aws), document.value.account
    if account and account != caller.account and not aws.is_emulated:
        reason = f"{caller.name} is signed in to account {caller.account}"
        fix = f'use a profile of {account}, set in AWS_PROFILE, or account: "{caller.account}"'
        raise InputError([document.build_mistake(("account",), account, reason, fix)])
    return caller


def resolve_account(document: Document[Fleet], aws: AwsSession) -> str | None:
    """Return the number of the account that a deployment is for; None where neither AWS nor the fleet file tells.

    Raises:
        InputError: another account than the fleet's is signed in.
    """
    account = document.value.account
    try:
        return require_account(document, aws).account if aws.has_credentials() else account
    except Unavailable:
        return account


def list_checks(aws: AwsSession, fleet: Fleet, caller: Identity) -> list[Check]:
    """List the checks of who asks, and whether all that the fleet takes is allowed."""
    return [
        Check("identity", "credentials", lambda: check_credentials(caller, fleet)),
        Check(
            "identity",
            "permissions",
            lambda: check_permissions(aws, fleet, caller),
            ("iam:SimulatePrincipalPolicy", "iam:GetRole"),
        ),
        *_list_boundary_checks(aws, fleet.permissions_boundary),
        *(
            Check("identity", role.name, functools.partial(_check_service_role, aws, role), ("iam:GetRole",))
            for role in _list_service_roles(fleet)
        ),
    ]


def _list_boundary_checks(aws: AwsSession, boundary: str | None) -> list[Check]:
    """One where the fleet names a boundary; none in an embedded AWS, which takes a policy that it does not have."""
    if not boundary or aws.is_emulated:
        return []
    check = functools.partial(_check_boundary, aws, boundary)
    return [Check("identity", "permissions boundary", check, ("iam:GetPolicy",))]


def _check_boundary(aws: AwsSession, boundary: str) -> CheckResult:
    with session.ignore_errors("NoSuchEntity"):
        aws.client("iam").get_policy(PolicyArn=boundary)
        return CheckResult("permissions boundary", "pass", boundary)
    message = f"{boundary} does not exist, and no role can be created with it"
    return CheckResult("permissions boundary", "fail", message, "create it, or correct permissions_boundary")


def _list_service_roles(fleet: Fleet) -> list[ServiceRole]:
    buys_spot = any("spot" in pool.buy for pool in fleet.pools.values())
    users = {"pools", *fleet.orchestrators, *(["spot"] if buys_spot else [])}
    return [role for role in account_needs.load_fleet().service_roles if role.needed_by in users]


def _check_service_role(aws: AwsSession, role: ServiceRole) -> CheckResult:
    with session.ignore_errors("NoSuchEntity"):
        aws.client("iam").get_role(RoleName=role.name)
        return CheckResult(role.name, "pass", "exists")
    command = ("aws", "iam", "create-service-linked-role", "--aws-service-name", role.service)
    return CheckResult(role.name, "warn", f"does not exist: {role.consequence}", "create it once", command)


def check_credentials(caller: Identity, fleet: Fleet) -> CheckResult:
    """Check that it is a role or a user, as it should be, of the account that the fleet file names."""
    message = f"account {caller.account}, {caller.name}"
    if fleet.account and fleet.account != caller.account:
        message += f"; the fleet is for account {fleet.account} only"
        return CheckResult("credentials", "fail", message, f"sign in to {fleet.account}, or correct `account`")
    if caller.name == "root" and fleet.creates_eks:
        message += "; who applies becomes the cluster's administrator, and that is a role or a user"
        return CheckResult("credentials", "fail", message, "sign in with a role")
    if caller.name == "root":
        return CheckResult("credentials", "warn", message, "sign in with a role: nothing limits the root user")
    return CheckResult("credentials", "pass", message)


def check_permissions(aws: AwsSession, fleet: Fleet, caller: Identity) -> Sequence[CheckResult]:
    """Return a line for each part of the fleet, from IAM's simulator; policies, boundary and SCPs count."""
    principal_arn = _find_principal_arn(aws, caller)
    if not principal_arn:
        reason = f"IAM's simulator takes users and roles, and this is {caller.name}"
        return [build_unknown_result("permissions", reason, "sign in as a role to check them")]
    actions_by_part, actions_by_kind = permissions.list_actions_by_part(fleet), permissions.list_actions_by_kind(fleet)
    data_actions = account_needs.load_fleet().permissions["with_data"]
    actions = {*chain(data_actions, *actions_by_part.values(), *actions_by_kind.values())}
    decisions = _simulate(aws, principal_arn, actions, fleet.permissions_boundary)
    parts = [
        _build_part_result(f"permission to create {part}", actions, decisions)
        for part, actions in actions_by_part.items()
    ]
    data_result = _build_part_result("permission to delete data", data_actions, decisions)
    kinds = [
        build_kind_result(_build_part_result(f"permission to deploy kind: {kind}", actions, decisions), kind)
        for kind, actions in actions_by_kind.items()
    ]
    return [*parts, build_optional_result(data_result, "run blueprint fleet destroy --with-data"), *kinds]


def _simulate(aws: AwsSession, principal_arn: str, actions: Collection[str], boundary: str | None) -> dict[str, Any]:
    """Return the simulator's evaluation by action, for policies too that allow no role without the boundary."""
    iam = aws.client("iam")
    decisions: dict[str, Any] = {}
    context = {"ContextKeyName": "iam:PermissionsBoundary", "ContextKeyValues": [boundary], "ContextKeyType": "string"}
    for batch in session.split(sorted(actions), _BATCH_SIZE):
        request = {
            "PolicySourceArn": principal_arn,
            "ActionNames": batch,
            "ContextEntries": [context] if boundary else [],
        }
        evaluations = session.list_all(iam, "simulate_principal_policy", "EvaluationResults", **request)
        decisions |= {evaluation["EvalActionName"]: evaluation for evaluation in evaluations}
    return decisions


def _find_principal_arn(aws: AwsSession, caller: Identity) -> str | None:
    principal_type, _, principal_name = caller.name.partition("/")
    if principal_type == "user" and ":iam:" in caller.arn:
        return caller.arn
    if principal_type == "assumed-role":
        # The session's ARN lacks the role's path, which the role's own has.
        return str(aws.client("iam").get_role(RoleName=principal_name.split("/")[0])["Role"]["Arn"])
    return None


def _build_part_result(check_name: str, actions: Sequence[str], decisions: Mapping[str, Any]) -> CheckResult:
    """Return what the simulator says of a part's actions.

    It is asked about every resource ("*"). A policy that allows an action on some names only reads as no permission
    there, so a part of which some actions are allowed is doubted and not refused.
    """
    refused_actions = [action for action in actions if decisions.get(action, {}).get("EvalDecision") != "allowed"]
    if not refused_actions:
        return CheckResult(check_name, "pass", f"all {len(actions)} actions are allowed")
    denied = [action for action in refused_actions if _is_denied(decisions.get(action, {}))]
    if denied:
        message = f"{len(denied)} of {len(actions)} actions are denied outright: {_format_actions(denied)}"
        fix = "use another identity, or change the deny statement, permissions boundary or SCP"
        return CheckResult(check_name, "fail", message, fix)
    if len(refused_actions) == len(actions):
        message = f"none of its {len(actions)} actions is allowed, {_format_actions(refused_actions)} among them"
        return CheckResult(check_name, "fail", message, "use another identity, or a policy that allows them")
    count = f"{len(refused_actions)} of {len(actions)}"
    message = f"{count} actions are not allowed on every resource: {_format_actions(refused_actions)}"
    return CheckResult(check_name, "warn", message, "check that a policy allows them for the fleet's own names")


def _is_denied(decision: Mapping[str, Any]) -> bool:
    """Return whether something denies the action, where otherwise nothing merely allows it."""
    allowed_by_organization = decision.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations", True)
    allowed_by_boundary = decision.get("PermissionsBoundaryDecisionDetail", {}).get(
        "AllowedByPermissionsBoundary", True
    )
    return decision.get("EvalDecision") == "explicitDeny" or not allowed_by_organization or not allowed_by_boundary


def _format_actions(actions: Sequence[str]) -> str:
    hidden_count = len(actions) - _MAX_SHOWN_ACTIONS
    return (
        join_words([*actions[:_MAX_SHOWN_ACTIONS], f"{hidden_count} more"]) if hidden_count > 0 else join_words(actions)
    )
