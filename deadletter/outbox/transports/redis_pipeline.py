"""A pipeline of redis-py that keeps the replies which came before the connection was lost."""

from __future__ import annotations

from time import monotonic
from typing import Any

from redis import Redis
from redis import TimeoutError as RedisTimeout
from redis.client import Pipeline
from redis.exceptions import ResponseError


class ReplyPipeline(Pipeline):
    """Commands that are sent at once, without a transaction, and whose replies are kept."""

    def __init__(self, client: Redis, *, deadline: float) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, False, None)
        #: In the order of the commands; errors as values.
        self.replies: list[Any] = []
        self._deadline = deadline

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        """Read the next reply; `execute` calls it for each command."""
        if monotonic() > self._deadline:
            raise RedisTimeout(f"only {len(self.replies)} of {len(self)} replies came in time")
        try:
            reply = super().parse_response(  # type: ignore[no-untyped-call]
                connection, command_name, **options
            )
        except ResponseError as error:
            self.replies.append(error)
            raise
        self.replies.append(reply)
        return reply
