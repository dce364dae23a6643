"""The sandbox for code that a language model wrote: bubblewrap, with a way out to one swarm server at most."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from swarm.errors import BadRequest, SandboxUnavailable
from swarm.sandbox.cgroup import find_parent, make_cgroup, remove_cgroup
from swarm.sandbox.inside import GuestLimits, GuestOptions
from swarm.sandbox.mounts import HOME_INSIDE, LINK_INSIDE, TEMPORARY_FOLDERS, mount_flags, swarm_package
from swarm.sandbox.outside import WayOut
from swarm.sandbox.seccomp import build_filter

ENTRY = Path(__file__).with_name("entry.py")
SOCKET_NAME = "server.sock"
PORT_INSIDE = 10086
URL_INSIDE = f"http://127.0.0.1:{PORT_INSIDE}"
PROBE_TIMEOUT_S = 60.0
# User ids above those of accounts, containers and nobody. Each sandbox draws its own, so that no two share one.
FIRST_USER = 1_879_048_192
USERS = 2**24


@dataclass(frozen=True, slots=True)
class SandboxedCommand:
    """A command to start: `argv` with exactly this `env`. Call `cleanup` once its process is gone."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cleanup: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A way to run bubblewrap that works on this machine. Killing the started process ends everything inside.

    The system, the Python environment and a part of the `swarm` package are read-only inside. Working directory and
    temporary files are memory of limited size. Nothing else is visible, and there is no network, but a local port may
    lead to the models of one server (outside.py, inside.py).

    With `own_user`, root gives each guest its own user id, because no user namespace hides that root owns /proc/sys.
    `cgroup` is the parent of each command's cgroup. Without one, only inside.py watches the limits.
    """

    bwrap: str
    namespaces: tuple[str, ...]
    own_user: bool = False
    limits: GuestLimits = field(default_factory=GuestLimits)
    cgroup: Path | None = None

    def check(self) -> None:
        """Raise SandboxUnavailable if the sandbox does not start any more.

        In that case, a failed start is not the fault of the program.
        """
        if reason := _probe_twice(self):
            raise SandboxUnavailable(f"the sandbox no longer starts ({reason}): check bubblewrap, {self.bwrap}")

    def command(
        self,
        argv: Sequence[str],
        *,
        workdir: Path,
        server_url: str | None,
        files: Sequence[Path] = (),
    ) -> SandboxedCommand:
        """Return the command that runs `argv` inside.

        In `argv`, the address of the proxy replaces `server_url`. The proxy leads to the routes of the model APIs.
        Without a URL there is no proxy, and the guest can reach nothing.

        The guest's current directory has the path of `workdir` and shows its content, read-only. `files` are visible at
        their own paths. Files that the guest writes end with the sandbox. With `own_user`, the guest's user becomes the
        owner of the content of `workdir`.

        Raises BadRequest for an invalid URL, and SandboxUnavailable if the owner cannot be changed.
        """
        workdir = workdir.resolve()
        environment = _environment(None) | {"HOME": HOME_INSIDE, "TMPDIR": "/tmp"}
        address = None if server_url is None else _split_url(server_url)
        cgroup = self.cgroup and make_cgroup(self.cgroup, self.limits.memory_bytes, self.limits.tasks)
        if address is None:
            wrapper = self._wrapper(workdir, None, cgroup, files)
            return SandboxedCommand((*wrapper, *argv), environment, lambda: _clean_up(None, cgroup))
        link = Path(tempfile.mkdtemp(prefix="swarm-sandbox-"))
        if self.own_user:
            link.chmod(0o711)
        is_tls = address.scheme == "https"
        outside = WayOut(
            socket=str(link / SOCKET_NAME),
            host=address.hostname or "",
            port=address.port or (443 if is_tls else 80),
            tls=is_tls,
            path=address.path.rstrip("/"),
            cgroup=None if cgroup is None else str(cgroup),
        )
        inner = [URL_INSIDE + address.path if word == server_url else word for word in argv]
        wrapper = self._wrapper(workdir, link, cgroup, files)
        wrapped = (*_module("outside", outside), *wrapper, *inner)
        return SandboxedCommand(wrapped, environment, lambda: _clean_up(link, cgroup))

    def _wrapper(self, workdir: Path, link: Path | None, cgroup: Path | None, files: Sequence[Path]) -> tuple[str, ...]:
        """Return the words that run the command after them inside; `link` is the folder of the proxy's socket."""
        user = FIRST_USER + secrets.randbelow(USERS) if self.own_user else os.getuid()
        if self.own_user:
            _give_away(workdir, user)
        writable = (*TEMPORARY_FOLDERS, str(workdir))
        socket = None if link is None else f"{LINK_INSIDE}/{SOCKET_NAME}"
        inside = GuestOptions(user, str(workdir), writable, self.limits, socket, PORT_INSIDE)
        entry = (*_python(), str(ENTRY), str(cgroup or ""), build_filter(platform.machine()).hex())
        mounts = mount_flags(workdir, link, files, disk_bytes=self.limits.disk_bytes, tmp_bytes=self.limits.tmp_bytes)
        return (*entry, self.bwrap, *self.namespaces, *mounts, "--", *_module("inside", inside))


def choose_sandbox(unsafe_no_sandbox: bool) -> Sandbox | None:
    """Return the sandbox of this machine, or None if a person chose to do without one.

    Raises SandboxUnavailable, which names the fix.
    """
    if unsafe_no_sandbox:
        return None
    return find_sandbox(otherwise="use --planner rules, or accept the risk with --unsafe-no-sandbox")


def find_sandbox(*, otherwise: str) -> Sandbox:
    """Return the sandbox of this machine.

    Raises SandboxUnavailable, which names the fix and the alternative `otherwise`.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailable(
            "code from a language model runs under bubblewrap, which is not installed: install the package 'bubblewrap'"
            f" (0.8 or newer), {otherwise}"
        )
    reason = ""
    for sandbox in candidates(bwrap):
        reason = _probe_twice(sandbox)
        if not reason:
            return sandbox
    raise SandboxUnavailable(
        f"bubblewrap does not work here ({reason}): allow unprivileged user namespaces (on Ubuntu an AppArmor profile"
        f" for bwrap), use bubblewrap 0.8 or newer, {otherwise}"
    )


def plain_command(argv: Sequence[str], *, server_url: str, token: str | None = None) -> SandboxedCommand:
    """Return `argv` as a command without a sandbox, with environment variables as few as in a sandbox.

    This is for our own clients, or for a person who chose to do without a sandbox. Raises BadRequest for an invalid
    URL.
    """
    _split_url(server_url)
    environment = _environment(token) | {"HOME": str(Path.home()), "TMPDIR": tempfile.gettempdir()}
    return SandboxedCommand(tuple(argv), environment, lambda: None)


def _environment(token: str | None) -> dict[str, str]:
    """Return all environment variables of a guest, built from nothing instead of filtered."""
    bwrap = shutil.which("bwrap")
    # A child of ours that starts its own sandbox must find the same bubblewrap.
    own = () if bwrap is None else (str(Path(bwrap).parent),)
    folders = dict.fromkeys((str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin", *own))
    environment = {
        "PATH": ":".join(folders),
        "PYTHONPATH": str(swarm_package().parent),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
        # With one arena per thread, a client with many workers would run out of address space.
        "MALLOC_ARENA_MAX": "4",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    if token:
        environment["SWARM_TOKEN"] = token
    return environment


def candidates(bwrap: str) -> list[Sandbox]:
    """Return the sandboxes to try, strictest first.

    A container may allow root nothing but user namespaces, or may not let it disable further user namespaces.
    """
    always = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
    named = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    candidates = [
        Sandbox(bwrap, ("--unshare-user", "--unshare-all", *always, "--disable-userns")),
        Sandbox(bwrap, ("--unshare-user", "--unshare-all", *always)),
    ]
    cgroup = find_parent()
    if os.getuid() == 0:
        switch = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
        candidates.insert(0, Sandbox(bwrap, (*named, *always, *switch), own_user=True))
    return [replace(candidate, cgroup=cgroup) for candidate in candidates]


def _python() -> tuple[str, ...]:
    return (sys.executable, "-I", "-S")


def _module(name: str, options: GuestOptions | WayOut) -> tuple[str, ...]:
    """Return the command that starts a module of this package, which needs the standard library alone, quickly."""
    code = f"import sys; sys.path.insert(0, sys.argv.pop(1)); from swarm.sandbox.{name} import main; "
    code += "sys.exit(main(sys.argv[1:]))"
    return (*_python(), "-c", code, str(swarm_package().parent), json.dumps(asdict(options)))


def probe(sandbox: Sandbox) -> str:
    """Run a Python program with the imports of a guest, and return one line of reason if it fails, else nothing."""
    with tempfile.TemporaryDirectory(prefix="swarm-probe-") as folder:
        argv = [sys.executable, "-c", "import swarm.program.hosted.host"]
        command = sandbox.command(argv, workdir=Path(folder), server_url=URL_INSIDE)
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


def _probe_twice(sandbox: Sandbox) -> str:
    """Probe again after a failure: one start may take too long on a busy machine, or be killed."""
    return probe(sandbox) and probe(sandbox)


def _clean_up(link: Path | None, cgroup: Path | None) -> None:
    if link is not None:
        shutil.rmtree(link, ignore_errors=True)
    if cgroup is not None:
        remove_cgroup(cgroup)


def _give_away(workdir: Path, user: int) -> None:
    """Make `user` the owner of the content of a directory, because files may be readable by their owner alone."""
    try:
        for root, folders, files in os.walk(workdir):
            for name in (*folders, *files):
                os.chown(os.path.join(root, name), user, user, follow_symlinks=False)
    except OSError as error:
        raise SandboxUnavailable(
            f"{workdir} cannot be owned by the sandbox's user: {error.strerror}; use a directory on a local disk"
        ) from error


def _split_url(url: str) -> SplitResult:
    """Return the parts of the URL of a server. Raises BadRequest for any other."""
    parts = urlsplit(url)
    with suppress(ValueError):
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise BadRequest(f"{url!r} is not the URL of a server: expected http://HOST:PORT")
