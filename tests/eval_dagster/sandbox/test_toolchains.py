"""What a program can do with the files of a compiler, and what it cannot."""

from collections.abc import Callable
from pathlib import Path

import pytest
from needs import needs

from eval_dagster.errors import RequirementError
from eval_dagster.sandbox import SandboxResult, Toolchain, walls

Run = Callable[..., SandboxResult]


@pytest.fixture
def toolchain(tmp_path: Path) -> Toolchain:
    """A compiler in a folder beside the files of a user."""
    (tmp_path / "prefix/bin").mkdir(parents=True)
    (tmp_path / "prefix/bin/compiler").write_text("a compiler")
    (tmp_path / "prefix/bin/other").write_text("hidden")
    (tmp_path / "secret").write_text("hidden")
    compiler = str(tmp_path / "prefix/bin/compiler")
    return Toolchain(executable=compiler, paths=(compiler,))


def test_a_program_finds_the_compiler_and_no_file_beside_it(run_program: Run, toolchain: Toolchain, tmp_path: Path) -> None:
    code = f"""
    import os
    assert os.readlink("/proc/self/exe") == {toolchain.executable!r}
    assert open("/proc/self/exe").read() == "a compiler"
    assert os.listdir({str(tmp_path)!r}) == ["prefix"], os.listdir({str(tmp_path)!r})
    assert os.listdir({str(tmp_path / "prefix")!r}) == ["bin"]
    assert os.listdir({str(tmp_path / "prefix/bin")!r}) == ["compiler"]
    """
    result = run_program(code, toolchain=toolchain)
    assert result.completed, result.stderr


def test_nothing_of_the_kernel_is_in_proc(run_program: Run, toolchain: Toolchain) -> None:
    code = """
    import os
    found = [os.path.join(folder, name) for folder, folders, names in os.walk("/proc") for name in (*folders, *names)]
    assert found == ["/proc/self", "/proc/self/exe"], found
    for name in ("1/environ", "self/environ", "self/mem", "self/maps", "self/fd", "sys/kernel/core_pattern", "mounts", "sysrq-trigger"):
        assert not os.path.lexists(f"/proc/{name}"), name
    """
    result = run_program(code, toolchain=toolchain)
    assert result.completed, result.stderr


def test_it_can_change_neither_the_compiler_nor_where_it_is_found(run_program: Run, toolchain: Toolchain) -> None:
    code = f"""
    import os
    def denied(attempt):
        try:
            attempt()
        except OSError:
            return True
    for path in ({toolchain.executable!r}, "/proc/self/exe"):
        assert denied(lambda: open(path, "w")), path
        assert denied(lambda: os.unlink(path)), path
        assert denied(lambda: os.chmod(path, 0o777)), path
    for folder in ("/proc", "/proc/self", "/"):
        assert denied(lambda: open(f"{{folder}}/new", "w")), folder
    """
    result = run_program(code, toolchain=toolchain)
    assert result.completed, result.stderr
    assert Path(toolchain.executable).read_text() == "a compiler"


def test_another_program_sees_nothing_of_it(run_program: Run, toolchain: Toolchain) -> None:
    assert run_program("pass", toolchain=toolchain).completed
    code = f"import os; print(os.path.lexists({toolchain.executable!r}), os.path.lexists('/proc'))"
    assert run_program(code).stdout == "False False\n"


@pytest.mark.parametrize("folder", ["/", "home", "parent", "link"])
def test_the_home_of_the_user_is_no_compiler(run_program: Run, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "people/me"
    home.mkdir(parents=True)
    (tmp_path / "tools").symlink_to(home)
    monkeypatch.setenv("HOME", str(home))
    path = {"/": "/", "home": home, "parent": home.parent, "link": tmp_path / "tools"}[folder]
    wide = Toolchain(executable="/usr/bin/true", paths=(str(path),))
    with pytest.raises(RequirementError, match=r"the compiler /usr/bin/true needs the folder .*, which contains"):
        run_program("pass", toolchain=wide)


@needs("bubblewrap")
def test_what_every_program_sees_is_not_shown_twice() -> None:
    plain = walls.bubblewrap(2**20)
    command = walls.bubblewrap(2**20, Toolchain(executable="/usr/bin/true", paths=("/usr/bin/true", "/usr/lib")))
    assert "/proc/self/exe" in command
    assert command.count("--ro-bind") == plain.count("--ro-bind")
    assert "/proc/self/exe" not in plain
