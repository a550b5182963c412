"""The real `eval-dagster ui`: web pages of others can neither command it, nor read from it, nor show it in a frame; Ctrl-C ends it."""

import http.client
import json
import urllib.request
from collections.abc import Callable
from urllib.parse import quote, urlsplit

import psutil
import pytest
from few import few
from hostile_page import EXPERIMENT, PAUSE, hostile_page
from playwright.sync_api import Browser, Page, expect
from ui_servers import RunningUi, is_open, port_of, until

pytestmark = pytest.mark.e2e

CONFIG = """
    models:
      a: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, num_fewshot: 1, limit: 5}
"""
ASSETS = {"dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores", "task_metrics", "leaderboard"}
FOREIGN = {"Origin": "http://evil.example"}
JSON = {"Content-Type": "application/json"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "graphql-ws",
}


@pytest.fixture(scope="module")
def ui(start_ui: Callable[..., RunningUi]) -> RunningUi:
    return start_ui(CONFIG)


def status(url: str, method: str = "GET", headers: dict[str, str] | None = None, body: str | None = None) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", port_of(url), timeout=60)
    try:
        connection.request(method, f"{parts.path or '/'}?{parts.query}", body, headers or {})
        return connection.getresponse().status
    finally:
        connection.close()


def is_paused(ui: RunningUi) -> bool:
    return bool(ui.query("{ autoMaterializePaused: instance { autoMaterializePaused } }")["autoMaterializePaused"]["autoMaterializePaused"])


def experiments(ui: RunningUi) -> set[str]:
    with urllib.request.urlopen(f"{ui.mlflow}/api/2.0/mlflow/experiments/search?max_results=100", timeout=60) as answer:
        return {experiment["name"] for experiment in json.load(answer)["experiments"]}


@pytest.mark.long
def test_a_program_commands_it(ui: RunningUi) -> None:
    """What the trials below try does have an effect, sent as the page itself sends it."""
    for paused in ("true", "false"):
        ui.query(PAUSE.replace("true", paused))
        assert is_paused(ui) is (paused == "true")


@pytest.mark.long
def test_foreign_requests_change_nothing(ui: RunningUi) -> None:
    mutation, mutated = json.dumps({"query": PAUSE}), f"{ui.dagster}/graphql?query={quote(PAUSE)}"
    port = port_of(ui.dagster)
    ui.query(PAUSE.replace("true", "false"))
    assert status(mutated) == 405
    assert status(mutated, headers=FOREIGN) == 403
    assert status(mutated, "POST", {"Content-Type": "text/plain"}) == 405
    for headers in (FOREIGN, {"Origin": "null"}, {"Origin": f"http://127.0.0.1:{port + 1}"}, {"Origin": ui.mlflow}):
        assert status(f"{ui.dagster}/graphql", "POST", {**JSON, **headers}, mutation) == 403
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1"):
        assert status(f"{ui.dagster}/graphql", "POST", {**JSON, "Host": host}, mutation) == 403
    assert status(f"{ui.dagster}/report_asset_materialization/leaderboard", "POST", {**JSON, **FOREIGN}, "{}") == 403
    assert not is_paused(ui)

    create = f"{ui.mlflow}/api/2.0/mlflow/experiments/create"
    for headers in (FOREIGN, {"Origin": ui.dagster}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "same-site"}):
        assert status(create, "POST", {**JSON, **headers}, json.dumps(EXPERIMENT)) == 403
    assert EXPERIMENT["name"] not in experiments(ui)


@pytest.mark.long
def test_foreign_websockets_are_refused(ui: RunningUi) -> None:
    for headers in (FOREIGN, {"Origin": ui.mlflow}, {"Host": "evil.example"}):
        assert status(f"{ui.dagster}/graphql", headers={**UPGRADE, **headers}) == 403
    assert status(f"{ui.dagster}/graphql", headers={**UPGRADE, "Origin": ui.dagster}) == 101


@pytest.mark.long
@few("name", ["127.0.0.1", "localhost"], kept=1)
def test_a_page_on_another_port_can_do_nothing(ui: RunningUi, page: Page, name: str) -> None:
    dagster, mlflow = (url.replace("127.0.0.1", name) for url in (ui.dagster, ui.mlflow))
    with hostile_page(dagster, mlflow) as port:
        page.goto(f"http://{name}:{port}/")
        outcomes = page.evaluate("attack()")
        framed = [frame.url for frame in page.frames[1:]]
        page.locator("#link").click()
        expect(page.get_by_text("leaderboard", exact=True).first).to_be_visible()

    for attempt in ("post", "read", "experimentJson", "runs", "socket"):
        assert outcomes[attempt].startswith("refused"), outcomes
    assert framed
    assert all(url.startswith("chrome-error:") for url in framed), framed
    assert not is_paused(ui)
    assert EXPERIMENT["name"] not in experiments(ui)


@pytest.mark.long
def test_a_name_that_is_bound_to_this_machine_reaches_nothing(ui: RunningUi, start_browser: Callable[..., Browser]) -> None:
    """DNS rebinding: for the browser, the server is a page of evil.example."""
    page = start_browser("--host-resolver-rules=MAP *.example 127.0.0.1").new_page()
    for url in (ui.dagster, ui.mlflow):
        answer = page.goto(f"http://evil.example:{port_of(url)}/")
        assert answer is not None
        assert answer.status == 403
        assert "names the host 'evil.example:" in page.content()


@pytest.mark.long
def test_daemon_and_code_location_are_served_too(ui: RunningUi) -> None:
    """As by `dagster dev`: the daemon beats, and the code is loaded anew without a restart."""
    health = "{ instance { daemonHealth { allDaemonStatuses { daemonType healthy required } } } }"

    def unhealthy() -> list[str]:
        statuses = ui.query(health)["instance"]["daemonHealth"]["allDaemonStatuses"]
        return [status["daemonType"] for status in statuses if status["required"] and not status["healthy"]]

    until(lambda: not unhealthy(), 90, lambda: f"unhealthy: {unhealthy()}")
    fields = "__typename ... on WorkspaceLocationEntry { loadStatus }"
    reload = f'mutation {{ reloadRepositoryLocation(repositoryLocationName: "eval_dagster") {{ {fields} }} }}'
    assert ui.query(reload)["reloadRepositoryLocation"] == {"__typename": "WorkspaceLocationEntry", "loadStatus": "LOADED"}


@pytest.mark.long
def test_serves_both_on_loopback_until_ctrl_c(ui: RunningUi) -> None:
    """The last test of these servers."""
    for url in (ui.dagster, ui.mlflow):
        assert urlsplit(url).hostname == "127.0.0.1"
        with urllib.request.urlopen(url, timeout=60) as page:
            assert page.status == 200
    nodes = ui.query("{ assetNodes { assetKey { path } } }")["assetNodes"]
    assert {node["assetKey"]["path"][0] for node in nodes} >= ASSETS
    listening = _listening(ui)
    assert {port_of(ui.dagster), port_of(ui.mlflow)} <= {port for _, port in listening}
    assert {host for host, _ in listening} <= {"127.0.0.1", "::1"}

    status, alive = ui.interrupt()

    assert status == 0, ui.printed
    assert alive == []
    assert not is_open(port_of(ui.dagster))
    assert not is_open(port_of(ui.mlflow))
    assert "Traceback" not in ui.printed


def _listening(ui: RunningUi) -> set[tuple[str, int]]:
    """Address and port of each socket that any process of the command listens on."""
    return {
        (connection.laddr.ip, connection.laddr.port)
        for process in ui.processes()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
