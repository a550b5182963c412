"""Programs that try to get out of the sandbox, or to hold more memory than is counted; and ordinary ones, which notice none of it."""

import contextvars
import platform
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from errno import EAFNOSUPPORT, ENOSYS, EPERM

import pytest

from eval_dagster.sandbox import SandboxResult
from eval_dagster.sandbox.system_calls import ARCHITECTURES, filter_steps

Run = Callable[..., SandboxResult]
LIMIT = 2**27
"""Bytes of memory in the trials that try to hold more."""
MACHINE = platform.machine()
x86 = pytest.mark.skipif(MACHINE != "x86_64", reason="calls of x86_64")

_CALLS = """
import ctypes, errno, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def refused(result, *numbers):
    assert result == -1, result
    assert ctypes.get_errno() in (numbers or (errno.EPERM,)), os.strerror(ctypes.get_errno())
def fails(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return
    raise AssertionError(arguments)
"""
REFUSED = {
    "sockets of every other family": """
        for family in list(range(2, 64)) + [-1, 2**16, 2**32 - 1]:
            for kind in (1, 2, 3, 5):
                refused(libc.socket(family, kind, 0), errno.EAFNOSUPPORT)
            refused(libc.socketpair(family, 1, 0, (ctypes.c_int * 2)()), errno.EAFNOSUPPORT)
    """,
    "a family in the upper half of the register": """
        refused(libc.syscall(ctypes.c_long(socket_call), ctypes.c_long(40 + 2**32), ctypes.c_long(1), ctypes.c_long(0)), errno.EAFNOSUPPORT)
    """,
    "sockets of other machines and of the kernel": """
        for family in ("AF_VSOCK", "AF_NETLINK", "AF_PACKET", "AF_ALG", "AF_INET", "AF_INET6", "AF_BLUETOOTH", "AF_CAN", "AF_TIPC"):
            if hasattr(socket, family):
                fails(socket.socket, getattr(socket, family), socket.SOCK_DGRAM)
    """,
    "larger queues": """
        one, other = socket.socketpair()
        fails(one.setsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        fails(one.setsockopt, socket.SOL_SOCKET, 32, 2**20)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
        import fcntl
        read, write = os.pipe()
        fails(fcntl.fcntl, write, 1031, 2**20)
    """,
    "memory of no process": """
        fails(os.memfd_create, "x")
        import mmap
        for flags in (0x21, 0x21 | 0x40000, 0x22 | 0x40000):
            fails(mmap.mmap, -1, 2**21, flags)
        assert not os.path.exists("/dev/zero")
        for name in ("mq_open", "shmget", "semget", "msgget"):
            refused(getattr(libc, name)(b"/x", 0o102, 0o600, None))
        read, write = os.pipe()
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
        refused(libc.vmsplice(write, vector, 1, 0))
        refused(libc.tee(read, write, 1, 0))
        refused(libc.splice(read, None, write, None, 1, 0))
        refused(libc.inotify_init1(0))
        refused(libc.fanotify_init(0, 0))
    """,
    "calls of later kernels, and such as a filter cannot read": """
        for number in (435, 463, 467, 500, 2**20):
            refused(libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0), errno.ENOSYS)
        for number in (425, 426, 427, 438, 440, 442, 447, 448, 428, 430, 432):
            refused(libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0))
    """,
    "other namespaces and file systems": """
        for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
            refused(libc.unshare(flag))
            refused(libc.setns(0, flag))
        refused(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
        refused(libc.umount2(b"/tmp", 2))
        refused(libc.chroot(b"/tmp"))
        for flag in (0x10000000, 0x40000000, 0x00020000):
            refused(libc.syscall(ctypes.c_long(clone_call), ctypes.c_long(flag | 17), None, None, None, None))
    """,
    "the memory of others, keys and code of the kernel": """
        refused(libc.ptrace(16, 1, 0, 0))
        refused(libc.ptrace(0, 0, 0, 0))
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
        refused(libc.process_vm_readv(1, vector, 1, vector, 1, 0))
        refused(libc.process_vm_writev(1, vector, 1, vector, 1, 0))
        refused(libc.personality(0x0040000))
        for number in numbers_of_kernel:
            refused(libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0))
        assert not os.path.exists("/proc/self") and not os.path.exists("/sys/kernel")
    """,
    "privileges": """
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(header, data) == 0
        assert not any(data), list(data)
        assert libc.prctl(39, 0, 0, 0, 0) == 1
        assert libc.prctl(21, 0, 0, 0, 0) == 2
    """,
}
_NUMBERS = {
    "x86_64": "socket_call, clone_call, numbers_of_kernel = 41, 56, (248, 249, 250, 321, 298, 323, 317, 175, 313, 246, 169, 103, 206)",
    "aarch64": "socket_call, clone_call, numbers_of_kernel = 198, 220, (217, 218, 219, 280, 241, 282, 277, 105, 273, 104, 142, 116, 0)",
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused(run_program: Run, what: str) -> None:
    result = run_program(_CALLS + _NUMBERS[MACHINE] + "\n" + textwrap.dedent(REFUSED[what]))
    assert result.completed, result.stderr


_CODE = """
import ctypes, mmap
memory = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(bytes.fromhex("{code}"))
function = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
print(function(), flush=True)
"""


@x86
@pytest.mark.parametrize(
    "code",
    [
        pytest.param("b814000000cd80c3", id="getpid of i386"),  # mov eax, 20; int 0x80
        pytest.param("b827000040" + "0f05c3", id="getpid of x32"),  # mov eax, 0x40000027; syscall
        pytest.param("b829000040" + "0f05c3", id="socket of x32"),
    ],
)
def test_calls_of_other_interfaces_kill_it(run_program: Run, code: str) -> None:
    result = run_program(_CODE.format(code=code))
    assert (result.completed, result.exit_code, result.stdout) == (False, -31, "")  # SIGSYS
    assert run_program(_CODE.format(code="b827000000" + "0f05c3")).completed  # getpid of x86_64


def test_a_machine_whose_calls_are_not_known_runs_nothing() -> None:
    with pytest.raises(OSError, match="no filter of system calls for riscv64 machines, only for x86_64 and aarch64"):
        filter_steps("riscv64")


ALLOWED, KILLED = 0x7FFF0000, 0x80000000


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the kernel would make of a call: the filter, executed as classic BPF."""
    words = {0: number, 4: ARCHITECTURES[machine] if architecture is None else architecture}
    words |= {16 + 8 * place: argument & 0xFFFFFFFF for place, argument in enumerate(arguments)}
    steps, place, loaded = filter_steps(machine), 0, 0
    while True:
        operation, yes, no, operand = steps[place]
        place += 1
        if operation == 0x06:
            return operand & 0xFFFF if operand >> 16 == 5 else operand
        if operation == 0x20:
            loaded = words.get(operand, 0)
        else:
            place += yes if {0x15: loaded == operand, 0x35: loaded >= operand, 0x45: bool(loaded & operand)}[operation] else no


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        ("x86_64", {"socket": 41, "pair": 53, "option": 54, "clone": 56, "control": 72, "map": 9, "read": 0, "memfd": 319, "bpf": 321}),
        (
            "aarch64",
            {"socket": 198, "pair": 199, "option": 208, "clone": 220, "control": 25, "map": 222, "read": 63, "memfd": 279, "bpf": 280},
        ),
    ],
)
def test_the_filter_of_each_machine(machine: str, numbers: dict[str, int]) -> None:
    def ask(name: str, *arguments: int) -> int:
        return verdict(machine, numbers[name], *arguments)

    for call in ("socket", "pair"):
        assert [ask(call, family) for family in (0, 1, 2, 10, 16, 40)] == [EAFNOSUPPORT, ALLOWED, *[EAFNOSUPPORT] * 4]
    assert [ask("option", 0, 1, option) for option in (7, 32, 8, 2)] == [EPERM, EPERM, ALLOWED, ALLOWED]
    assert ask("option", 0, 6, 7) == ALLOWED
    assert [ask("clone", flags) for flags in (0x11, 0x1200011, 0x3D0F00, 0x10000011, 0x40000011, 0x20000011)] == [ALLOWED] * 3 + [EPERM] * 3
    assert [ask("control", 0, command) for command in (1, 2, 3, 4, 6, 1030, 1026, 1031)] == [ALLOWED] * 6 + [EPERM] * 2
    assert [ask("map", 0, 0, 0, flags) for flags in (0x22, 0x2, 0x1, 0x21, 0x40022)] == [ALLOWED] * 3 + [EPERM] * 2
    assert [ask(name) for name in ("read", "memfd", "bpf")] == [ALLOWED, EPERM, EPERM]
    assert [verdict(machine, number) for number in (425, 435, 447, 463, 2**20, 0x40000000, 0xFFFFFFFF)] == [
        *(EPERM, ENOSYS, EPERM, ENOSYS, ENOSYS, KILLED, KILLED)
    ]
    assert verdict(machine, numbers["read"], architecture=0x40000003) == KILLED


_HOLDERS = """
import os, socket, sys, threading, time
def hold():
    {hold}
for _ in range({processes}):
    if not os.fork():
        try:
            kept = hold()
            time.sleep(20)
        finally:
            os._exit(0)
time.sleep(20)
"""
HIDDEN = {
    "queues of sockets": """
    kept = []
    while len(kept) < 28:
        pair = socket.socketpair()
        for end in pair:
            end.setblocking(False)
            try:
                while True:
                    end.send(bytes(2**16))
            except BlockingIOError:
                pass
        kept.append(pair)
    return kept
""",
    "connections that nobody accepts": """
    address = "/tmp/" + str(os.getpid())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(4096)
    for _ in range(400):
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        try:
            client.connect(address)
            while True:
                client.send(bytes(2**16))
        except BlockingIOError:
            pass
        client.close()
    return listener
""",
    "threads that outlive the first": """
    import ctypes
    def thread():
        held = bytearray(b"x") * (40 * 2**20)
        time.sleep(20)
        return held
    threading.Thread(target=thread).start()
    ctypes.CDLL(None).syscall(ctypes.c_long({exit_call}), 0)
""",
    "mapped files that are deleted": """
    import mmap
    with open("/tmp/" + str(os.getpid()), "w+b") as file:
        file.truncate(8 * 2**20)
        os.unlink(file.name)
        mapped = mmap.mmap(file.fileno(), 0)
        mapped[:] = b"x" * len(mapped)
        mapped.madvise(mmap.MADV_DONTNEED)
    return mapped, bytearray(b"x") * (12 * 2**20)
""",
}


@pytest.mark.parametrize("what", HIDDEN)
def test_memory_that_no_process_shows_counts_too(run_program: Run, what: str) -> None:
    hold = HIDDEN[what].strip().replace("{exit_call}", {"x86_64": "60", "aarch64": "93"}[MACHINE])
    result = run_program(_HOLDERS.format(hold=hold, processes=8), memory_bytes=LIMIT, timeout_s=15)
    assert (result.completed, result.ended_by) == (False, "memory"), result
    assert result.duration_s < 12


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import os\nfor n in range(10**7):\n    os.close(os.open(f'/tmp/{n}', os.O_CREAT))", id="empty files"),
        pytest.param("import os\nfor n in range(10**7):\n    os.symlink('x' * 200, f'/tmp/{n}')", id="links"),
    ],
)
def test_what_the_kernel_keeps_is_bounded(run_program: Run, code: str) -> None:
    result = run_program(code, memory_bytes=LIMIT, timeout_s=15)
    assert not result.completed
    assert result.ended_by == "memory" or "No space left on device" in result.stderr, result


@pytest.mark.long
def test_a_program_takes_no_processes_from_another(run_program: Run) -> None:
    greedy = """
    import os, threading, time
    while True:
        try:
            os.fork() or time.sleep(30)
        except OSError:
            time.sleep(0.01)
    """
    modest = """
    import subprocess, sys, threading, time
    threads = [threading.Thread(target=time.sleep, args=(1,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\\n"
    """
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(contextvars.copy_context().run, run_program, greedy, timeout_s=4)
        time.sleep(1)
        result = run_program(modest)
        assert not other.done()
    assert result.completed, result.stderr


ORDINARY = {
    "asyncio": """
        import asyncio
        async def main():
            process = await asyncio.create_subprocess_exec("/bin/echo", "a", stdout=asyncio.subprocess.PIPE)
            return await asyncio.gather(asyncio.sleep(0.01, 1), asyncio.to_thread(len, "ab"), process.communicate())
        assert asyncio.run(main()) == [1, 2, (b"a\\n", None)]
    """,
    "subprocess": """
        import subprocess, sys
        assert subprocess.run([sys.executable, "-c", "print(input())"], input="x", capture_output=True, text=True).stdout == "x\\n"
        assert subprocess.run("echo a | cat", shell=True, capture_output=True).stdout == b"a\\n"
    """,
    "multiprocessing": """
        import multiprocessing
        from multiprocessing import shared_memory
        context = multiprocessing.get_context("fork")
        with context.Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
            pool.close()
            pool.join()  # to terminate one can hang in Python 3.11
        queue, lock, value = context.Queue(), context.Lock(), context.Value("i", 0)
        def work():
            with lock:
                value.value += 1
                queue.put(value.value)
        processes = [context.Process(target=work) for _ in range(2)]
        for process in processes:
            process.start()
        assert sorted(queue.get() for _ in processes) == [1, 2]
        for process in processes:
            process.join()
        block = shared_memory.SharedMemory(create=True, size=16)
        block.buf[0] = 1
        block.close()
        block.unlink()
    """,
    "a manager": """
        import multiprocessing
        with multiprocessing.get_context("fork").Manager() as manager:
            shared = manager.dict(a=1)
            shared["b"] = 2
            assert dict(shared) == {"a": 1, "b": 2}
    """,
    "concurrent.futures": """
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        import multiprocessing
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(abs, [-1, 2])) == [1, 2]
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            assert list(pool.map(abs, [-1, 2])) == [1, 2]
    """,
    "many threads": """
        from concurrent.futures import ThreadPoolExecutor
        from threading import Barrier
        barrier = Barrier(24)
        with ThreadPoolExecutor(24) as pool:
            assert len({*pool.map(lambda _: barrier.wait(), range(24))}) == 24
    """,
    "files, databases and locks": """
        import fcntl, mmap, os, shutil, sqlite3, tempfile
        with tempfile.TemporaryDirectory() as folder:
            with sqlite3.connect(f"{folder}/x.db") as database:
                database.execute("create table t (a)")
                database.execute("insert into t values (1)")
            assert sqlite3.connect(f"{folder}/x.db").execute("select * from t").fetchall() == [(1,)]
            shutil.copy(f"{folder}/x.db", f"{folder}/y.db")
            with open(f"{folder}/y.db", "r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX)
                assert mmap.mmap(file.fileno(), 0)[:6] == b"SQLite"
    """,
    "sockets within": """
        import selectors, socket
        one, other = socket.socketpair()
        with selectors.DefaultSelector() as selector:
            selector.register(other, selectors.EVENT_READ)
            one.sendall(b"x" * 10**5)
            assert selector.select(5)
        assert not socket.has_dualstack_ipv6() or True
        assert socket.gethostname()
    """,
    "signals and timers": """
        import signal, threading, time
        signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
        seen = []
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        timer = threading.Timer(0.01, seen.append, [2])
        timer.start()
        timer.join()
        time.sleep(0.05)
        assert sorted(seen) == [1, 2]
    """,
}


@pytest.mark.parametrize("what", ORDINARY)
def test_ordinary_programs_notice_nothing(run_program: Run, what: str) -> None:
    result = run_program(ORDINARY[what], timeout_s=20)
    assert result.completed, result.stderr
