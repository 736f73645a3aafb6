"""What a side's own FLARE files allow: who may do what, which classes, whose logs.

FLARE reads them in the folder ``local`` of a side's workspace, the side's own before
FLARE's, whose names end in ``.default``. By FLARE's files a job may bring code ("byoc")
if a lead of any organisation submits it, and the list of classes does not hold for such
a job. So no side starts or takes part as long as its files allow that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import AdminCommandNames, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.private.fed.client.shell_cmd import SHELL_CMD_VALIDATORS
from nvflare.security.security import COMMAND_CATEGORIES

from lessvfl.errors import ConfigError

RESOURCES = "resources.json"  # what a side says of itself
RIGHTS = "authorization.json"  # who may do what at it
GUARD = "lessvfl__p_resources.json"  # what its own process has besides, not its jobs'
STREAMING = "allow_log_streaming"  # whether FLARE sends logs to the server
CLASSES, MODE = "class_allow_list", "class_list_enforcement_mode"
EVERY_CLASS = "*"
ENFORCED = "enforce"
# What a role may be given of these rights; the first is given where it has more.
LIMITS = {
    "byoc": ("none", "no"),
    "server-predeployed-flwr": ("none", "no"),  # code by way of Flower
    "shell_commands": ("o:site", "none", "no"),  # to read files, logs among them
}
ROLES = ("project_admin", "org_admin", "lead", "member")
COMMANDS = {text for name, text in vars(AdminCommandNames).items() if name.isupper()}
EVERY_RIGHT = sorted({COMMAND_CATEGORIES.get(one, one) for one in COMMANDS} | {*LIMITS})


class Guard(FLComponent):  # type: ignore[misc]
    """In a side's own process: it does not start if its files allow code.

    FLARE's sites leave it to FLARE's server to check who may read files (``cat``), and
    the server passes such a command on from any site to any other. So nobody may at a
    site of ours, whatever its rights say.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Act before the side can be reached."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            SHELL_CMD_VALIDATORS.clear()
            workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            try:
                check(Path(workspace.get_site_config_dir()), "This side")
            except ConfigError as error:
                raise UnsafeComponentError(str(error)) from None


GUARDED = {
    "components": [
        {"id": "lessvfl_guard", "path": f"{__name__}.{Guard.__name__}", "args": {}}
    ]
}


def check(local: Path, who: str) -> None:
    """Refuse to run where a job could bring code, or others could read files."""
    rights, resources = _rights(local), _resources(local)
    is_open = resources.get(MODE, ENFORCED) != ENFORCED
    is_open |= EVERY_CLASS in resources.get(CLASSES, ())
    wrong = {
        RIGHTS: limited(rights) != rights,
        RESOURCES: is_open,
        GUARD: _read(local, GUARD, {}) != GUARDED,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            sentence = (
                f"{who} must let nobody bring code or read its files from elsewhere, "
                f"as 'lessvfl nvflare site' sets it in local/{name}. Got a file that "
                "allows it, or none."
            )
            raise ConfigError(sentence, public=sentence)


def check_logs(local: Path, who: str) -> None:
    """Refuse to take part where FLARE would send this site's logs to the server."""
    given = _resources(local).get(STREAMING)
    if given is not False:
        sentence = (
            f"{who} must keep its logs to itself: '{STREAMING}' must be false "
            f"in its local/{RESOURCES}, as 'lessvfl nvflare site' sets it. Got "
            f"{json.dumps(given)}."
        )
        raise ConfigError(sentence, public=sentence)


def secure(local: Path, name: str, *, is_site: bool) -> None:
    """Make FLARE refuse code in jobs and access to files, from its next start on.

    Jobs may use the class `name` and those on the list already. A site's logs stay at
    the site. Nothing is written where a file cannot be read.
    """
    rights, resources = _rights(local), _resources(local)
    known = resources.get(CLASSES, DEFAULT_CLASS_ALLOW_LIST)
    kept = [one for one in known if one not in (EVERY_CLASS, name)]
    resources |= {CLASSES: [*kept, name], MODE: ENFORCED}
    if is_site:
        resources[STREAMING] = False
    write_json(local / RESOURCES, resources)
    write_json(local / RIGHTS, limited(rights))
    write_json(local / GUARD, GUARDED)


def limited(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return rights within :data:`LIMITS`, and as they are otherwise.

    A role may have one expression for all rights, which FLARE would put before those
    of single ones: it is written out.
    """
    roles = {}
    for role, rights in values["permissions"].items():
        if not isinstance(rights, dict) and not _fits("byoc", rights):
            rights = dict.fromkeys(EVERY_RIGHT, rights)
        if isinstance(rights, dict):
            rights = {
                right: given if _fits(right, given) else LIMITS[_kind(right)][0]
                for right, given in rights.items()
            }
        roles[role] = rights
    return {**values, "permissions": roles}


def _fits(right: str, given: object) -> bool:
    kind = _kind(right)
    return kind not in LIMITS or (
        isinstance(given, str) and _plain(given) in LIMITS[kind]
    )


def _kind(right: str) -> str:
    """Return the right that a command such as ``cat`` belongs to, or itself."""
    return str(COMMAND_CATEGORIES.get(_plain(right), _plain(right)))


def _plain(text: str) -> str:
    return " ".join(text.lower().split())  # as FLARE reads it


def _rights(local: Path) -> dict[str, Any]:
    """Return who may do what; without a file FLARE allows everything to everybody."""
    every = {"format_version": "1.0", "permissions": dict.fromkeys(ROLES, "any")}
    values = _read(local, RIGHTS, every)
    if not isinstance(values.get("permissions"), dict):
        raise _no_object(local / RIGHTS)
    return values


def _resources(local: Path) -> dict[str, Any]:
    values = _read(local, RESOURCES, {"format_version": 2})
    if not isinstance(values.get(CLASSES, []), list):
        raise _no_object(local / RESOURCES)
    return values


def _read(local: Path, name: str, default: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a file of a side; its own file goes before FLARE's."""
    for path in (local / name, local / f"{name}.default"):
        if path.is_file():
            try:
                values = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                values = None
            if not isinstance(values, dict):
                raise _no_object(path)
            return values
    return default


def _no_object(path: Path) -> ConfigError:
    return ConfigError(
        f"The file '{path}' must be a JSON object, as FLARE writes it. Got something "
        "else.",
        public=f"A side's own {path.name} must be a JSON object, as FLARE writes it.",
    )


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file as FLARE reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
