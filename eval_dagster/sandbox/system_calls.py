"""Inside the sandbox: the filter of system calls (seccomp). It uses the standard library only.

The kernel applies the filter to the process and its children, and it cannot be removed. Namespaces hide files, processes and networks. The
filter blocks four kinds of calls: calls whose effects lie outside of namespaces; calls that hold memory outside of all processes, which
therefore has no limit; calls that set limits, priorities or processors of other processes, such as process 1 of the sandbox, which may have
the same user; and calls into parts of the kernel that programs do not need and that have had security holes.
"""

import ctypes
import errno
import os
import struct

AF_UNIX, SOL_SOCKET, SO_SNDBUF, SO_SNDBUFFORCE = 1, 1, 7, 32
F_NOTIFY, F_SETPIPE_SZ = 1026, 1031
MAP_SHARED, MAP_ANONYMOUS, MAP_HUGETLB = 0x1, 0x20, 0x40000
CLONE_NEW_ANY = 0x7E020000
"""Every flag of `clone` that makes a namespace."""
CLONE3, FIRST_UNKNOWN, FIRST_X32 = 435, 463, 0x40000000
"""`clone3`; the first call after those of Linux 6.10; the first call of the x32 interface."""

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
KILL, FAIL, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16
"""Offsets of the call's number, the architecture, and the low half of the first argument; the other arguments follow every 8 bytes."""

Step = tuple[int, int, int, int]
"""Operation, steps to skip if its test holds, steps to skip if not, operand."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FORBIDDEN = """
unshare 272 97, setns 308 268, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428, move_mount 429 429,
fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442, name_to_handle_at 303 264,
open_by_handle_at 304 265,

ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, pidfd_getfd 438 438, process_madvise 440 440,
process_mrelease 448 448, ioprio_set 251 30,

memfd_create 319 279, memfd_secret 447 447, shmget 29 194, shmat 30 196, semget 64 190, msgget 68 186, mq_open 240 180, vmsplice 278 75,
tee 276 77, splice 275 76, io_setup 206 0, io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, inotify_init 253 -,
inotify_init1 294 26, fanotify_init 300 262, fanotify_mark 301 263,

add_key 248 217, request_key 249 218, keyctl 250 219, bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, seccomp 317 277,
init_module 175 105, finit_module 313 273, delete_module 176 106, kexec_load 246 104, kexec_file_load 320 294, reboot 169 142,
swapon 167 224, swapoff 168 225, acct 163 89, quotactl 179 60, quotactl_fd 443 443, syslog 103 116, iopl 172 -, ioperm 173 -,
modify_ldt 154 -, personality 135 92, vhangup 153 58, settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, clock_adjtime 305 266,
sethostname 170 161, setdomainname 171 162, lookup_dcookie 212 18
"""
"""Calls that always fail, with their numbers on x86_64 and aarch64. The groups are: namespaces and file systems; other processes;
memory that belongs to no process, and is not counted; keys, code and settings of the kernel."""
RESTRICTED = "clone 56 220, socket 41 198, socketpair 53 199, setsockopt 54 208, fcntl 72 25, mmap 9 222, setpriority 141 140"
"""Calls that fail with some arguments."""
OF_PROCESS = "prlimit64 302 261, sched_setaffinity 203 122, sched_setparam 142 118, sched_setscheduler 144 119, sched_setattr 314 274"
"""Calls that fail unless their first argument is 0, which stands for the process or the thread that calls."""


def install_filter() -> None:
    """Filter all later calls of this process and its children. Raises `OSError` if the kernel refuses or the calls are unknown."""
    steps = filter_steps(os.uname().machine)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)), 0, 0) == -1:
        raise OSError(ctypes.get_errno(), f"no filter of system calls: {os.strerror(ctypes.get_errno())}")


def filter_steps(machine: str) -> list[Step]:
    """The filter as instructions of the classic BPF machine. Raises `OSError` if the numbers of the machine's calls are unknown."""
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls for {machine} machines, only for {' and '.join(ARCHITECTURES)}")
    calls = _numbers(RESTRICTED, machine)
    steps: list[Step] = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, FIRST_X32),
        (RETURN, 0, 0, KILL),
        (AT_LEAST, 0, 1, FIRST_UNKNOWN),
        _failing(errno.ENOSYS),
        (EQUAL, 0, 1, CLONE3),  # its flags lie where a filter cannot read; the C library falls back to clone
        _failing(errno.ENOSYS),
    ]
    for call in _numbers(FORBIDDEN, machine).values():
        steps += [(EQUAL, 0, 1, call), _failing()]
    for name in ("socket", "socketpair"):
        steps += _where(calls[name], _argument(0), (EQUAL, 1, 0, AF_UNIX), _failing(errno.EAFNOSUPPORT))
    steps += _where(calls["clone"], _argument(0), (ANY_BIT, 0, 1, CLONE_NEW_ANY), _failing())
    steps += _where(
        calls["setsockopt"], _argument(1), (EQUAL, 0, 4, SOL_SOCKET), _argument(2), *_one_of(SO_SNDBUF, SO_SNDBUFFORCE), _failing()
    )
    steps += _where(calls["fcntl"], _argument(1), *_one_of(F_NOTIFY, F_SETPIPE_SZ), _failing())
    steps += _where(
        calls["mmap"], _argument(3), (ANY_BIT, 2, 0, MAP_HUGETLB), (ANY_BIT, 0, 2, MAP_ANONYMOUS), (ANY_BIT, 0, 1, MAP_SHARED), _failing()
    )
    for call in _numbers(OF_PROCESS, machine).values():
        steps += _where(call, _argument(0), (EQUAL, 1, 0, 0), _failing())
    # Its first argument tells whether the second one is a process, a group of processes, or a user.
    steps += _where(calls["setpriority"], _argument(0), (EQUAL, 0, 2, 0), _argument(1), (EQUAL, 1, 0, 0), _failing())
    return [*steps, (RETURN, 0, 0, ALLOW)]


def _numbers(table: str, machine: str) -> dict[str, int]:
    column = 1 + list(ARCHITECTURES).index(machine)
    rows = [row.split() for row in table.replace("\n", " ").split(",")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def _where(call: int, *steps: Step) -> list[Step]:
    """Steps that apply to one call only."""
    return [(EQUAL, 0, len(steps) + 1, call), *steps, (LOAD, 0, 0, NUMBER)]


def _argument(index: int) -> Step:
    return (LOAD, 0, 0, ARGUMENT + 8 * index)


def _one_of(*values: int) -> list[Step]:
    """Continue with the next step if the value is one of these, otherwise with the step after it."""
    last = len(values) - 1
    return [(EQUAL, last - index, index == last, value) for index, value in enumerate(values)]


def _failing(number: int = errno.EPERM) -> Step:
    return (RETURN, 0, 0, FAIL | number)
