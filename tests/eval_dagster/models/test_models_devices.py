"""Which device `auto` is, and when torch has to be asked for it."""

import ctypes
import importlib.util
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eval_dagster.config.models import TransformersModel
from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.network import devices
from eval_dagster.models.transformers.network.batching import BatchRunner, check_device


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    devices._may_have_accelerator.cache_clear()
    yield
    devices._may_have_accelerator.cache_clear()


def test_auto_is_what_torch_finds() -> None:
    found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert devices.device_of("auto") == found
    assert devices.device_of("cuda:1") == "cuda:1"


@pytest.mark.parametrize(
    ("build", "has_driver", "has_card", "is_asked"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", True, True, False),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", False, False, False),
        ("cuda = '13.0'\nhip = None", True, False, True),
        ("cuda = '13.0'\nhip = None", False, True, True),
        ("cuda = None\nhip = '7.1'", False, False, True),
        ("", True, False, True),
        (None, False, False, True),
    ],
    ids=[
        "built for the processor",
        "nothing",
        "driver",
        "card",
        "another maker's",
        "unknown",
        "no file",
    ],
)
def test_torch_is_asked_only_where_it_may_find_a_device(
    build: str | None, has_driver: bool, has_card: bool, is_asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build is not None:
        (tmp_path / "version.py").write_text(build)
    card = tmp_path / "card"
    if has_card:
        card.touch()
    monkeypatch.setattr(devices, "_CUDA_DEVICES", (str(card),))

    def load(name: str) -> None:
        assert name == "libcuda.so.1"
        if not has_driver:
            raise OSError(name)

    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None, origin=str(tmp_path / "__init__.py")))
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.device_of("auto") == ("cuda" if is_asked else "cpu")


def test_a_device_that_is_not_there_is_named() -> None:
    count = torch.cuda.device_count()
    problem = devices.device_problem(f"cuda:{count}")
    assert problem is not None
    assert f"'cuda:{count}' is not there" in problem
    assert devices.device_problem("cpu") is None


def faked_gpu(monkeypatch: pytest.MonkeyPatch, *, name: str = "NVIDIA H100 80GB HBM3", minor: int = 0, driver: int | None = 13000) -> None:
    class Driver:
        @staticmethod
        def cuDriverGetVersion(number: Any) -> int:  # noqa: N802
            number._obj.value = driver
            return 0

    def load(library: str) -> Any:
        assert library == "libcuda.so.1"
        if driver is None:
            raise OSError(library)
        return Driver()

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name=name, major=9, minor=minor))


def test_a_gpu_is_known_by_what_rounds_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(**settings: Any) -> tuple[str, ...]:
        faked_gpu(monkeypatch, **settings)
        return devices.device_kind("cuda")

    first = kind()
    assert first[:4] == ("cuda", "NVIDIA H100 80GB HBM3", "9.0", "driver 13000")
    assert devices.device_kind("cuda:1") == first, "its number rounds nothing"
    assert len({first, kind(name="NVIDIA A100"), kind(minor=1), kind(driver=12080), kind(driver=None)}) == 5
    faked_gpu(monkeypatch)
    for owner, switch in (
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
        (torch.backends.cudnn, "deterministic"),
    ):
        before = getattr(owner, switch)
        setattr(owner, switch, not before)
        try:
            assert devices.device_kind("cuda") != first, switch
        finally:
            setattr(owner, switch, before)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert devices.device_kind("cuda") != first
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    assert devices.device_kind("cuda") == first


def test_the_precision_is_read_by_either_of_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    faked_gpu(monkeypatch)
    first, matmul = devices.device_kind("cuda"), torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        assert devices.device_kind("cuda") != first, "torch refuses to read `allow_tf32` from here on"
    finally:
        matmul.fp32_precision = before
    assert devices.device_kind("cuda") == first


def test_a_device_that_is_lost_ends_the_run_and_another_error_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    illegal = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with TORCH_USE_CUDA_DSA")
    asked: list[int] = []
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "synchronize", asked.append)
    check_device(illegal)
    assert asked == [0, 1], "the device still answers: the error is that of its request"

    def lost(index: int) -> None:
        if index == 1:
            raise illegal

    monkeypatch.setattr(torch.accelerator, "synchronize", lost)
    for harmless in (RuntimeError("shapes"), torch.OutOfMemoryError("CUDA out of memory"), ValueError("x")):
        check_device(harmless)

    def forward(_: Any) -> Any:
        raise illegal

    runner = BatchRunner(rows=2, tokens=None)
    with pytest.raises(ModelError, match=r"computes nothing more in this process \(AcceleratorError: CUDA error: an illegal memory access"):
        list(runner.run([1, 2, 3], length=lambda _: 1, forward=forward))


@pytest.mark.parametrize(("device", "vary"), [("cpu", False), ("cuda", True), ("cuda:1", True), ("mps", True)])
def test_answers_of_a_gpu_are_asked_again_before_they_count_as_worse(device: str, vary: bool, tmp_path: Path) -> None:
    config = TransformersModel.model_validate({"backend": "transformers", "source": {"folder": "m"}, "device": device})
    handle = TransformersHandle.open("m", config, folder=tmp_path, home=tmp_path)
    assert handle.answers_vary() is vary
