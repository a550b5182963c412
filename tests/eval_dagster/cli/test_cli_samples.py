"""`eval-dagster samples`: the page of a result as a file, and what the end of a run says about the pages."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_nights import Nights

import eval_dagster.pages.samples.writing as writing
from eval_dagster.errors import UsageError
from eval_dagster.pages.samples.places import page_path, shown_pages
from eval_dagster.results.materializations import history

sys.path.append(str(Path(__file__).parents[1] / "pages"))
from page_contents import content_of

Cli = Callable[..., str]


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Nights:
    found = Nights(tmp_path_factory.mktemp("nights"))
    found.run()
    found.run(capitals=0.5)
    return found


@pytest.fixture
def cli(nights: Nights, cli_in: Callable[[Path], Callable[..., str]]) -> Cli:
    return cli_in(nights.folder)


@pytest.mark.long
def test_the_page_of_a_result_is_a_file_in_this_folder(cli: Cli, nights: Nights, tmp_path: Path) -> None:
    printed = cli("samples", "capitals", "mine")
    file = tmp_path / "samples-capitals-mine.html"
    assert printed.startswith("samples-capitals-mine.html has the samples of capitals on mine of ")
    assert "view" in printed.partition("Next")[2]
    assert content_of(file.read_bytes()) == content_of(page_path(nights.folder / "home", "capitals", "mine").read_bytes())
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


@pytest.mark.long
def test_another_result_and_another_model_beside_it(cli: Cli, nights: Nights, tmp_path: Path) -> None:
    first, second = (each.materialized_at for each in history(nights.project().lake, "capitals", "mine"))
    cli("samples", "capitals", "mine", "--at", f"{first:%Y-%m-%dT%H:%M:%S.%f}", "--against", "mine-bf16", "--to", "page.html")
    content = content_of((tmp_path / "page.html").read_bytes())
    assert content["materialized_at"] == first.isoformat()
    assert content["against"]["model"] == "mine-bf16"
    cli("samples", "capitals", "mine", "--at", "previous", "--to", "page.html")
    content = content_of((tmp_path / "page.html").read_bytes())
    assert (content["materialized_at"], content["against"]) == (first.isoformat(), None)
    cli("samples", "capitals", "mine", "--against", f"mine@{first:%Y-%m-%dT%H:%M:%S.%f}", "--to", "page.html")
    content = content_of((tmp_path / "page.html").read_bytes())
    assert (content["materialized_at"], content["against"]["materialized_at"]) == (second.isoformat(), first.isoformat())


@pytest.mark.long
def test_all_samples_are_there_if_they_are_asked_for(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_SAMPLES", 100)
    cli("samples", "capitals", "mine", "--to", "page.html")
    content = content_of((tmp_path / "page.html").read_bytes())
    assert (len(content["samples"]), content["total"]) == (100, 180)
    cli("samples", "capitals", "mine", "--all", "--to", "page.html")
    content = content_of((tmp_path / "page.html").read_bytes())
    assert (len(content["samples"]), content["total"]) == (180, 180)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("captials", "mine"), "unknown eval 'captials'; did you mean 'capitals'"),
        (("capitals", "mien"), "unknown model 'mien'; did you mean 'mine'"),
        (("capitals", "mine", "--against", "mine-bf17"), "unknown model 'mine-bf17'; did you mean 'mine-bf16'"),
        (("capitals", "mine", "--at", "2020-01-31"), "there is no result of capitals on mine@2020-01-31"),
        (("capitals", "mine", "--at", "yesterday"), "'yesterday' is no time"),
        (("capitals", "mine", "--to", "page.txt"), "expected a file whose name ends in .html"),
        (("capitals", "mine", "--to", "no/such/page.html"), "cannot be written"),
    ],
)
def test_what_is_not_there_is_explained(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cli("samples", *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_home_keeps_its_own_pages(cli: Cli, nights: Nights) -> None:
    page = page_path(nights.folder / "home", "capitals", "mine")
    before = page.read_bytes()
    with pytest.raises(UsageError, match="which contains the results; name a file elsewhere"):
        cli("samples", "capitals", "mine", "--against", "mine-bf16", "--to", str(page))
    assert page.read_bytes() == before


@pytest.mark.long
def test_a_result_that_never_changed_has_none_before_a_change(tmp_path: Path, cli_in: Callable[[Path], Cli]) -> None:
    folder = tmp_path / "nights"
    folder.mkdir()
    Nights(folder).run()
    with pytest.raises(UsageError, match="arithmetic on mine-bf16 has no result before its last change"):
        cli_in(folder)("samples", "arithmetic", "mine-bf16", "--at", "previous")


@pytest.mark.long
def test_few_pages_are_named_and_many_by_their_folder(nights: Nights) -> None:
    home = nights.folder / "home"
    few = [("capitals", "mine"), ("arithmetic", "mine-bf16")]
    assert shown_pages(home, [*few, ("capitals", "gone")]) == [str(page_path(home, *key)) for key in few]
    assert all(Path(each).is_file() for each in shown_pages(home, few))
    everything = [(name, model) for name in ("capitals", "capitals-completion", "arithmetic") for model in ("mine", "mine-bf16")]
    assert shown_pages(home, everything) == [str(home / "pages")]
    assert shown_pages(home / "none", few) == []


@pytest.mark.long
def test_the_leaderboard_names_pages_that_are_there(cli: Cli, nights: Nights) -> None:
    page = page_path(nights.folder / "home", "capitals", "mine")
    assert f"Samples: {page}\n" in cli("leaderboard", "--eval", "capitals", "--model", "mine")
    assert f"Samples: {nights.folder / 'home' / 'pages'}\n" in cli("leaderboard")
