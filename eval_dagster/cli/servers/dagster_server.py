"""Dagster's web server behind the guard, its daemon and its code servers: `python -m eval_dagster.cli.servers.dagster_server`.

It starts the same processes as `dagster dev`, except that the web server runs in this process, behind the guard. With `--web-only`, the
daemon and the code servers run elsewhere, for instance in other containers.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
import yaml
from dagster import DagsterInstance
from dagster_webserver.app import create_app_from_workspace_process_context

from eval_dagster.cli.servers.loopback_guard import LoopbackGuard
from eval_dagster.dagster_internals.instances import (
    ProxyServerManager,
    WorkspaceFileTarget,
    WorkspaceProcessContext,
    configure_loggers,
    setup_interrupt_handlers,
)

_STOP_S = 30.0
_POLL_RATE_MS = 2000
"""Interval at which pages request the state of assets."""
_PAGES = r"/(?!(graphql|logs|notebook|dagit|download_debug|report_asset_\w+)(/|$)).*"


def main() -> None:
    """Serve until an interrupt, or until the daemon has ended."""
    arguments = argument_parser().parse_args()
    setup_interrupt_handlers()
    configure_loggers(formatter="colored", log_level="INFO")
    with DagsterInstance.get() as instance:
        if arguments.web_only:
            with _web_server(instance, arguments.workspace, arguments.host, arguments.port) as server, suppress(KeyboardInterrupt):
                server.run()
            return
        os.environ |= {"DAGSTER_IS_DEV_CLI": "1", "DAGSTER_verbose": ""}
        with _code_servers(instance, arguments.workspace) as workspace, _daemon(workspace) as daemon:
            with _web_server(instance, workspace, arguments.host, arguments.port) as server:

                def end_with_daemon() -> None:
                    daemon.wait()
                    server.should_exit = True

                threading.Thread(target=end_with_daemon, daemon=True).start()
                server.run()
            if daemon.poll() is not None:
                sys.exit(f"the daemon ended by itself, with status {daemon.returncode}")


def argument_parser() -> argparse.ArgumentParser:
    """The arguments of the program."""
    parser = argparse.ArgumentParser(prog="eval_dagster.cli.servers.dagster_server", description=__doc__)
    parser.add_argument("--workspace", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--web-only", action="store_true", help="start no daemon and no code servers")
    return parser


@contextmanager
def _web_server(instance: DagsterInstance, workspace: str, host: str, port: int) -> Iterator[uvicorn.Server]:
    """The web server behind the guard, before it runs."""
    instance.optimize_for_webserver(statement_timeout=15_000, pool_recycle=3600, max_overflow=20)
    with WorkspaceProcessContext(instance, WorkspaceFileTarget(paths=[workspace])) as context:
        app = create_app_from_workspace_process_context(context, live_data_poll_rate=_POLL_RATE_MS)
        guarded = LoopbackGuard(app, pages=_PAGES, graphql=["/graphql"])
        yield uvicorn.Server(uvicorn.Config(guarded, host=host, port=port, log_level="warning"))


@contextmanager
def _code_servers(instance: DagsterInstance, workspace: str) -> Iterator[str]:
    """Start the code servers of a workspace, and yield a workspace file that names them for the web server and the daemon."""
    target = WorkspaceFileTarget(paths=[workspace])
    with ProxyServerManager(instance, target, code_server_log_level="warning") as servers, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "workspace.yaml")
        path.write_text(yaml.safe_dump({"load_from": list(servers.get_code_server_specs())}))
        yield str(path)


@contextmanager
def _daemon(workspace: str) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-m", "dagster._daemon", "run", "--workspace", workspace]) as daemon:
        try:
            yield daemon
        finally:
            daemon.send_signal(signal.SIGINT)
            try:
                daemon.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                daemon.kill()


if __name__ == "__main__":
    main()
