"""Which requests reach a server behind the guard: those of its own pages, of links to them, and of programs."""

from collections.abc import Mapping

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from eval_dagster.cli.servers.loopback_guard import ORIGINS_VARIABLE, LoopbackGuard, origin_of

OWN = "http://127.0.0.1:3000"
SOCKET = "ws://127.0.0.1:3000/graphql"
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
JSON = {"content-type": "application/json"}


async def answer(request: Request) -> Response:
    return PlainTextResponse("reached", headers={"x-frame-options": "ALLOWALL", "content-security-policy": "base-uri 'none'"})


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("reached")
    await socket.close()


def client(origins: list[str] | None = None) -> TestClient:
    methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"]
    app = Starlette(routes=[WebSocketRoute("/graphql", talk), Route("/{path:path}", answer, methods=methods)])
    guarded = LoopbackGuard(app, pages="/(?!api/).*", graphql=["/graphql"], origins=origins)  # type: ignore[arg-type]
    return TestClient(guarded, base_url=OWN)


def status(method: str, path: str, headers: Mapping[str, str], origins: list[str] | None = None) -> int:
    return client(origins).request(method, path, headers=headers).status_code


@pytest.mark.parametrize("host", ["127.0.0.1:3000", "localhost:3000", "LOCALHOST:3000", "[::1]:3000"])
def test_the_names_of_this_machine_are_served(host: str) -> None:
    assert status("GET", "/", {"host": host}) == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:3000", "127.0.0.1", "127.0.0.1:3001", "localhost:5000", "localhost.evil.example:3000", ""),
        *("127.0.0.1:3000.evil.example", "evil@127.0.0.1:3000", "127.0.0.1:3000/", "127.0.0.1:3000#x", "0.0.0.0:3000", "localhost.:3000"),
        *("[::1", "[::ffff:7f00:1]:3000", "2130706433:3000", "127.1:3000", "127.0.0.1:x", "127.0.0.1:99999"),
    ],
)
def test_other_names_are_refused(host: str) -> None:
    assert status("GET", "/", {"host": host}) == 403


def test_one_good_name_of_two_is_not_enough() -> None:
    answered = client().get("/", headers=[("host", "127.0.0.1:3000"), ("host", "evil.example")])
    assert answered.status_code == 403
    assert "'evil.example'; the pages are served as http://127.0.0.1:3000, " in answered.text


@pytest.mark.parametrize("path", ["//graphql", "/graphql/", "/./graphql", "/x/..//graphql"])
def test_other_ways_to_write_the_path_of_graphql_are_the_same(path: str) -> None:
    scope = {"type": "http", "path": path, "method": "GET", "headers": [(b"host", b"127.0.0.1:3000")], "server": ("127.0.0.1", 3000)}
    guard = LoopbackGuard(None, pages="/", graphql=["/graphql"])  # type: ignore[arg-type]
    assert (guard._refusal(scope) or (None,))[0] == 405


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:8000", "http://localhost", "https://127.0.0.1:3000", "null", ""]
)
def test_what_comes_from_other_origins_is_refused(method: str, origin: str) -> None:
    assert status(method, "/x", {"origin": origin}) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_what_comes_from_other_sites_is_refused(site: str) -> None:
    for headers in (
        {},
        {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ):
        assert status("GET", "/", {"sec-fetch-site": site, **headers}) == 403


def test_links_of_other_sites_lead_to_pages_alone() -> None:
    assert status("GET", "/assets/leaderboard", LINK) == 200
    assert status("GET", "/api/runs", LINK) == 403
    assert status("POST", "/assets/leaderboard", LINK) == 403


def test_its_own_pages_and_programs_are_served() -> None:
    own = {"origin": OWN, "sec-fetch-site": "same-origin"}
    assert status("POST", "/graphql", {**own, **JSON}) == 200
    assert status("POST", "/graphql", {**own, "content-type": "application/json; charset=utf-8"}) == 200
    assert status("POST", "/graphql", JSON) == 200
    assert status("PUT", "/api/runs", own) == 200
    assert status("GET", "/api/runs", {"sec-fetch-site": "none"}) == 200


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"origin": OWN, "accept": "application/json"}),
        ("GET", {"accept": "text/html", "content-length": "2"}),
        ("HEAD", {}),
        ("POST", {"origin": OWN, "content-type": "text/plain"}),
        ("POST", {"origin": OWN, "content-type": "application/x-www-form-urlencoded"}),
        ("POST", {"origin": OWN, "content-type": "text/plain; application/json"}),
        ("POST", {"origin": OWN}),
    ],
)
def test_graphql_is_the_body_of_a_post(method: str, headers: dict[str, str]) -> None:
    assert status(method, "/graphql?query=mutation{a}", headers) == 405


def test_the_page_for_graphql_is_shown() -> None:
    assert status("GET", "/graphql?query={a}", {"accept": "text/html,*/*"}) == 200
    both = client().get("/graphql?query={a}", headers=[("accept", "*/*"), ("accept", "text/html")])
    assert both.status_code == 405  # the server reads the first alone


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"origin": "http://127.0.0.1:8000"}, {"host": "evil.example:3000"}])
def test_foreign_websockets_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(WebSocketDisconnect) as refused, client().websocket_connect(SOCKET, headers={"host": "127.0.0.1:3000", **headers}):
        pass
    assert refused.value.code == 1008


def test_its_own_websockets_are_served() -> None:
    with client().websocket_connect(SOCKET, headers={"host": "127.0.0.1:3000", "origin": OWN}) as socket:
        assert socket.receive_text() == "reached"


def test_pages_stand_in_no_foreign_frame() -> None:
    for answered in (client().get("/"), client().get("/", headers={"host": "evil.example"})):
        assert answered.headers.get_list("x-frame-options") == ["SAMEORIGIN"]
        assert "frame-ancestors 'self'" in answered.headers.get_list("content-security-policy")
        assert answered.headers["cross-origin-opener-policy"] == "same-origin"
    assert "base-uri 'none'" in client().get("/").headers.get_list("content-security-policy")


def test_a_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    proxied = {"host": "evals.example.org", "origin": "https://evals.example.org", **JSON}
    assert status("POST", "/graphql", proxied) == 403
    assert status("POST", "/graphql", proxied, ["https://evals.example.org"]) == 200
    assert status("POST", "/graphql", {**proxied, "origin": "http://evals.example.org"}, ["https://evals.example.org"]) == 403
    assert status("POST", "/graphql", {**proxied, "host": "evals.example.org:3000"}, ["https://evals.example.org"]) == 403
    assert status("GET", "/", {}, ["https://evals.example.org"]) == 200
    monkeypatch.setenv(ORIGINS_VARIABLE, "https://other.example https://evals.example.org")
    assert status("POST", "/graphql", proxied) == 200


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Evals.example.org/", "https://evals.example.org"),
        ("http://localhost:80", "http://localhost"),
        ("http://[::1]:8080/path", "http://[::1]:8080"),
        ("evals.example.org", None),
        ("ftp://evals.example.org", None),
        ("http://host:port", None),
        ("http://[", None),
    ],
)
def test_origins_of_addresses(url: str, origin: str | None) -> None:
    assert origin_of(url) == origin
