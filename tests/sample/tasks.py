"""Tasks that do what their arguments say."""

from __future__ import annotations

from typing import Any

from deadletter import Permanent
from deadletter.tasks import task


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task
async def add_async(a: int, b: int = 1) -> int:
    return a + b


@task(max_attempts=2)
def fail(text: str = "as asked") -> None:
    raise ValueError(text)


@task
def fail_for_good() -> None:
    raise Permanent("never")


@task
def answer(value: Any) -> Any:
    return value


@task
def answer_something_else() -> Any:
    return object()


@task(takes_context=True)
def look(context: Any) -> dict[str, Any]:
    result = context.task_result
    return {
        "id": result.id,
        "attempt": context.attempt,
        "attempts": result.attempts,
        "status": str(result.status),
        "workers": result.worker_ids,
    }


@task(stream="user-{user_id}", key="welcome-{user_id}")
def welcome(user_id: int) -> str:
    return f"welcome {user_id}"


@task(keep_result="never")
def forget(value: Any = None) -> Any:
    return value


@task(atomic=True)
def add_atomic(a: int, b: int = 1) -> int:
    return a + b


not_a_task = print


@task
def answer_nul() -> str:
    return "\0"


@task
def answer_endless() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


@task(max_attempts=3)
def patient() -> None:
    raise ValueError("not yet")


@task(takes_context=True)
def count_up(context: Any, total: int) -> int:
    for done in range(1, total + 1):
        context.report(done, total, note=f"step {done}")
    return total


@task(takes_context=True)
async def look_async(context: Any) -> dict[str, Any]:
    result: dict[str, Any] = look.func(context)
    return result


@task
def sign_in(user: str, password: str) -> dict[str, str]:
    return {"user": user, "token": password}
