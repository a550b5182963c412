"""Private names of Dagster for its servers."""

from dagster._cli.proxy_server_manager import ProxyServerManager
from dagster._utils.interrupts import setup_interrupt_handlers
from dagster._utils.log import configure_loggers

__all__ = [
    "ProxyServerManager",
    "configure_loggers",
    "setup_interrupt_handlers",
]
