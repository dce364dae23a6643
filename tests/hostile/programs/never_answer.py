"""Never ends its attempt."""

import time


def agent(task, model, session):
    while True:
        try:
            time.sleep(600)
        except BaseException as error:  # noqa: BLE001
            print(error)
