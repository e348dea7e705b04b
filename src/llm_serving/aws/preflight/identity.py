"""Who asks, and what that identity may do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from llm_serving.aws import session as clients
from llm_serving.aws.preflight import permissions
from llm_serving.aws.preflight.check import Line, Question, unknown
from llm_serving.aws.session import Aws
from llm_serving.fleet.checks import listed
from llm_serving.fleet.model import Fleet
from llm_serving.settings.errors import Unavailable

_AT_ONCE = 50
"""Actions in one call: IAM gives no limit, and answers long ones slowly."""

_SHOWN = 4


class Identity(NamedTuple):
    """The caller."""

    account: str
    arn: str

    @property
    def name(self) -> str:
        """The ARN without what is the same for all."""
        return self.arn.split(":", 5)[-1]


def whoami(aws: Aws) -> Identity:
    """The caller.

    Raises:
        Unavailable: no credentials, no network, or credentials that AWS does not take.
    """
    with clients.refusals():
        said = aws.client("sts").get_caller_identity()
    if not said.get("Account"):
        raise Unavailable("AWS answered GetCallerIdentity without an account")
    return Identity(said["Account"], said["Arn"])


def questions(aws: Aws, fleet: Fleet, who: Identity) -> list[Question]:
    """Who asks, and whether all that the fleet takes is allowed."""
    return [
        Question("identity", "credentials", lambda: [credentials(who)]),
        Question(
            "identity",
            "permissions",
            lambda: may(aws, fleet, who),
            ("iam:SimulatePrincipalPolicy", "iam:GetRole"),
        ),
        *([Question("identity", _SPOT_ROLE, lambda: [_spot_role(aws)], ("iam:GetRole",))] if _spot(fleet) else []),
    ]


_SPOT_ROLE = "AWSServiceRoleForEC2Spot"
"""The role by which EC2 starts spot instances; an account that never had one lacks it."""


def _spot(fleet: Fleet) -> bool:
    return any("spot" in pool.buy for pool in fleet.pools.values())


def _spot_role(aws: Aws) -> Line:
    from botocore.exceptions import ClientError

    try:
        aws.client("iam").get_role(RoleName=_SPOT_ROLE)
    except ClientError as error:
        if not clients.code(error).startswith("NoSuchEntity"):
            raise
        command = ("aws", "iam", "create-service-linked-role", "--aws-service-name", "spot.amazonaws.com")
        said = "it is not there: no spot instance was ever started here, and the fleet's own roles may not make it"
        return Line(_SPOT_ROLE, "warn", said, "make it once", command)
    return Line(_SPOT_ROLE, "pass", "there")


def credentials(who: Identity) -> Line:
    """Whether it is a role or a user, as it should be."""
    said = f"account {who.account}, {who.name}"
    if who.name == "root":
        return Line("credentials", "warn", said, "sign in with a role: nothing limits what the root user may do")
    return Line("credentials", "pass", said)


def may(aws: Aws, fleet: Fleet, who: Identity) -> Sequence[Line]:
    """A line for each part of the fleet, from IAM's own simulator; the identity's policies, boundary and SCPs count."""
    source = _principal(aws, who)
    if not source:
        why = f"IAM's simulator takes users and roles, and this is {who.name}"
        return [unknown("permissions", why, "sign in as a role to have them checked")]
    needed = permissions.needed(fleet)
    actions = sorted({action for part in needed.values() for action in part})
    iam = aws.client("iam")
    decided: dict[str, Any] = {}
    for first in range(0, len(actions), _AT_ONCE):
        pages = iam.get_paginator("simulate_principal_policy").paginate(
            PolicySourceArn=source, ActionNames=actions[first : first + _AT_ONCE]
        )
        decided |= {one["EvalActionName"]: one for page in pages for one in page["EvaluationResults"]}
    return [_part(f"may make {part}", actions, decided) for part, actions in needed.items()]


def _principal(aws: Aws, who: Identity) -> str | None:
    """The ARN of the user or role behind the caller, as the simulator takes it."""
    kind, _, rest = who.name.partition("/")
    if kind == "user" and ":iam:" in who.arn:
        return who.arn
    if kind == "assumed-role":
        # The session's ARN lacks the role's path, which the role's own has.
        return str(aws.client("iam").get_role(RoleName=rest.split("/")[0])["Role"]["Arn"])
    return None


def _part(about: str, actions: Sequence[str], decided: Mapping[str, Any]) -> Line:
    """What the simulator says of a part's actions.

    It is asked about every resource ("*"). A policy that allows an action on some names only reads as no permission
    there, so a part of which some actions are allowed is doubted and not refused.
    """
    lacking = [action for action in actions if decided.get(action, {}).get("EvalDecision") != "allowed"]
    if not lacking:
        return Line(about, "pass", f"all {len(actions)} actions are allowed")
    denied = [action for action in lacking if _forbidden(decided.get(action, {}))]
    if denied:
        why = f"{len(denied)} of {len(actions)} actions are denied outright: {_some(denied)}"
        remedy = "another identity, or ask whoever keeps the deny statement, permissions boundary or SCP"
        return Line(about, "fail", why, remedy)
    if len(lacking) == len(actions):
        why = f"none of its {len(actions)} actions is allowed, {_some(lacking)} among them"
        return Line(about, "fail", why, "another identity, or a policy that allows them")
    why = f"{len(lacking)} of {len(actions)} actions are not allowed on every resource: {_some(lacking)}"
    return Line(about, "warn", why, "see that a policy allows them on the fleet's own names")


def _forbidden(decision: Mapping[str, Any]) -> bool:
    """Whether something denies the action, where otherwise nothing merely allows it."""
    by_organization = decision.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations", True)
    by_boundary = decision.get("PermissionsBoundaryDecisionDetail", {}).get("AllowedByPermissionsBoundary", True)
    return decision.get("EvalDecision") == "explicitDeny" or not by_organization or not by_boundary


def _some(actions: Sequence[str]) -> str:
    more = len(actions) - _SHOWN
    return listed([*actions[:_SHOWN], f"{more} more"]) if more > 0 else listed(actions)
