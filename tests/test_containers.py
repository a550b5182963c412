"""Dockerfile and compose.yaml, as far as they can be checked without a container engine."""

import importlib
import importlib.util
import json
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from dagster._core.instance.ref import InstanceRef
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths

from eval_dagster.assets.instance import instance as instance_settings
from eval_dagster.cli.servers.dagster_server import argument_parser
from eval_dagster.cli.servers.loopback_guard import ORIGINS_VARIABLE, origin_of
from eval_dagster.cli.servers.mlflow_server import APP_NAME
from eval_dagster.project import TRACKING_VARIABLE
from eval_dagster.tracking.tracker import UI_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = [name for name, service in SERVICES.items() if "build" in service]
PROGRAMS = {
    "dagster": "dagster._cli:create_dagster_cli",
    "dagster-daemon": "dagster._daemon.cli:create_dagster_daemon_cli",
    "mlflow": "mlflow.cli:cli",
}
"""The command lines that other packages install, by the object that has their options."""
SECRET = re.compile(r"PASSWORD|TOKEN|SECRET|KEY|ADDRESS", re.IGNORECASE)
FROM_ENVIRONMENT = re.compile(r"\$\{[A-Z_]+(:[?-][^}]*)?\}")


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def commands() -> Iterator[tuple[str, list[str]]]:
    """The commands that containers of our image run: what they are for, with their arguments."""
    for name in OWN:
        yield name, SERVICES[name]["command"]
        yield f"health of {name}", SERVICES[name]["healthcheck"]["test"][1:]
    yield "Dockerfile", json.loads(dict(instructions())["CMD"])


def environment(service: str) -> Mapping[str, str | None]:
    found: Mapping[str, str | None] = SERVICES[service].get("environment", {})
    return found


def port_of(service: str) -> str:
    """The port on which a service listens."""
    command = SERVICES[service]["command"]
    return str(command[command.index("--port") + 1])


def test_every_source_of_the_dockerfile_is_there_and_reaches_the_engine() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [source for word, rest in instructions() if word == "COPY" and "--from=" not in rest for source in rest.split()[:-1]]
    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source.split('/')[0]}" in ignored, f"{source} is left out by .dockerignore"
    assert not [path for path in (ROOT / "eval_dagster").rglob("*") if path.is_symlink()], "a link leads to files that are not copied"


def test_the_image_runs_as_a_user_without_privileges() -> None:
    users = [rest for word, rest in instructions() if word == "USER"]
    assert users == ["10001"]
    assert "useradd --uid 10001" in (ROOT / "Dockerfile").read_text()
    for name in OWN:
        assert "user" not in SERVICES[name]
        assert SERVICES[name]["cap_drop"] == ["ALL"]
        assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in SERVICES[name]


def test_the_image_installs_what_the_services_need() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE) == ["metrics,postgres,s3,transformers"]
    assert "[$EXTRAS]" in text
    folders = re.findall(r"/var/lib/\w+", next(rest for word, rest in instructions() if word == "RUN" and "useradd" in rest))
    mounted = {volume.split(":")[1] for name in OWN for volume in SERVICES[name].get("volumes", []) if "/var/lib" in volume}
    assert mounted == set(folders), "a new volume belongs to the user only if the image has its folder"


@pytest.mark.parametrize(("purpose", "command"), list(commands()), ids=[purpose for purpose, _ in commands()])
def test_every_command_is_one_that_the_packages_have(purpose: str, command: list[str]) -> None:
    program, *arguments = command
    if program == "python" and arguments[0] == "-m":
        assert arguments[1] == "eval_dagster.cli.servers.dagster_server"
        argument_parser().parse_args(arguments[2:])
    elif program == "python":
        assert arguments[0] == "-c"
        compile(arguments[1], "health check", "exec")
        port = port_of(purpose.removeprefix("health of "))
        assert f"http://127.0.0.1:{port}/" in arguments[1]
    elif program == "eval-dagster":
        assert arguments == ["--help"]
    else:
        module, _, attribute = PROGRAMS[program].partition(":")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow warns of its own types
            found = getattr(importlib.import_module(module), attribute)
        group = found if isinstance(found, click.Command) else found()
        check_arguments(group, arguments)


def check_arguments(command: click.Command, arguments: list[str]) -> None:
    """Follow the subcommands, and see that the last of them knows every option."""
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, *arguments = arguments
        found = command.get_command(context, name)
        assert found is not None, f"no command {name!r}"
        command, context = found, click.Context(found, parent=context)
    _, rest, _ = command.make_parser(context).parse_args(arguments)
    assert rest == []


def test_the_check_of_commands_can_fail() -> None:
    group = click.Group("program", {"serve": click.Command("serve", params=[click.Option(["--port"])])})
    check_arguments(group, ["serve", "--port", "1"])
    with pytest.raises(AssertionError, match="no command 'start'"):
        check_arguments(group, ["start"])
    with pytest.raises(click.NoSuchOption):
        check_arguments(group, ["serve", "--hots", "1"])


def test_the_code_location_is_the_module_that_the_package_has() -> None:
    command = SERVICES["code"]["command"]
    assert importlib.util.find_spec(command[command.index("--module-name") + 1])


def test_services_wait_for_services_that_have_a_health_check() -> None:
    for name, service in SERVICES.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, f"{name} waits for {other}"
            assert how == {"condition": "service_healthy"}
    assert set(COMPOSE["volumes"]) == {
        volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"] if volume[0] not in "./$"
    }
    for service in SERVICES.values():
        for volume in service["volumes"]:
            assert not volume.startswith("./") or (ROOT / volume.split(":")[0]).is_file()


def test_no_port_is_published_beyond_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {name: [f"127.0.0.1:{port_of(name)}:{port_of(name)}"] for name in ("mlflow", "webserver")}
    assert not [name for name, service in SERVICES.items() if "network_mode" in service]


def test_no_secret_has_a_literal_value() -> None:
    checked = 0
    for name in SERVICES:
        for variable, value in environment(name).items():
            if SECRET.search(variable):
                checked += 1
                assert value is None or FROM_ENVIRONMENT.fullmatch(value), f"{name}: {variable}"
            if value and (password := re.search(r"://[^:/@]+:(.*)@", value)):
                checked += 1
                assert FROM_ENVIRONMENT.fullmatch(password[1]), f"{name}: {variable}"
    assert checked > 6
    settings = yaml.safe_load((ROOT / "deploy/dagster.yaml").read_text())
    assert settings["storage"]["postgres"]["postgres_db"]["password"] == {"env": "POSTGRES_PASSWORD"}
    assert not [rest for word, rest in instructions() if word in ("ENV", "ARG") and SECRET.search(rest)]


def test_web_servers_stand_behind_the_guard() -> None:
    mlflow, webserver = SERVICES["mlflow"]["command"], SERVICES["webserver"]["command"]
    assert mlflow[mlflow.index("--app-name") + 1] == APP_NAME
    assert webserver[:3] == ["python", "-m", "eval_dagster.cli.servers.dagster_server"]
    origin = environment("code")[TRACKING_VARIABLE]
    assert origin == origin_of(str(origin)) == environment("mlflow")[ORIGINS_VARIABLE], "the guard lets the code location in"
    hosts = mlflow[mlflow.index("--allowed-hosts") + 1].split(",")
    assert str(origin).partition("://")[2] in hosts
    assert str(environment("code")[UI_VARIABLE]).partition("://")[2] in hosts
    assert SERVICES["mlflow"]["ports"][0].startswith(str(environment("code")[UI_VARIABLE]).partition("://")[2])


def test_the_settings_of_dagster_are_valid_and_those_of_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"POSTGRES_HOST": "postgres", "POSTGRES_USER": "evals", "POSTGRES_PASSWORD": "x"}.items():
        assert variable in environment("daemon")
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    reference = InstanceRef.from_dir(str(ROOT / "deploy"))
    assert reference.storage_data is not None
    assert reference.storage_data.module_name == "dagster_postgres"
    assert reference.compute_logs_data.class_name == "LocalComputeLogManager"
    assert reference.compute_log_manager is not None
    ours, homes = yaml.safe_load((ROOT / "deploy/dagster.yaml").read_text()), yaml.safe_load(instance_settings._SETTINGS)
    assert {key: ours[key] for key in homes} == homes
    assert not (ROOT / "deploy" / "history").exists(), "loading wrote nothing"


def test_the_workspace_names_the_container_of_the_code_location() -> None:
    [origin] = location_origins_from_yaml_paths([str(ROOT / "deploy/workspace.yaml")])
    assert isinstance(origin, GrpcServerCodeLocationOrigin)
    assert (origin.host, str(origin.port)) == ("code", port_of("code"))
    assert origin.location_name == "eval_dagster"
    for name in ("daemon", "webserver"):
        assert "/opt/dagster/workspace.yaml" in SERVICES[name]["command"]
    assert ("COPY", "deploy/dagster.yaml deploy/workspace.yaml /opt/dagster/") in instructions()
    assert "DAGSTER_HOME=/opt/dagster" in shlex.split(dict(instructions())["ENV"])


def test_the_page_names_every_container_volume_and_variable() -> None:
    page = (ROOT / "docs/how-to/containers.md").read_text()
    for name in (*SERVICES, *COMPOSE["volumes"]):
        assert f"| `{name}` |" in page
    for variable in {variable for name in OWN for variable in environment(name)} - {"POSTGRES_HOST", "POSTGRES_USER"}:
        assert variable in page or variable.startswith("MLFLOW_"), variable
    for name, service in SERVICES.items():
        for port in service.get("ports", []):
            assert re.search(rf"^\| `{name}` \|.*\| {port.split(':')[1]} \|$", page, re.MULTILINE)
