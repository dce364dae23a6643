"""What code from a language model can reach: the one server, and nothing else of this machine."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from swarm.errors import BadRequest, SandboxUnavailable
from swarm.sandbox.sandbox import GuestLimits, Sandbox, candidates, choose_sandbox, plain_command, probe

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

SMALL = GuestLimits(
    tasks=40, memory_bytes=300 * 2**20, address_bytes=3 * 2**29, files=300, file_bytes=8 * 2**20, disk_bytes=16 * 2**20,
    tmp_bytes=16 * 2**20, cpu_s=30,
)  # fmt: skip

Run = Callable[..., subprocess.CompletedProcess[str]]


class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


class EchoServer(http.server.ThreadingHTTPServer):
    # As a swarm server's: where more wait than fit, the system drops or resets connections.
    request_queue_size = 128


@pytest.fixture
def server() -> Iterator[str]:
    with EchoServer(("127.0.0.1", 0), Echo) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    chosen = choose_sandbox(unsafe_no_sandbox=False)
    assert chosen is not None
    return chosen


def enter(sandbox: Sandbox, argv: list[str], workdir: Path, server_url: str | None = None, **options: Any) -> Any:
    """Run a command inside, in the working directory, and return it once it has ended."""
    command = sandbox.command(argv, workdir=workdir, server_url=server_url)
    options = {"capture_output": True, "text": True, **options}
    try:
        return subprocess.run(command.argv, env=command.env, cwd=workdir, timeout=60, check=False, **options)
    finally:
        command.cleanup()


@pytest.fixture
def run(sandbox: Sandbox, server: str, tmp_path: Path) -> Run:
    """Runs a program under the sandbox; its arguments are the server's URL and whatever else is given."""

    def run_program(code: str, *arguments: str, limits: GuestLimits = SMALL):
        workdir = tmp_path / "work"
        workdir.mkdir(exist_ok=True)
        (workdir / "client.py").write_text(textwrap.dedent(code))
        argv = [sys.executable, "client.py", server, *arguments]
        return enter(replace(sandbox, limits=limits), argv, workdir, server)

    return run_program


@needs_bwrap
def test_a_client_talks_to_its_server_with_bodies_of_any_size_and_many_at_once(run):
    done = run("""
        import sys, httpx
        from concurrent.futures import ThreadPoolExecutor
        def call(size):
            return len(httpx.post(sys.argv[1] + "/v1/x", content=b"a" * size, timeout=30).content) == size
        with ThreadPoolExecutor(20) as pool:
            print(all(pool.map(call, [1, 10, 3_000_000, *range(60)])))
    """)
    assert done.stdout.strip() == "True", done.stderr


@needs_bwrap
def test_without_a_server_nothing_can_be_reached(sandbox, server, tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
        import os, socket, sys
        for address in (("127.0.0.1", int(sys.argv[1])), ("127.0.0.1", 10086), ("1.1.1.1", 53)):
            try:
                socket.create_connection(address, timeout=3)
                print("reached", address)
            except OSError:
                print("refused")
        print(os.path.exists("/run/swarm/link"), sys.stdin.read())
        """)
    )
    argv = [sys.executable, "program.py", server.rpartition(":")[2]]
    done = enter(replace(sandbox, limits=SMALL), argv, tmp_path, input="said")
    assert done.stdout.split() == ["refused"] * 3 + ["False", "said"], done.stderr


SEEN = """
    import ctypes, httpx, json, os, socket, sys, swarm.types

    libc = ctypes.CDLL(None)

    def can_connect(port):
        try:
            return bool(socket.create_connection(("127.0.0.1", port), timeout=3))
        except OSError:
            return False

    def can_write(place):
        try:
            return not open(place, "r+" if place.startswith("/proc") else "a").close()
        except OSError:
            return False

    url, other, secret = sys.argv[1:]
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    places = [
        "/usr/x", "/x", "/dev/x", "/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/overcommit_memory", "/run/swarm/link/x", "client.py", swarm.types.__file__, sys.executable,
        sys.prefix + "/x", "x", "/tmp/x", os.environ["HOME"] + "/x",
    ]
    calls = {
        "unshare": lambda: libc.unshare(0x10000000), "memfd": lambda: libc.memfd_create(b"x", 0),
        "personality": lambda: libc.personality(0x40000), "kill": lambda: libc.kill(2, 19),
    }
    hosts = [secret, "/root/.ssh", "/etc/passwd", "/etc/shadow", "/var", "/run/systemd"]
    print(json.dumps({
        "answer": httpx.post(url + "/v1/x", content="x", timeout=60).text,
        "other server": can_connect(int(other)),
        "shown of the host": [place for place in hosts if os.path.exists(place)],
        "homes": os.listdir("/home"),
        "variables": str(dict(os.environ)),
        "written": [place for place in places if can_write(place)],
        "capabilities": int(status["CapEff"], 16),
        "no new privileges": int(status["NoNewPrivs"]),
        "users": sorted(set(os.getresuid())),
        "allowed calls": [name for name, call in calls.items() if call() >= 0],
    }))
    print("said", file=sys.stderr)
    sys.exit(7)
"""


@needs_bwrap
def test_in_every_form_of_the_sandbox_a_program_has_its_server_and_nothing_of_the_host(server, tmp_path, monkeypatch):
    """Root has a form of its own; where that is forbidden, and for other users, the next one is taken."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-in-the-environment")
    secret = tmp_path / "secret"
    secret.write_text("s")
    forms = [form for form in candidates(str(shutil.which("bwrap"))) if not probe(form)]
    assert forms
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as other:
        for number, form in enumerate(forms):
            workdir = tmp_path / f"work-{number}"
            workdir.mkdir()
            (workdir / "client.py").write_text(textwrap.dedent(SEEN))
            done = enter(
                form, [sys.executable, "client.py", server, str(other.server_port), str(secret)], workdir, server
            )
            assert (done.returncode, done.stderr) == (7, "said\n"), done.stderr
            seen = json.loads(done.stdout)
            [user] = seen.pop("users")
            assert os.getuid() != 0 or form.own_user is (user > 1000)
            assert "canary" not in seen.pop("variables")
            assert seen == {
                "answer": "x", "other server": False, "shown of the host": [], "homes": ["sandbox"],
                "written": ["x", "/tmp/x", "/home/sandbox/x"], "capabilities": 0, "no new privileges": 1,
                "allowed calls": [],
            }  # fmt: skip
            assert [path.name for path in workdir.iterdir()] == ["client.py"]


@needs_bwrap
def test_files_and_folders_have_their_limits_also_with_files_that_have_no_name(run, tmp_path):
    done = run("""
        import os, signal

        def fill(file):
            try:
                while file.write(b"x" * 2**20):
                    pass
            except OSError as error:
                return error.strerror

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with open("large", "wb", buffering=0) as file:
            print(fill(file), os.path.getsize("large"))
        os.unlink("large")
        for folder in (".", "/tmp", "/dev/shm", os.path.expanduser("~")):
            kept = []
            while (reason := fill(kept[-1]) if kept else "") != "No space left on device":
                kept.append(open(folder + "/part", "wb", buffering=0))
                os.unlink(kept[-1].name)
            print(sum(os.fstat(file.fileno()).st_size for file in kept))
            [file.close() for file in kept]
    """)
    file, *folders = done.stdout.splitlines()
    assert file == f"File too large {SMALL.file_bytes}", done.stderr
    assert len(folders) == 4 and all(2**20 < int(size) <= SMALL.tmp_bytes for size in folders), folders
    assert not (tmp_path / "work" / "large").exists()


@needs_bwrap
def test_files_count_as_memory(run):
    done = run(
        """
        import time
        with open("/dev/shm/large", "wb") as file:
            for _ in range(80):
                file.write(b"x" * 2**20)
        x = bytearray(b"x" * (80 * 2**20))
        time.sleep(60)
        """,
        limits=replace(SMALL, memory_bytes=150 * 2**20, tmp_bytes=100 * 2**20, file_bytes=100 * 2**20),
    )
    assert done.returncode == 125
    assert "150 MiB of memory, files included" in done.stderr


@needs_bwrap
def test_output_into_a_file_is_kept_up_to_a_limit(sandbox, tmp_path):
    code = "for number in range(10**5): print('line', number)\nimport os; os.write(2, b'last words')"
    limited = replace(sandbox, limits=replace(SMALL, log_bytes=100_000))
    log = tmp_path / "output.log"
    with log.open("wb") as file:
        done = enter(limited, [sys.executable, "-c", code], tmp_path, capture_output=False, stdout=file, stderr=file)
    assert done.returncode == 0
    said = log.read_text()
    assert said.startswith("line 0\nline 1\n")
    assert "sandbox: output beyond 97 KiB is dropped" in said
    assert len(said) < 110_000


@needs_bwrap
def test_a_link_in_the_working_directory_shows_nothing_of_the_host(run, tmp_path):
    (tmp_path / "secret").write_text("canary")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "work" / "data.txt").write_text("data")
    done = run("import os; print(sorted(os.listdir()), open('data.txt').read())")
    assert done.stdout.strip() == "['client.py', 'data.txt'] data", done.stderr


@needs_bwrap
def test_a_program_sees_of_the_package_what_it_needs(sandbox, tmp_path):
    code = """
        import importlib
        import swarm.program.hosted.__main__, swarm.program.hosted.host, swarm.sandbox.inside, swarm.job
        from swarm.client import *
        from swarm.program import answer_in_turn
        from swarm.tasks import Split
        import httpx, openai, pydantic
        for name in ("swarm.tasks.families", "swarm.environments.registry", "reasoning_gym.factory",
                     "swarm.environments.sources.bundled", "swarm.program.training", "swarm.sandbox.sandbox"):
            try:
                importlib.import_module(name)
                print("imported", name)
            except ImportError:
                pass
        print("all that is needed")
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(code))
    done = enter(sandbox, [sys.executable, "program.py"], tmp_path)
    assert done.stdout.strip() == "all that is needed", done.stderr


@needs_bwrap
def test_memory_of_one_process_is_bounded(run):
    alone = run("x = bytearray(2 * 2**30)")
    assert "MemoryError" in alone.stderr


@needs_bwrap
@pytest.mark.parametrize("signal", ["terminate", "kill"])
def test_ending_the_command_ends_everything_inside(sandbox, server, tmp_path, signal):
    marker = f"ended-{time.time_ns()}"
    (tmp_path / "client.py").write_text("import time; print('up', flush=True); time.sleep(300)")
    command = sandbox.command([sys.executable, "client.py", marker], workdir=tmp_path, server_url=server)
    with subprocess.Popen(command.argv, env=command.env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        getattr(process, signal)()
        process.wait(20)
    command.cleanup()
    wait_until(lambda: not running_with(marker))


@needs_bwrap
def test_cleanup_leaves_nothing_behind(sandbox, server, tmp_path, monkeypatch):
    # A folder of its own: other processes have sandboxes in the common one. Short, because a socket lies in it.
    with tempfile.TemporaryDirectory(prefix="own-", dir="/tmp") as own:
        monkeypatch.setattr(tempfile, "tempdir", own)
        command = sandbox.command(["true"], workdir=tmp_path, server_url=server)
        assert list(Path(own).iterdir())
        command.cleanup()
        command.cleanup()
        assert list(Path(own).iterdir()) == []


def test_no_sandbox_is_used_only_if_a_person_said_so():
    assert choose_sandbox(unsafe_no_sandbox=True) is None


def test_missing_bubblewrap_names_the_fix_and_the_flag(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match=r"install the package 'bubblewrap'.*--unsafe-no-sandbox"):
        choose_sandbox(unsafe_no_sandbox=False)


def test_bubblewrap_that_does_not_work_names_its_reason_and_the_flag(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SandboxUnavailable, match=r"No permissions to create new namespace.*--unsafe-no-sandbox"):
        choose_sandbox(unsafe_no_sandbox=False)


@pytest.mark.parametrize("url", ["server:1", "ftp://host:1", "http://host:99999999", ""])
def test_a_url_that_is_none_is_refused(url, tmp_path):
    with pytest.raises(BadRequest, match="is not the URL of a server"):
        Sandbox("/usr/bin/bwrap", ()).command(["true"], workdir=tmp_path, server_url=url)


def test_a_plain_command_has_no_keys_in_its_environment_either(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    command = plain_command(["true"], server_url="http://127.0.0.1:1", token="t" * 16)
    assert "sk-canary" not in str(command.env)
    assert command.env["SWARM_TOKEN"] == "t" * 16


def running_with(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes() and path.parent.name != str(os.getpid()):
                found.append(path.parent.name)
        except OSError:
            continue
    return found
