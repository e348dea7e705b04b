"""Whether AWS offers what this repository pins: the Kubernetes version, the add-ons with our values, the AMIs.

EKS validates an add-on's values by the schema of its version, at the apply. Here the same schema is asked for first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_serving.aws import session as session
from llm_serving.aws.preflight.check import Check, CheckResult, build_unknown_result
from llm_serving.aws.session import AwsSession
from llm_serving.catalog.eks import AddOn
from llm_serving.fleet import machine_images
from llm_serving.fleet.checks import join_words
from llm_serving.fleet.eks_add_ons import list_eks_add_ons
from llm_serving.fleet.groups import Group, has_known_types
from llm_serving.fleet.model import Fleet

_GROUP = "pinned versions"

_CATALOG_FILE = "src/llm_serving/catalog/eks.yaml"

_MAX_SHOWN_VERSIONS = 3


def list_checks(aws: AwsSession, fleet: Fleet) -> list[Check]:
    """Return what EKS offers, on EKS; the AMIs on both."""
    checks = [Check(_GROUP, "AMIs", lambda: _check_images(aws, fleet), ("ssm:GetParameter",))]
    if not fleet.creates_eks:
        return checks
    return [
        Check(_GROUP, "Kubernetes", lambda: _check_kubernetes(aws, fleet), ("eks:DescribeClusterVersions",)),
        Check(_GROUP, "add-ons", lambda: _check_versions(aws, fleet), ("eks:DescribeAddonVersions",)),
        Check(_GROUP, "add-on values", lambda: _check_values(aws, fleet), ("eks:DescribeAddonConfiguration",)),
        *checks,
    ]


def _check_kubernetes(aws: AwsSession, fleet: Fleet) -> CheckResult:
    version = fleet.eks.version
    check_name = f"Kubernetes {version}"
    rows = session.list_all(aws.client("eks"), "describe_cluster_versions", "clusterVersions", includeAll=True)
    offered = {row["clusterVersion"]: row for row in rows}
    status = offered.get(version, {}).get("versionStatus", "UNSUPPORTED")
    if status == "UNSUPPORTED":
        usable = [name for name, row in offered.items() if row.get("versionStatus") == "STANDARD_SUPPORT"]
        message = f"EKS does not offer it; it offers {join_words(sorted(usable)) if usable else 'none'}"
        return CheckResult(check_name, "fail", message, "set eks.version to one of these")
    if status == "EXTENDED_SUPPORT":
        message = "in extended support: the cluster costs 0.60 instead of 0.10 USD/h"
        return CheckResult(check_name, "warn", message, "set a newer eks.version")
    return CheckResult(check_name, "pass", "offered, in standard support")


def _check_versions(aws: AwsSession, fleet: Fleet) -> list[CheckResult]:
    return [_check_version(aws, fleet, add_on) for add_on in list_eks_add_ons(fleet)]


def _check_version(aws: AwsSession, fleet: Fleet, add_on: AddOn) -> CheckResult:
    version, pinned = fleet.eks.version, add_on.versions[fleet.eks.version]
    query = {"addonName": add_on.name, "kubernetesVersion": version}
    entries = session.list_all(aws.client("eks"), "describe_addon_versions", "addons", **query)
    rows = [row for entry in entries for row in entry["addonVersions"]]
    offered = [row["addonVersion"] for row in rows]
    if pinned in offered:
        return CheckResult(add_on.name, "pass", f"{pinned} offered for Kubernetes {version}")
    if not offered:
        message = f"EKS has no version of it for Kubernetes {version}"
        return CheckResult(add_on.name, "fail", message, "set another eks.version, or use a fleet without it")
    default = [
        row["addonVersion"] for row in rows if any(entry.get("defaultVersion") for entry in row["compatibilities"])
    ]
    shown_versions = [*offered[:_MAX_SHOWN_VERSIONS], *(["others"] if len(offered) > _MAX_SHOWN_VERSIONS else [])]
    message = f"EKS does not offer {pinned} for Kubernetes {version}; it offers {join_words(shown_versions)}"
    return CheckResult(add_on.name, "fail", message, f"pin {(default or offered)[0]} in {_CATALOG_FILE}")


def _check_values(aws: AwsSession, fleet: Fleet) -> list[CheckResult]:
    """Values and service accounts, held against what the add-on's version takes, for each add-on with any."""
    version = fleet.eks.version
    return [
        _check_configuration(add_on, add_on.versions[version], response)
        for add_on in list_eks_add_ons(fleet)
        if add_on.configuration or add_on.service_account
        if (response := _fetch_configuration(aws, add_on.name, add_on.versions[version])) is not None
    ]


def _fetch_configuration(aws: AwsSession, add_on: str, version: str) -> Mapping[str, Any] | None:
    """Return what EKS takes for that version; None for a version that it does not know, which has its own result."""
    with session.ignore_errors("ResourceNotFoundException", "InvalidParameterException"):
        response: Mapping[str, Any] = aws.client("eks").describe_addon_configuration(
            addonName=add_on, addonVersion=version
        )
        return response
    return None


def _check_configuration(add_on: AddOn, version: str, response: Mapping[str, Any]) -> CheckResult:
    check_name = f"{add_on.name} values"
    mistakes = list(_find_value_mistakes(add_on, str(response.get("configurationSchema") or "{}")))
    accounts = [row["serviceAccount"] for row in response.get("podIdentityConfiguration", ())]
    if add_on.service_account and accounts and add_on.service_account not in accounts:
        mistakes.append(f"service account {add_on.service_account}: EKS takes {join_words(accounts)}")
    if mistakes:
        message = f"EKS would refuse them for {version}: {'; '.join(mistakes)}"
        return CheckResult(check_name, "fail", message, f"correct its row in {_CATALOG_FILE}")
    return CheckResult(check_name, "pass", f"write it as the schema of {version} has it")


def _find_value_mistakes(add_on: AddOn, schema: str) -> Iterator[str]:
    import jsonschema

    parsed = json.loads(schema)
    validator = jsonschema.validators.validator_for(parsed, default=jsonschema.Draft7Validator)(parsed)
    for error in sorted(validator.iter_errors(add_on.configuration or {}), key=lambda error: error.path):
        field = ".".join(map(str, error.absolute_path))
        yield f"{field}: {error.message}" if field else error.message


def _check_images(aws: AwsSession, fleet: Fleet) -> Sequence[CheckResult]:
    if not has_known_types(fleet):
        reason = "a type is not in the catalog, so its AMI is not known"
        return [build_unknown_result("AMIs", reason, "use a type of the catalog, as listed above")]
    parameters = machine_images.list_parameters(fleet)
    return [_check_image(aws, fleet, parameter, group) for parameter, group in parameters.items()]


def _check_image(aws: AwsSession, fleet: Fleet, parameter: str, group: Group) -> CheckResult:
    check_name = f"AMI {group.os}-{group.variant}-{group.arch}"
    ssm = aws.client("ssm")
    with session.ignore_errors("ParameterNotFound"):
        image = ssm.get_parameter(Name=parameter)["Parameter"]["Value"]
        return CheckResult(check_name, "pass", f"{parameter.split('/')[-2]} is {image}")
    if not session.is_aws(ssm.meta.endpoint_url):
        return build_unknown_result(check_name, f"{aws.describe_endpoint()} has none of AWS's AMIs")
    key = ".".join(machine_images.find_release(fleet, group.orchestrator, group.os).key_path)
    folder = parameter.rsplit("/", 2)[0]
    list_releases = ("aws", "ssm", "get-parameters-by-path", "--recursive", "--path", folder)
    query = ("--query", "Parameters[].Name", "--output", "text")
    message = f"the region has no parameter {parameter}"
    fix = f"set another release in {key}; to list them"
    return CheckResult(check_name, "fail", message, fix, (*list_releases, *query))
