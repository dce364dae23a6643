"""`python -m swarm.program.hosted PROGRAM --server URL`: the process in which the functions of a program run."""

from swarm.processes.imports import plain_httpx

if __name__ == "__main__":
    with plain_httpx():
        from swarm.program.hosted.host import main
    main()
