"""Addresses of MLflow stores, checked before anything is sent to one."""

from urllib.parse import urlsplit

from eval_dagster.texts.suggestions import did_you_mean

TRACKING_URIS = "http://host:port or https://host, or a database: sqlite:///file, postgresql://..., mysql://... or mssql://..."
"""The allowed addresses, as a text that follows `expected`."""
_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")


def wrong_uri(uri: str) -> str | None:
    """The mistake in the address of an MLflow store. The text contains only its scheme, since an address can contain a password."""
    try:
        parts = urlsplit(uri)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        return "this is no address"
    scheme = parts.scheme.partition("+")[0]
    if scheme not in _SCHEMES:
        return f"its scheme is {parts.scheme!r}{did_you_mean(scheme, _SCHEMES)}"
    if not uri.isprintable() or " " in uri or not port_is_right:
        return "this is no address"
    if scheme in ("http", "https") and not parts.hostname:
        return "it names no host"
    if scheme == "sqlite" and parts.path in ("", "/", "/:memory:"):
        return "it names no file, so that nothing would be kept"
    return None
