"""The strictest policy a site may have: nothing inline, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"


def strict(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return answer
