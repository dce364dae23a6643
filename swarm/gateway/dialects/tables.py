"""All field tables, by route.

Place in the flow: top of the dialects; the docs are written from it and tests walk it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from swarm.gateway.dialects.chat import CHAT_FIELDS
from swarm.gateway.dialects.fields import FieldTable

TABLES: Mapping[str, FieldTable] = MappingProxyType({"chat/completions": CHAT_FIELDS})
