"""Programs that are compiled: what they can do in the sandbox with their compilers, and what they cannot."""

import base64
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import needs

from eval_dagster.errors import RequirementError
from eval_dagster.peers import compilers
from eval_dagster.peers.programs import run_program
from eval_dagster.peers.workers.messages import ProgramEnded
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy, walls

HIDDEN = ["/etc/passwd", "/proc/self/environ", "/proc/self/maps", "/proc/1/environ", "/proc/sys/kernel/hostname", __file__]
JAVA = """
import java.io.*;
import java.net.*;
import java.nio.file.*;
import java.util.*;
import org.javatuples.*;

class Problem {
    static void denied(java.util.concurrent.Callable<?> attempt) throws Exception {
        try { attempt.call(); } catch (IOException expected) { return; }
        throw new AssertionError("possible");
    }

    public static long add(long x) {
"""
JAVA_TESTS = """
    }

    public static void main(String[] args) throws Exception {
        assert add(1) == 2;
        assert Pair.with(1, 2).getValue1() == 2;
        for (String path : List.of(%(hidden)s)) denied(() -> Files.readAllBytes(Path.of(path)));
        for (String path : List.of(%(kept)s)) denied(() -> new FileOutputStream(path));
        denied(() -> new Socket("127.0.0.1", 80));
        String[] home = new File("%(home)s").list();
        assert home == null || Set.of(%(shown)s).containsAll(List.of(home)) : Arrays.toString(home);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 4; i++) threads.add(new Thread(() -> add(1)));
        for (Thread thread : threads) { thread.start(); thread.join(); }
    }
}
"""
RUST = "use std::{collections::HashMap, fs, net, thread};\nfn add(x: i64) -> i64 {\n"
RUST_TESTS = """
}
fn main() {
    let counted: HashMap<i64, i64> = (0..4).map(|n| (n, thread::spawn(move || add(n)).join().unwrap())).collect();
    assert_eq!(counted[&1], 2);
    for path in [%(hidden)s] { assert!(fs::read(path).is_err(), "read {}", path); }
    for path in [%(kept)s] { assert!(fs::File::create(path).is_err(), "wrote {}", path); }
    assert!(net::UdpSocket::bind("127.0.0.1:0").is_err());
    for found in fs::read_dir("%(home)s").into_iter().flatten() {
        let name = found.unwrap().file_name().into_string().unwrap();
        assert!([%(shown)s].contains(&name.as_str()), "{}", name);
    }
}
"""
PROGRAMS = {"java": (JAVA, "        return x + %d;\n", JAVA_TESTS), "rs": (RUST, "    x + %d\n", RUST_TESTS)}


@pytest.fixture(autouse=True)
def _allowed() -> Iterator[None]:
    compilers.build_of.cache_clear()
    with sandbox_policy(SandboxPolicy(allowed=True)):
        yield
    compilers.build_of.cache_clear()


def run(language: str, program: str, command: str = "run", **settings: float) -> ProgramEnded:
    """The program in its file, as the metric of MultiPL-E asks for it."""
    file = base64.b64encode(program.encode()).decode()
    return run_program("python", {f"/sandbox/code.{language}": file}, [], commands=[command], **settings)


@pytest.mark.long
@pytest.mark.usefixtures("_sandbox")
@pytest.mark.parametrize("language", ["java", "rs"])
def test_a_program_runs_and_reaches_nothing_outside(language: str) -> None:
    try:
        toolchain = compilers.build_of(language).toolchain
    except RequirementError as problem:
        pytest.skip(str(problem))
    assert toolchain is not None
    home = Path.home()
    visible = [Path(path) for path in (*toolchain.paths, *walls.visible_paths()[0])]
    places = {
        "hidden": [*HIDDEN, str(home / ".bashrc"), str(home / ".ssh/id_rsa")],
        "kept": [toolchain.executable, "/proc/self/exe", "/usr/kept", "/kept"],
        "shown": sorted({path.relative_to(home).parts[0] for path in visible if path.is_relative_to(home)}) or ["none"],
    }
    texts = {name: ", ".join(f'"{path}"' for path in paths) for name, paths in places.items()}
    prompt, answer, tests = PROGRAMS[language]
    whole = tests % {**texts, "home": home}
    right = run(language, f"{prompt}{answer % 1}\n{whole}")
    assert right["exit_code"] == 0, right
    assert run(language, f"{prompt}{answer % 2}\n{whole}")["exit_code"] == 1


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@needs("a C compiler")
def test_of_a_shared_folder_rust_shows_its_own_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rustc = program(tmp_path / "bin/rustc", f"#!/bin/sh\necho {tmp_path}\n")
    for name in ("lib/rustlib/core", "lib/librustc_driver-1.so", "lib/python3/secret", "bin/other", "notes"):
        program(tmp_path / name, "")
    monkeypatch.setenv("PATH", str(rustc.parent), prepend=os.pathsep)
    toolchain = compilers.build_of("rs").toolchain
    assert toolchain is not None
    assert toolchain.executable == str(rustc)
    assert set(toolchain.paths) == {str(tmp_path / name) for name in ("bin/rustc", "lib/rustlib", "lib/librustc_driver-1.so")}


def test_of_java_the_settings_that_a_distribution_keeps_elsewhere_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jdk/bin/java", "jdk/bin/javac", "jdk/lib/other", "etc/jvm.cfg", "etc/security/java.security", "etc/secret", "tuples.jar"):
        program(tmp_path / name, "")
    (tmp_path / "jdk/conf").mkdir()
    (tmp_path / "jdk/conf/security").symlink_to(tmp_path / "etc/security")
    (tmp_path / "jdk/lib/jvm.cfg").symlink_to(tmp_path / "etc/jvm.cfg")
    monkeypatch.setenv("PATH", str(tmp_path / "jdk/bin"))
    monkeypatch.setattr(compilers, "_JAVATUPLES", (str(tmp_path / "tuples.jar"),))
    toolchain = compilers.build_of("java").toolchain
    assert toolchain is not None
    assert toolchain.executable == str(tmp_path / "jdk/bin/java")
    wanted = {"jdk/bin", "jdk/lib", "jdk/conf", "etc/jvm.cfg", "etc/security/java.security"}
    assert set(toolchain.paths) == {str(tmp_path / name) for name in wanted}


@pytest.mark.parametrize(
    ("language", "given", "message"),
    [
        ("cpp", {}, "the programs need g\\+\\+, which this machine does not have in .*; install it"),
        ("rs", {"cc": ""}, "the programs need rustc, which"),
        ("rs", {"cc": "", "rustc": "#!/bin/sh\necho no toolchain >&2\nexit 1\n"}, "rustc --print sysroot failed: no toolchain; repair"),
        ("java", {"javac": ""}, "is not part of a Java development kit: .* has no bin/java; install one"),
        ("java", {"javac": "", "java": "", "../lib/jvm.cfg": "", "../conf/security/java.security": ""}, "apt install libjavatuples-java"),
    ],
)
def test_what_the_machine_lacks_is_named(
    language: str, given: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name, text in given.items():
        program(tmp_path / "bin" / name, text)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(compilers, "PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(compilers, "_JAVATUPLES", ("/nowhere/javatuples.jar",))
    with pytest.raises(RequirementError, match=message):
        compilers.build_of(language)


def test_a_development_kit_among_other_programs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder `lib` has the packages of Python, which programs must not see."""
    for name in ("bin/javac", "bin/java", "conf/security/java.security", "lib/jvm.cfg", "lib/python3.11/site-packages/own.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(RequirementError, match="install it in a folder of its own"):
        compilers.build_of("java")


@pytest.mark.usefixtures("_sandbox")
def test_a_program_that_never_ends_has_the_status_of_the_command_that_ends_it() -> None:
    ended = run("sh", "while true; do :; done", "timeout 1 bash code.sh")
    assert (ended["exit_code"], ended["timed_out"]) == (124, False)
