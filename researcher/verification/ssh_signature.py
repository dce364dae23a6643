"""Signatures in the format of OpenSSH (SSHSIG) by ed25519 keys, as `ssh-keygen -Y sign` and `-Y verify` use it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from researcher.errors import KeyUnusable

MAGIC, HASH, KIND = b"SSHSIG", b"sha512", b"ssh-ed25519"
BEGIN, END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"


class SignatureWrong(Exception):
    """A signature that does not fit; its text says why."""


def sign(message: bytes, private: Ed25519PrivateKey, namespace: str) -> str:
    """Return the signature of a message, in lines."""
    public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    signature = private.sign(_signed(message, namespace))
    parts = (_string(KIND) + _string(public), namespace.encode(), b"", HASH, _string(KIND) + _string(signature))
    body = base64.b64encode(MAGIC + (1).to_bytes(4, "big") + b"".join(map(_string, parts))).decode()
    lines = (body[start : start + 70] for start in range(0, len(body), 70))
    return "\n".join([BEGIN, *lines, END, ""])


def verify(message: bytes, armored: str, public: Ed25519PublicKey, namespace: str) -> None:
    """Check a signature of a message. Raises SignatureWrong."""
    signer, of, hashed, signature = _parse(armored)
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    if signer != _string(KIND) + _string(raw):
        raise SignatureWrong("it was made with another key")
    if (of, hashed) != (namespace.encode(), HASH):
        raise SignatureWrong("it was made for something else")
    try:
        public.verify(signature, _signed(message, namespace))
    except InvalidSignature as error:
        raise SignatureWrong("it does not fit what was signed") from error


def _signed(message: bytes, namespace: str) -> bytes:
    digest = hashlib.sha512(message).digest()
    return MAGIC + b"".join(map(_string, (namespace.encode(), b"", HASH, digest)))


def _parse(armored: str) -> tuple[bytes, bytes, bytes, bytes]:
    """Return key, namespace, hash and raw signature of an armored signature. Raises SignatureWrong."""
    body = armored.strip().removeprefix(BEGIN).removesuffix(END)
    try:
        read = base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SignatureWrong("it is damaged") from error
    rest = read[len(MAGIC) + 4 :]
    signer, rest = _take(rest)
    namespace, rest = _take(rest)
    _, rest = _take(rest)
    hashed, rest = _take(rest)
    signature, rest = _take(rest)
    kind, raw = _take(signature)
    raw, left = _take(raw)
    if not read.startswith(MAGIC + (1).to_bytes(4, "big")) or kind != KIND or rest or left:
        raise SignatureWrong("it is damaged, or not one of an ed25519 key")
    return signer, namespace, hashed, raw


def _string(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def _take(data: bytes) -> tuple[bytes, bytes]:
    """Return the first string of the data, and the rest. Raises SignatureWrong."""
    end = 4 + int.from_bytes(data[:4], "big")
    if len(data) < max(4, end):
        raise SignatureWrong("it is damaged")
    return data[4:end], data[end:]


def read_private(path: Path) -> Ed25519PrivateKey:
    """Return the key in a file. Raises KeyUnusable for one that cannot sign."""
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise KeyUnusable(f"key {path} cannot be read: {error.strerror}") from error
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        if "password" in str(error).lower():
            raise KeyUnusable(f"key {path} has a passphrase: give a key without one") from error
        raise KeyUnusable(f"{path} is no private key of OpenSSH: `ssh-keygen -t ed25519 -f FILE` makes one") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnusable(f"key {path} is not an ed25519 key: `ssh-keygen -t ed25519 -f FILE` makes one")
    return key


def read_public(path: Path) -> Ed25519PublicKey:
    """Return the key in a file. Raises KeyUnusable for one that cannot check a signature."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise KeyUnusable(f"key {path} cannot be read: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyUnusable(f"{path} is no public key of OpenSSH: give the file that ends in .pub") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyUnusable(f"key {path} is not an ed25519 key: `ssh-keygen -t ed25519 -f FILE` makes one")
    return key
