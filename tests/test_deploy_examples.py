"""The files of examples/deploy, each read by the library that it is for."""

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._config import process_config
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.instance.config import dagster_instance_config_schema
from dagster._core.instance.ref import InstanceRef
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster._serdes import ConfigurableClassData
from documents import DOCS, blocks
from test_containers import ROOT, SECRET, check_arguments

from eval_dagster.assets import tags
from eval_dagster.assets.tags import model_tags
from eval_dagster.cli.servers.loopback_guard import ORIGINS_VARIABLE
from eval_dagster.cli.servers.mlflow_server import APP_NAME
from eval_dagster.config.loading import load_config
from eval_dagster.config.schema import Config
from eval_dagster.config.values import LAKE_VARIABLE
from eval_dagster.project import TRACKING_VARIABLE

FOLDER = ROOT / "examples" / "deploy"
VALUES: dict[str, Any] = yaml.safe_load((FOLDER / "kubernetes" / "values.yaml").read_text())
OVERLAY: dict[str, Any] = yaml.safe_load((FOLDER / "compose-s3.yaml").read_text())
BASE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
LIMITED = [tags.MODEL_TAG, tags.ENDPOINT_TAG]
SIZE = {"small": {"nvidia.com/gpu": "1", "memory": "24Gi"}, "large": {"nvidia.com/gpu": "2", "memory": "96Gi"}, "served": {"memory": "4Gi"}}


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(FOLDER / "evals.yaml")


def snake(value: Any) -> Any:
    """Keys of the chart's values as Dagster's settings have them."""
    if isinstance(value, Mapping):
        return {re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower(): snake(each) for key, each in value.items()}
    return [snake(each) for each in value] if isinstance(value, list) else value


def valid(schema: Any, value: Any) -> Any:
    """A value as Dagster reads it by a schema."""
    found = process_config(dg.Field(schema).config_type, value)
    assert found.success, found.errors
    return found.value


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield str(key)
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif value is not None:
        yield str(value)


# ---- docker compose


def test_the_store_is_published_on_loopback_and_its_keys_come_from_the_environment() -> None:
    for name, service in OVERLAY["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        for variable, value in service.get("environment", {}).items():
            assert not SECRET.search(variable) or str(value).startswith("${"), f"{name}: {variable}"
        assert name in BASE["services"] or (service["cap_drop"] == ["ALL"] and ":" in service["image"])


def test_the_code_location_waits_for_a_bucket_whose_name_is_that_of_the_lake() -> None:
    bucket, code = OVERLAY["services"]["bucket"], OVERLAY["services"]["code"]
    assert code["depends_on"] == {"bucket": {"condition": "service_completed_successfully"}}
    assert bucket["depends_on"] == {"store": {"condition": "service_healthy"}}
    name, _, _ = code["environment"][LAKE_VARIABLE].removeprefix("s3://").partition("/")
    assert bucket["entrypoint"][-1].endswith(f"store/{name}")
    assert not set(code["environment"]) & set(BASE["services"]["code"]["environment"]), "an overlay adds variables, and replaces none"
    assert code["environment"]["AWS_ENDPOINT_URL"].removeprefix("http://").partition(":")[0] in OVERLAY["services"]
    assert not set(OVERLAY["volumes"]) & set(BASE["volumes"])


# ---- Kubernetes


def launcher_config() -> dict[str, Any]:
    """The settings of the run launcher that the chart makes of the values, with those that it adds."""
    from dagster_k8s import K8sRunLauncher

    own = snake({key: value for key, value in VALUES["runLauncher"]["config"]["k8sRunLauncher"].items() if key != "runK8sConfig"})
    pod = {
        re.sub(r"(?=[A-Z])", "_", key).lower(): value
        for key, value in VALUES["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"].items()
    }
    chart = {
        "service_account_name": "dagster",
        "instance_config_map": "dagster-instance",
        "postgres_password_secret": VALUES["global"]["postgresqlSecretName"],
        "dagster_home": "/opt/dagster/dagster_home",
    }
    return dict(valid(K8sRunLauncher.config_type(), {**chart, **own, "run_k8s_config": pod}))


@pytest.mark.long
@pytest.mark.parametrize("model", SIZE)
def test_the_pod_of_a_run_has_the_resources_of_its_model(model: str, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.config.load_incluster_config", lambda: None)  # this is no pod
    from dagster_k8s import K8sRunLauncher
    from dagster_k8s.container_context import K8sContainerContext
    from dagster_k8s.job import construct_dagster_k8s_job

    (deployment,) = VALUES["dagster-user-deployments"]["deployments"]
    image = f"{deployment['image']['repository']}:{deployment['image']['tag']}"
    context = {
        "k8s": {
            "env_vars": [f"{each['name']}={each['value']}" for each in deployment["env"]],
            "env_secrets": [each["name"] for each in deployment["envSecrets"]],
            "volumes": deployment["volumes"],
            "volume_mounts": deployment["volumeMounts"],
        }
    }
    pointer = ModuleCodePointer("eval_dagster.assets.code_location", "defs")
    repository = RepositoryPythonOrigin("python", pointer, container_image=image, container_context=context)
    run = dg.DagsterRun(
        job_name="suite_nightly", tags=model_tags(config, [model]), job_code_origin=JobPythonOrigin("suite_nightly", repository)
    )
    launcher = K8sRunLauncher(**launcher_config(), k8s_client_batch_api=object(), k8s_client_core_api=object())
    of_run = K8sContainerContext.create_for_run(run, launcher, include_run_tags=True)
    job = construct_dagster_k8s_job(
        of_run.get_k8s_job_config(image, launcher), ["dagster"], "name", user_defined_k8s_config=of_run.run_k8s_config
    ).to_dict()
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == image
    assert container["resources"]["limits"] == SIZE[model]
    assert container["resources"]["requests"].items() >= SIZE[model].items()
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables[TRACKING_VARIABLE] == "http://mlflow:5000"
    assert {"name": "project", "mount_path": "/project", "read_only": True}.items() <= container["volume_mounts"][-1].items()
    assert pod["security_context"]["run_as_user"] == 10001
    assert pod["node_selector"] == ({"gpu": "h100"} if model == "large" else None)
    assert job["spec"]["ttl_seconds_after_finished"] == 86400


def test_the_daemon_of_the_chart_limits_models_and_endpoints_and_ends_killed_runs() -> None:
    daemon = VALUES["dagsterDaemon"]
    queue = daemon["runCoordinator"]["config"]["queuedRunCoordinator"]
    limits = [{**each, "value": dict(each["value"])} for each in queue["tagConcurrencyLimits"]]
    read = valid(QueuedRunCoordinator.config_type(), {"max_concurrent_runs": queue["maxConcurrentRuns"], "tag_concurrency_limits": limits})
    assert [each["key"] for each in read["tag_concurrency_limits"]] == LIMITED
    assert all(each["limit"] == 1 and each["value"] == {"applyLimitPerUniqueValue": True} for each in read["tag_concurrency_limits"])
    monitoring = valid(dagster_instance_config_schema()["run_monitoring"].config_type, snake(daemon["runMonitoring"]))
    assert monitoring["enabled"] is True
    assert monitoring["max_resume_run_attempts"] == 0


def test_no_file_of_kubernetes_holds_a_secret() -> None:
    for text in texts(VALUES):
        assert not re.search(r"://[^/]*:[^/]*@", text)
    for each in (*VALUES["dagster-user-deployments"]["deployments"][0]["env"], *VALUES["dagsterDaemon"]["env"]):
        assert not SECRET.search(each["name"])
    assert "password" not in json.dumps(VALUES["postgresql"]).lower()


def test_the_mlflow_of_kubernetes_runs_behind_the_guard() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow warns of its own types
        import mlflow.cli
    deployment, service = yaml.safe_load_all((FOLDER / "kubernetes" / "mlflow.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["command"]
    assert program == "mlflow"
    check_arguments(mlflow.cli.cli, arguments)
    assert arguments[arguments.index("--app-name") + 1] == APP_NAME
    variables = {each["name"]: each for each in container["env"]}
    assert "valueFrom" in variables["MLFLOW_BACKEND_STORE_URI"]
    assert "http://mlflow:5000" in variables[ORIGINS_VARIABLE]["value"].split()
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


# ---- Ray


@pytest.fixture
def ray_settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, value in {"EVALS_DAGSTER_DATABASE": "postgresql+psycopg2://u@h/d", "RAY_DASHBOARD": "http://127.0.0.1:8265"}.items():
        monkeypatch.setenv(name, value)
    settings: dict[str, Any] = yaml.safe_load((FOLDER / "ray" / "dagster.yaml").read_text())
    return settings


def test_dagster_reads_the_settings_for_ray(ray_settings: dict[str, Any], tmp_path: Path) -> None:
    from dagster_ray import RayRunLauncher

    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(ray_settings))
    ref = InstanceRef.from_dir(str(tmp_path))  # reads the whole file by Dagster's schema
    assert ref.run_storage_data.class_name == "PostgresRunStorage"
    launcher = ConfigurableClassData.rehydrate(ref.run_launcher_data, as_type=RayRunLauncher)
    assert launcher.address == "http://127.0.0.1:8265"
    assert [each["key"] for each in ref.settings["concurrency"]["runs"]["tag_concurrency_limits"]] == LIMITED
    assert ref.settings["run_monitoring"]["enabled"] is True
    assert {LAKE_VARIABLE, TRACKING_VARIABLE} <= set(launcher.env_vars or [])
    assert "EVALS_DAGSTER_DATABASE" not in (launcher.env_vars or []), "Ray's dashboard would show the password"


def test_a_ray_job_has_the_resources_of_its_model(config: Config) -> None:
    from dagster_ray.core.run_launcher import RayLauncherConfig

    small, large, served = (RayLauncherConfig.from_tags(model_tags(config, [model])) for model in SIZE)
    assert (small.num_gpus, small.num_cpus, small.memory) == (1, 4, 24 * 2**30)
    assert (large.num_gpus, large.num_cpus) == (2, None)
    assert served.num_gpus is None


def test_the_workspace_of_ray_names_a_code_location_on_loopback() -> None:
    (origin,) = location_origins_from_yaml_paths([str(FOLDER / "ray" / "workspace.yaml")])
    assert isinstance(origin, GrpcServerCodeLocationOrigin)
    assert (origin.host, origin.port, origin.location_name) == ("127.0.0.1", 4000, "eval_dagster")


# ---- the page


def test_the_blocks_of_the_page_are_those_of_the_files(config: Config, tmp_path: Path) -> None:
    shown: dict[str, Any] = {}
    for block in blocks(DOCS / "how-to" / "many-machines.md"):
        if block.language == "yaml":
            shown |= yaml.safe_load(block.text)
    assert shown.keys() == {"storage", "load_from", "concurrency", "models"}
    ray = yaml.safe_load((FOLDER / "ray" / "dagster.yaml").read_text())
    assert shown["concurrency"] == ray["concurrency"]
    assert shown["storage"] == ray["storage"]
    assert shown["load_from"] == yaml.safe_load((FOLDER / "ray" / "workspace.yaml").read_text())["load_from"]
    (tmp_path / "evals.yaml").write_text(yaml.safe_dump({"models": shown["models"], "evals": {"capitals": {"task": "capitals"}}}))
    assert load_config(tmp_path / "evals.yaml").models["large"].resources.gpus == 2


# ---- the tags


def test_runs_of_one_model_and_of_one_server_have_a_tag_that_the_queue_limits(config: Config) -> None:
    small, served = model_tags(config, ["small"]), model_tags(config, ["served"])
    assert small[tags.MODEL_TAG] == "small"
    assert tags.ENDPOINT_TAG not in small
    assert served[tags.ENDPOINT_TAG] == "vllm.models.svc:8000"


def test_a_run_of_several_models_has_the_most_that_one_of_them_needs(config: Config) -> None:
    together = model_tags(config, ["small", "large", "served"])
    assert tags.MODEL_TAG not in together
    limits = json.loads(together["dagster-k8s/config"])["container_config"]["resources"]["limits"]
    assert limits == {"memory": "96Gi", "nvidia.com/gpu": "2"}
    assert json.loads(together["dagster-ray/config"]) == {"num_gpus": 2, "num_cpus": 4, "memory": 96 * 2**30}


def test_a_model_without_resources_does_not_get_those_of_the_job_of_its_run(config: Config) -> None:
    bare = config.models["small"].model_copy(update={"resources": type(config.models["small"].resources)()})
    whole = config.model_copy(update={"models": {**config.models, "bare": bare}})
    merged = {**model_tags(whole, list(whole.models)), **model_tags(whole, ["bare"])}
    assert json.loads(merged["dagster-ray/config"]) == {}
    assert json.loads(merged["dagster-k8s/config"]) == {}


def test_a_model_without_resources_adds_no_tag_of_a_launcher(config: Config) -> None:
    bare = config.models["small"].model_copy(update={"resources": type(config.models["small"].resources)()})
    found = model_tags(config.model_copy(update={"models": {"bare": bare}}), ["bare"])
    assert found == {tags.MODEL_TAG: "bare"}
