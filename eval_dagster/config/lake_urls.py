"""URLs of lakes that are not folders of a home."""

from urllib.parse import urlsplit

LAKE_VARIABLE = "EVAL_DAGSTER_LAKE"
"""Environment variable: the URL of the lake instead of `lake` in evals.yaml."""
LAKE_URLS = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder"
"""The forms of a URL, for messages."""

_SCHEMES = ("s3", "gs", "az", "file")


def wrong_lake_url(url: str) -> str | None:
    """The problem of a lake's URL; None if it is fine. The reason does not repeat the URL, which could hold a secret."""
    try:
        parts = urlsplit(url)
        has_credentials = parts.username is not None or parts.password is not None
    except ValueError:
        return "it is no URL"
    if parts.scheme not in _SCHEMES:
        return f"its scheme is {parts.scheme!r}" if "://" in url else "it has no scheme"
    if has_credentials or parts.query or parts.fragment:
        return "it has credentials, a query or a fragment; credentials are read from the environment alone"
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        return "it names no folder by an absolute path"
    if parts.scheme != "file" and not parts.netloc:
        return "it names no bucket"
    if {".", ".."} & set(parts.path.split("/")):
        return "its path has . or .. in it"
    return None
