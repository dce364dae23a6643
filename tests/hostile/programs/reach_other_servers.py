"""Connects to other ports of the machine, to the network, and past it."""

import socket

import httpx

ADDRESSES = [("127.0.0.1", FACTS["port"]), ("localhost", FACTS["port"]), ("::1", FACTS["port"]), ("1.1.1.1", 53)]
FAMILIES = {"vsock": 40, "packet": 17, "alg": 38, "bluetooth": 31, "tipc": 30}


def agent(task, model, session):
    for address in [*ADDRESSES, ("10.0.2.2", 80), ("169.254.169.254", 80)]:
        try:
            socket.create_connection(address, timeout=3).close()
            print("REACHED", address)
        except OSError as error:
            print(address, error)
    for name, family in FAMILIES.items():
        try:
            socket.socket(family, socket.SOCK_STREAM)
            print("REACHED", name)
        except OSError as error:
            print(name, error)
    root = model.base_url.split("/v1")[0]
    for path in (f"http://127.0.0.1:{FACTS['port']}/v1/models", "//127.0.0.1/v1/models"):
        with httpx.Client(verify=False) as http:
            answer = http.send(http.build_request("GET", root, extensions={"target": path.encode()}))
        print(path, "REACHED" if answer.is_success else answer.status_code)
    print("tried")
    return "?"
