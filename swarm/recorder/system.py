"""Readings of the machine that a server runs on: CPU, memory, and GPUs where there are any."""

from __future__ import annotations

import shutil
import subprocess
import time

import psutil

from swarm.sinks import SystemReading

GPU_TIMEOUT_S = 5.0
_GPU_QUERY = ("utilization.gpu", "memory.used", "memory.total")


class SystemReader:
    """A reader of the load of one process and its children, and of the GPUs of the machine."""

    def __init__(self, pid: int) -> None:
        """Begin to measure the process. Raise psutil.NoSuchProcess if it is gone."""
        self._processes: dict[int, psutil.Process] = {}
        self._root = psutil.Process(pid)
        self._nvidia_smi = shutil.which("nvidia-smi")

    def read(self) -> SystemReading | None:
        """Return the load since the last reading, or None once the process is gone."""
        try:
            present = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return None
        # The same objects are kept, because each of them knows its CPU time at the last reading.
        self._processes = {process.pid: self._processes.get(process.pid, process) for process in present}
        cpu = memory = 0.0
        for process in self._processes.values():
            try:
                with process.oneshot():
                    cpu += process.cpu_percent()
                    memory += process.memory_info().rss
            except psutil.Error:
                continue
        machine = psutil.virtual_memory()
        values = {
            "system/cpu_percent": cpu,
            "system/memory_mb": memory / 1e6,
            "system/machine_cpu_percent": psutil.cpu_percent(),
            "system/machine_memory_percent": machine.percent,
        }
        return SystemReading(time.time(), {**values, **self._read_gpus()})

    def _read_gpus(self) -> dict[str, float]:
        if self._nvidia_smi is None:
            return {}
        command = [self._nvidia_smi, f"--query-gpu={','.join(_GPU_QUERY)}", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=GPU_TIMEOUT_S, check=True)
            return parse_gpus(answer.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return {}


def parse_gpus(answer: str) -> dict[str, float]:
    """Return the use of each GPU from nvidia-smi's lines of percent, used and whole memory in MiB."""
    values: dict[str, float] = {}
    for number, line in enumerate(answer.strip().splitlines()):
        busy, used, whole = (float(cell) for cell in line.split(","))
        values[f"system/gpu{number}_percent"] = busy
        values[f"system/gpu{number}_memory_percent"] = 100 * used / whole if whole else 0.0
    return values
