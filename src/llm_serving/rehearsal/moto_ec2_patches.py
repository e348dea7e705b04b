"""Patches of what moto's services on top of EC2 do; importing them reads EC2's data. See moto_patches.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moto.acm.models import AWSCertificateManagerBackend
from moto.autoscaling.models import AutoScalingBackend
from moto.ecs.models import EC2ContainerServiceBackend

_set_instance_protection = AutoScalingBackend.set_instance_protection


def set_instance_protection(
    backend: AutoScalingBackend, group_name: str, instance_ids: list[str], protected_from_scale_in: bool | None
) -> None:
    """Protect instances from scale-in, or lift that and shrink the group to its desired size.

    Terraform empties a group so before it destroys it. https://github.com/getmoto/moto/pull/1983 introduced the
    protection; none about lifting it found on 2026-11-22 (moto/autoscaling/models.py).
    """
    _set_instance_protection(backend, group_name, instance_ids, protected_from_scale_in)
    if not protected_from_scale_in:
        group = backend.autoscaling_groups[group_name]
        group.set_desired_capacity(group.desired_capacity)


_delete_auto_scaling_group = AutoScalingBackend.delete_auto_scaling_group


def delete_auto_scaling_group(backend: AutoScalingBackend, group_name: str) -> None:
    """Delete a group with its instances, those that are protected from scale-in among them.

    As ForceDelete does; moto leaves these running. No upstream issue found on 2026-11-23 (moto/autoscaling/models.py).
    """
    group = backend.autoscaling_groups.get(group_name)
    for state in group.instance_states if group else ():
        state.protected_from_scale_in = False
    _delete_auto_scaling_group(backend, group_name)


_describe_capacity_providers = EC2ContainerServiceBackend.describe_capacity_providers


def describe_capacity_providers(backend: EC2ContainerServiceBackend, names: list[str] | None) -> Any:
    """Return the capacity providers of these names; all by default.

    moto fails without names. https://github.com/getmoto/moto/pull/4977 introduced the call; none about leaving them out
    found on 2026-11-22 (moto/ecs/models.py).
    """
    return _describe_capacity_providers(backend, list(backend.capacity_providers) if names is None else names)


_list_services = EC2ContainerServiceBackend.list_services


def list_services(backend: EC2ContainerServiceBackend, cluster: str, *args: Any, **settings: Any) -> list[str]:
    """Return the services of a cluster that were not deleted.

    moto lists those too. No upstream issue found on 2026-11-22 (moto/ecs/models.py, list_services).
    """
    active = {service.arn for service in backend.services.values() if service.status != "INACTIVE"}
    return [arn for arn in _list_services(backend, cluster, *args, **settings) if arn in active]


_set_certificate_in_use_by = AWSCertificateManagerBackend.set_certificate_in_use_by


def set_certificate_in_use_by(backend: AWSCertificateManagerBackend, arn: str, load_balancer_name: str) -> None:
    """Note who uses a certificate; one of the user's own account is not here, and is taken as it is.

    No rehearsal can have it, and moto refuses a listener with it. No upstream issue found on 2026-11-23
    (moto/acm/models.py).
    """
    if arn in backend._certificates:
        _set_certificate_in_use_by(backend, arn, load_balancer_name)


PATCHES: Mapping[Callable[..., Any], type] = {
    set_instance_protection: AutoScalingBackend,
    delete_auto_scaling_group: AutoScalingBackend,
    describe_capacity_providers: EC2ContainerServiceBackend,
    list_services: EC2ContainerServiceBackend,
    set_certificate_in_use_by: AWSCertificateManagerBackend,
}
"""Replaced functions of the same names, each with its class of moto's."""
