"""Running servers: calls of their control API, what they say of themselves, and the commands that a user sends.

Only the page of servers uses this package, and only for an address that the user has asked to connect to.
"""
