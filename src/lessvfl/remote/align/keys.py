"""What is random in an alignment, all of it derived from a secret.

A side that was killed and starts again with its secret makes the very same messages, so
that an alignment that was broken off can be repeated to the bit.
"""

from __future__ import annotations

import hmac

SECRET_BYTES = 32


def derive(secret: bytes, label: str, about: bytes = b"") -> bytes:
    """Return 32 bytes that nobody can tell from random ones without the secret.

    Different labels, and different things they are `about`, give different bytes.
    """
    return hmac.digest(secret, f"lessvfl/align/2/{label}:".encode() + about, "sha256")
