"""The command `python -m swarm.program.hosted PROGRAM --server URL`: the process that runs a program's functions."""

from swarm.processes.imports import plain_httpx

if __name__ == "__main__":
    with plain_httpx():
        from swarm.program.hosted.host import main
    main()
