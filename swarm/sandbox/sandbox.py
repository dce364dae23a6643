"""Where code that a language model wrote is run: bubblewrap with one way out, the swarm server of its run, or none.

Place in the flow: `check`, `launch` and the grader python_tests turn an argv into a `SandboxedCommand` and start that.
Inside, the system, the Python environment and the `swarm` package are read-only, everything else is absent but the
working directory; there is no network; where there is a server, a proxy (proxy.py) carries a local port to it. The
environment is built from nothing: no key of any provider is ever in it. This module starts no process but its probe of
bubblewrap.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from swarm.errors import BadRequest, SandboxUnavailable

PROXY = Path(__file__).with_name("proxy.py")
PROXY_INSIDE = "/run/swarm/proxy.py"
LINK_INSIDE = "/run/swarm/link"
SOCKET_NAME = "server.sock"
PORT_INSIDE = 10086
URL_INSIDE = f"http://127.0.0.1:{PORT_INSIDE}"
HOME_INSIDE = "/home/sandbox"
PROBE_TIMEOUT_S = 20.0
# User ids above those of accounts, containers and the system's nobody; drawn afresh, so that sandboxes share none.
FIRST_USER = 1_879_048_192
USERS = 2**24

SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may use. `memory_bytes` and `tasks` (processes and threads) count the sandbox as a whole."""

    tasks: int = 512
    memory_bytes: int = 2 * 2**30
    address_bytes: int = 16 * 2**30
    file_bytes: int = 256 * 2**20
    disk_bytes: int = 1 * 2**30
    tmp_bytes: int = 256 * 2**20
    cpu_s: int = 24 * 3600


@dataclass(frozen=True, slots=True)
class SandboxedCommand:
    """What to start: `argv` with exactly this `env`; call `cleanup` once the process is gone."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cleanup: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A bubblewrap that was seen to work here. Killing the started process ends everything inside.

    `own_user`: root gives its clients a user id of their own, as no user namespace hides that root owns /proc/sys.
    """

    bwrap: str
    namespaces: tuple[str, ...]
    own_user: bool = False
    limits: Limits = field(default_factory=Limits)

    def command(
        self, argv: Sequence[str], *, workdir: Path, server_url: str | None, token: str | None = None
    ) -> SandboxedCommand:
        """`argv` wrapped; where it says `server_url` the client gets the address of the proxy instead. Without an URL
        there is no proxy and nothing can be reached.

        `workdir` is writable and the current directory; with `own_user` it is given to that user. Raises BadRequest for
        an URL that is none and SandboxUnavailable if the directory cannot be given away.
        """
        workdir = workdir.resolve()
        environment = _environment(token) | {"HOME": HOME_INSIDE, "TMPDIR": "/tmp"}
        if server_url is None:
            return SandboxedCommand((*self._wrapper(workdir, None), *argv), environment, lambda: None)
        scheme, host, port, path = _split_url(server_url)
        link = Path(tempfile.mkdtemp(prefix="swarm-sandbox-"))
        if self.own_user:
            link.chmod(0o711)
        outside = ["outside", "--socket", str(link / SOCKET_NAME), "--host", host, "--port", str(port)]
        if scheme == "https":
            outside.append("--tls")
        inner = [URL_INSIDE + path if word == server_url else word for word in argv]
        wrapped = (*_python(PROXY), *outside, "--", *self._wrapper(workdir, link), *inner)
        return SandboxedCommand(wrapped, environment, partial(shutil.rmtree, link, ignore_errors=True))

    def _wrapper(self, workdir: Path, link: Path | None) -> tuple[str, ...]:
        """What stands before a command to run it inside. `link` is the folder of the proxy's socket."""
        user = FIRST_USER + secrets.randbelow(USERS) if self.own_user else os.getuid()
        if self.own_user:
            _give_away(workdir, user)
        inside = ["inside", "--user", str(user), "--workdir", str(workdir), *_limit_flags(self.limits)]
        if link is not None:
            inside += ["--socket", f"{LINK_INSIDE}/{SOCKET_NAME}", "--port", str(PORT_INSIDE)]
        return (self.bwrap, *self._mounts(workdir, link), "--", *_python(PROXY_INSIDE), *inside, "--")

    def _mounts(self, workdir: Path, link: Path | None) -> list[str]:
        readable = [(folder, folder) for folder in _python_folders()]
        readable += [(str(PROXY), PROXY_INSIDE)]
        if link is not None:
            readable += [(str(link), LINK_INSIDE)]
        flags = [*self.namespaces, *_base_mounts(str(self.limits.tmp_bytes))]
        flags += _parents([*(inside for _, inside in readable), str(workdir)])
        for outside, inside in readable:
            flags += ["--ro-bind", outside, inside]
        return [*flags, "--bind", str(workdir), str(workdir), "--remount-ro", "/"]


def choose_sandbox(unsafe_no_sandbox: bool) -> Sandbox | None:
    """The sandbox of this machine, or None because a person waived it. Raises SandboxUnavailable, naming the fix."""
    if unsafe_no_sandbox:
        return None
    return find_sandbox(otherwise="use --brain rules, or accept the risk with --unsafe-no-sandbox")


def find_sandbox(*, otherwise: str) -> Sandbox:
    """The sandbox of this machine. Raises SandboxUnavailable, naming the fix and what to do `otherwise`."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailable(
            "code from a language model runs under bubblewrap, which is not installed: install the package 'bubblewrap'"
            f" (0.8 or newer), {otherwise}"
        )
    reason = ""
    for sandbox in candidates(bwrap):
        reason = probe(sandbox)
        if not reason:
            return sandbox
    raise SandboxUnavailable(
        f"bubblewrap does not work here ({reason}): allow unprivileged user namespaces (on Ubuntu an AppArmor profile"
        f" for bwrap), use bubblewrap 0.8 or newer, {otherwise}"
    )


def plain_command(argv: Sequence[str], *, server_url: str, token: str | None = None) -> SandboxedCommand:
    """`argv` without a sandbox, for our own clients or where a person waived it; the environment is as bare.

    Raises BadRequest for an URL that is none.
    """
    _split_url(server_url)
    environment = _environment(token) | {"HOME": str(Path.home()), "TMPDIR": tempfile.gettempdir()}
    return SandboxedCommand(tuple(argv), environment, lambda: None)


def _environment(token: str | None) -> dict[str, str]:
    """All that a client gets to see of the environment; built up, not filtered down."""
    folders = dict.fromkeys((str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"))
    environment = {
        "PATH": ":".join(folders),
        "PYTHONPATH": str(_swarm_package().parent),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
        # An arena per thread would use up the address space of a client with many workers.
        "MALLOC_ARENA_MAX": "4",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    if token:
        environment["SWARM_TOKEN"] = token
    return environment


def candidates(bwrap: str) -> list[Sandbox]:
    """Strictest first. Containers may forbid root all but user namespaces, or forbidding further user namespaces."""
    always = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
    named = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    candidates = [
        Sandbox(bwrap, ("--unshare-user", "--unshare-all", *always, "--disable-userns")),
        Sandbox(bwrap, ("--unshare-user", "--unshare-all", *always)),
    ]
    if os.getuid() == 0:
        switch = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
        candidates.insert(0, Sandbox(bwrap, (*named, *always, *switch), own_user=True))
    return candidates


def _python(script: str | Path) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", str(script))


def _limit_flags(limits: Limits) -> list[str]:
    names = ("tasks", "memory_bytes", "disk_bytes", "file_bytes", "address_bytes", "cpu_s")
    return [flag for name in names for flag in (f"--max-{name.replace('_', '-')}", str(getattr(limits, name)))]


def _base_mounts(tmp_bytes: str) -> list[str]:
    flags = [
        *_parents([*SYSTEM_FILES, HOME_INSIDE]),
        "--hostname",
        "sandbox",
        "--proc",
        "/proc",
        "--ro-bind",
        "/proc/sys",
        "/proc/sys",
        "--dev",
        "/dev",
    ]
    for folder in ("/dev/shm", "/tmp", HOME_INSIDE):
        flags += ["--perms", "1777", "--size", tmp_bytes, "--tmpfs", folder]
    flags += ["--remount-ro", "/dev", "--ro-bind", "/usr", "/usr"]
    for folder in map(Path, SYSTEM_FOLDERS):
        if folder.is_symlink():
            flags += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            flags += ["--ro-bind", str(folder), str(folder)]
    for file in SYSTEM_FILES:
        flags += ["--ro-bind-try", file, file]
    return flags


def _parents(paths: Sequence[str]) -> list[str]:
    """Makes the folders above the mounts, which bubblewrap by itself would hide from other users."""
    folders = {str(parent): None for path in paths for parent in reversed(Path(path).parents)}
    return [flag for folder in folders if folder != "/" for flag in ("--perms", "0755", "--dir", folder)]


def _python_folders() -> list[str]:
    """The interpreter, its environment and our `swarm` package, without what is part of /usr or of another of them."""
    folders: list[Path] = []
    for folder in (Path(sys.base_prefix), Path(sys.prefix), _swarm_package()):
        covered = any(folder == other or other in folder.parents for other in (Path("/usr"), *folders))
        if not covered:
            folders.append(folder)
    return [str(folder) for folder in folders]


def _swarm_package() -> Path:
    spec = find_spec("swarm")
    if spec is None or not spec.submodule_search_locations:
        raise SandboxUnavailable("the swarm package cannot be found: install swarm-researcher")
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def probe(sandbox: Sandbox) -> str:
    """Empty if a Python program that imports what clients import runs in this sandbox, or one line why not."""
    with tempfile.TemporaryDirectory(prefix="swarm-probe-") as folder:
        command = sandbox.command(
            [sys.executable, "-c", "import httpx, swarm.types"], workdir=Path(folder), server_url=URL_INSIDE
        )
        try:
            done = subprocess.run(
                command.argv, env=command.env, cwd=folder, check=False,
                capture_output=True, text=True, timeout=PROBE_TIMEOUT_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            command.cleanup()
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _give_away(workdir: Path, user: int) -> None:
    try:
        os.chown(workdir, user, user)
        for root, folders, files in os.walk(workdir):
            for name in (*folders, *files):
                os.chown(os.path.join(root, name), user, user, follow_symlinks=False)
    except OSError as error:
        raise SandboxUnavailable(
            f"{workdir} cannot be given to the sandbox's user: {error.strerror}; use a directory on a local disk"
        ) from error


def _split_url(url: str) -> tuple[str, str, int, str]:
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise BadRequest(f"{url!r} is not the URL of a server: expected http://HOST:PORT")
    return parts.scheme, parts.hostname, port, parts.path
