"""What code from a language model can reach: the one server, and nothing else of this machine."""

from __future__ import annotations

import http.server
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
def test_clients_have_no_privileges_and_root_gives_them_a_user_of_their_own(run):
    done = run("""
        import os
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        print(int(status["CapEff"], 16), int(status["NoNewPrivs"]), os.getresuid() == (os.getuid(),) * 3, os.getuid())
    """)
    *found, user = done.stdout.split()
    assert found == ["0", "1", "True"], done.stderr
    assert os.getuid() != 0 or int(user) > 1000


@needs_bwrap
def test_no_other_port_of_the_machine_can_be_reached(run):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as other:
        done = run(
            """
            import socket, sys
            for address in (("127.0.0.1", int(sys.argv[2])), ("1.1.1.1", 53), ("10.0.0.1", 80)):
                try:
                    socket.create_connection(address, timeout=3)
                    print("reached", address)
                except OSError:
                    print("refused")
            """,
            str(other.server_port),
        )
    assert done.stdout.split() == ["refused"] * 3, done.stderr


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


@needs_bwrap
def test_keys_and_files_of_the_host_are_not_there(run, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-in-the-environment")
    secret = tmp_path / "research.db"
    secret.write_text("canary in a file")
    done = run(
        """
        import os, sys
        from pathlib import Path
        print(dict(os.environ))
        for process in Path("/proc").glob("[0-9]*/environ"):
            try:
                print(process.read_bytes())
            except OSError:
                pass
        for place in (sys.argv[2], "/root/.ssh", "/home", "/etc/passwd", "/etc/shadow", "/var", "/run/systemd"):
            path = Path(place)
            print(place, os.path.exists(place), list(path.iterdir()) if path.is_dir() else "")
        """,
        str(secret),
    )
    assert done.returncode == 0, done.stderr
    assert "canary" not in done.stdout
    seen = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("/")}
    assert seen.pop("/home") == "True [PosixPath('/home/sandbox')]"
    assert all(answer.startswith("False") for answer in seen.values()), seen


@needs_bwrap
def test_only_the_working_directory_and_temporary_files_can_be_written(run, tmp_path):
    done = run("""
        import os, sys, swarm.types
        places = ["/usr/x", "/x", "/dev/x", "/proc/sys/kernel/hostname", "/run/swarm/link/x", "client.py",
                  swarm.types.__file__, sys.executable, sys.prefix + "/x", "x", "/tmp/x", os.environ["HOME"] + "/x"]
        for place in places:
            try:
                open(place, "a").close()
                print("written", place)
            except OSError:
                pass
    """)
    assert done.stdout.split() == ["written", "x", "written", "/tmp/x", "written", "/home/sandbox/x"], done.stderr
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["client.py"]


@needs_bwrap
def test_every_form_of_the_sandbox_that_works_here_hides_the_host(server, tmp_path):
    """Root has a form of its own; where that is forbidden, and for other users, the next one is taken."""
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    code = """
        import os, sys, httpx
        print(httpx.post(sys.argv[1] + "/v1/x", content="x", timeout=60).text, os.path.exists(sys.argv[2]))
        for place in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/usr/x", sys.prefix + "/x"):
            try:
                open(place, "r+" if place.startswith("/proc") else "a").close()
                print("written", place)
            except OSError:
                pass
    """
    (tmp_path / "secret").write_text("s")
    tried = 0
    for number, form in enumerate(candidates(bwrap)):
        if probe(form):
            continue
        workdir = tmp_path / f"work-{number}"
        workdir.mkdir()
        (workdir / "client.py").write_text(textwrap.dedent(code))
        argv = [sys.executable, "client.py", server, str(tmp_path / "secret")]
        done = enter(form, argv, workdir, server)
        assert done.stdout == "x False\n", done.stderr
        tried += 1
    assert tried >= 1


@needs_bwrap
def test_a_fork_bomb_ends_with_its_sandbox(run):
    done = run("""
        import os, time
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.01)
    """)
    assert done.returncode != 0
    assert "more than 40 processes" in done.stderr


@needs_bwrap
def test_a_file_cannot_grow_beyond_the_limit(run, tmp_path):
    done = run("""
        import os, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with open("large", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 2**20)
            except OSError as error:
                print(error.strerror, os.path.getsize("large"))
    """)
    assert done.stdout.strip() == f"File too large {SMALL.file_bytes}", done.stderr
    assert not (tmp_path / "work" / "large").exists()


@needs_bwrap
@pytest.mark.parametrize("folder", [".", "/tmp", "/dev/shm", "~"])
def test_folders_are_full_at_their_size_also_with_files_that_have_no_name(run, folder):
    done = run(
        """
        import os, sys
        os.chdir(os.path.expanduser(sys.argv[2]))
        kept = []
        try:
            while True:
                kept.append(open("part", "wb", buffering=0))
                kept[-1].write(b"x" * 2**20)
                os.unlink("part")
        except OSError as error:
            print(error.strerror, len(kept))
        """,
        folder,
    )
    reason, parts = done.stdout.rsplit(maxsplit=1)
    assert (reason, int(parts) <= 17) == ("No space left on device", True), done.stderr


@needs_bwrap
def test_many_small_files_end_the_sandbox(run):
    done = run("""
        import os
        for number in range(10**6):
            os.mkdir(f"/tmp/{number}")
    """)
    assert done.returncode == 125
    assert "more than 300 files" in done.stderr


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
    code = "for number in range(10**6): print('line', number)\nimport os; os.write(2, b'last words')"
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
        import swarm.program.hosted.host
        for name in ("swarm.tasks.families", "swarm.environments.registry", "reasoning_gym.factory",
                     "swarm.environments.sources.bundled", "swarm.program.training", "swarm.sandbox.sandbox"):
            try:
                importlib.import_module(name)
                print("imported", name)
            except ImportError:
                pass
        from swarm.program import answer_in_turn
        from swarm.tasks import Split
        import httpx, openai, pydantic
        print("all that is needed")
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(code))
    done = enter(sandbox, [sys.executable, "program.py"], tmp_path)
    assert done.stdout.strip() == "all that is needed", done.stderr


@needs_bwrap
def test_memory_of_one_process_and_of_all_together_is_bounded(run):
    alone = run("x = bytearray(2 * 2**30)")
    assert "MemoryError" in alone.stderr
    together = run("""
        import os, time
        for _ in range(8):
            if os.fork() == 0:
                x = bytearray(os.urandom(2**20)) * 90
                time.sleep(60)
        time.sleep(60)
    """)
    assert together.returncode == 125
    assert "300 MiB of memory, files included" in together.stderr


@needs_bwrap
def test_processes_left_behind_end_with_the_client(run, sandbox):
    marker = f"left-behind-{time.time_ns()}"
    done = run(
        """
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", sys.argv[2]], start_new_session=True)
        """,
        marker,
    )
    assert done.returncode == 0
    assert not running_with(marker)


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
    deadline = time.monotonic() + 60
    while running_with(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running_with(marker)


@needs_bwrap
def test_exit_code_and_output_of_the_client_come_through(run):
    done = run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


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
