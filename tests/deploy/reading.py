"""Shared readers of manifests: the pod, its variables, and the settings that they are."""

from typing import Any

from app.settings import Settings

Object = dict[str, Any]

FIXED: dict[str, Any] = {"form": "beside", "beside": {"address": "10.96.0.99", "tlsSecret": "leeboard-extender"}}


def settings_of(items: list[Object]) -> Settings:
    """Return the settings that Leeboard's container starts with."""
    variables = environment_of(items)
    return Settings(**{name.removeprefix("LEEBOARD_").lower(): value for name, value in variables.items()})


def environment_of(items: list[Object]) -> dict[str, Any]:
    """Return the variables of Leeboard's container."""
    leeboard = next(one for one in pod_of(items)["containers"] if one["name"] == "leeboard")
    return {variable["name"]: variable["value"] for variable in leeboard["env"]}


def pod_of(items: list[Object]) -> Object:
    """Return the spec of Leeboard's own pods."""
    spec: Object = workload_of(items)["spec"]["template"]["spec"]
    return spec


def workload_of(items: list[Object], name: str = "leeboard") -> Object:
    """Return the workload of Leeboard, or of its agents (`leeboard-agent`)."""
    (workload,) = [
        item for item in items if item["kind"] in {"Deployment", "DaemonSet"} and item["metadata"]["name"] == name
    ]
    return workload
