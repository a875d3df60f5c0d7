"""The tests that cannot apply to our backend, each with its reason."""

from __future__ import annotations

KEEPS_RESULTS = "ours stores results, and ImmediateBackend does not"
DUMMY_LIST = "changes the list in which DummyBackend keeps its results"
SUBCLASS = "about a subclass of BaseTaskBackend that adds nothing; ours "

DJANGO = {
    "DummyBackendTestCase.test_refresh_result": DUMMY_LIST,
    "DummyBackendTestCase.test_refresh_result_async": DUMMY_LIST,
    "ImmediateBackendTestCase.test_cannot_get_result": KEEPS_RESULTS,
    "ImmediateBackendTestCase.test_cannot_refresh_result": KEEPS_RESULTS,
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "ours supports run_after",
    "CustomBackendTestCase.test_backend_does_not_support_priority": f"{SUBCLASS}has priorities",
    "CustomBackendTestCase.test_no_enqueue": f"{SUBCLASS}has enqueue()",
}

PICKLE = "the backport has no pickling of tasks, which came with Django 6.1"
BACKPORT = {
    "TaskTestCase.test_pickle_task": PICKLE,
    "TaskTestCase.test_pickle_task_result": PICKLE,
    "TaskTestCase.test_unpickle_arbitrary_string": PICKLE,
    "TaskTestCase.test_unpickle_non_task_object": PICKLE,
    "TaskTestCase.test_run_after_in_decorator": "the backport raises TypeError with another text",
}

MODEL = "reads or writes the model of django-tasks-db"
COMMAND = "about a command of django-tasks-db, or its options"
IDS = "the ids of DatabaseBackend are UUIDs"
ID_FUNCTION = "about the option id_function of DatabaseBackend"
PROCESS = "starts the command of django-tasks-db as a process"
TASKS_DB = {
    "DatabaseBackendTestCase.test_enqueue_task": IDS,
    "DatabaseBackendTestCase.test_enqueue_task_async": IDS,
    "DatabaseBackendTestCase.test_refresh_result": MODEL,
    "DatabaseBackendTestCase.test_refresh_result_async": MODEL,
    "DatabaseBackendTestCase.test_invalid_task_path": MODEL,
    "DatabaseBackendTestCase.test_missing_task_path": MODEL,
    "DatabaseBackendTestCase.test_task_name": MODEL,
    "DatabaseBackendTestCase.test_database_backend_app_missing": "asks for the app django_tasks_db",
    "DatabaseBackendTestCase.test_priority_range_check": MODEL,
    "DatabaseBackendTestCase.test_index_scan_for_ready": MODEL,
    "DatabaseBackendTestCase.test_run_after_tz": MODEL,
    "DatabaseBackendTestCase.test_run_after_null_0016_migration": MODEL,
    "DatabaseBackendTestCase.test_custom_id_function": ID_FUNCTION,
    "DatabaseBackendTestCase.test_unknown_id_function": ID_FUNCTION,
    "DatabaseBackendTestCase.test_postgres_db_id_function": ID_FUNCTION,
    "DatabaseBackendTestCase.test_postgres_id_function_expression": ID_FUNCTION,
    "DatabaseBackendWorkerTestCase.test_process_all_queues_excluding_one_queue": COMMAND,
    "DatabaseBackendWorkerTestCase.test_exclude_queues_requires_processing_all_queues": COMMAND,
    "DatabaseBackendWorkerTestCase.test_excluding_unknown_queue_processes_selected_queues": COMMAND,
    "DatabaseBackendWorkerTestCase.test_doesnt_process_different_backend": COMMAND,
    "DatabaseBackendWorkerTestCase.test_unknown_backend": COMMAND,
    "DatabaseBackendWorkerTestCase.test_incorrect_backend": COMMAND,
    "DatabaseBackendWorkerTestCase.test_negative_interval": COMMAND,
    "DatabaseBackendWorkerTestCase.test_infinite_interval": COMMAND,
    "DatabaseBackendWorkerTestCase.test_fractional_interval": COMMAND,
    "DatabaseBackendWorkerTestCase.test_zero_interval": COMMAND,
    "DatabaseBackendWorkerTestCase.test_negative_max_tasks": COMMAND,
    "DatabaseBackendWorkerTestCase.test_zero_max_tasks": COMMAND,
    "DatabaseBackendWorkerTestCase.test_too_long_worker_id": COMMAND,
    "DatabaseBackendWorkerTestCase.test_empty_worker_id": COMMAND,
    "DatabaseBackendWorkerTestCase.test_verbose_logging": COMMAND,
    "DatabaseBackendWorkerTestCase.test_max_tasks": COMMAND,
    "DatabaseBackendWorkerTestCase.test_complex_return_value": "expects the text of another error",
    "DatabaseBackendWorkerTestCase.test_run_after": MODEL,
    "DatabaseBackendWorkerTestCase.test_run_after_priority": MODEL,
    "DatabaseBackendWorkerTestCase.test_invalid_task_path": MODEL,
    "DatabaseBackendWorkerTestCase.test_missing_task_path": MODEL,
    "DatabaseBackendWorkerTestCase.test_task_import_string": MODEL,
    "DatabaseBackendWorkerTestCase.test_worker_with_locked_rows": MODEL,
    "DatabaseTaskResultTestCase": MODEL,
    "ConnectionExclusiveTranscationTestCase": MODEL,
    "DatabaseBackendPruneTaskResultsTestCase": COMMAND,
    "DatabaseWorkerProcessTestCase": PROCESS,
    "CompatTestCase": "about the imports of django-tasks-db",
    "DBTaskResultOrderingTestCase": MODEL,
    "AdminTestCase": MODEL,
}

#: Coroutines that call `get_result()`, `refresh()` or `.results`, and not their async forms. Django
#: refuses queries there, whatever the backend; these tests run with DJANGO_ALLOW_ASYNC_UNSAFE.
QUERIES_IN_A_COROUTINE = {
    "DummyBackendTestCase.test_enqueue_task_async",
    "DummyBackendTestCase.test_get_missing_result",
    "TaskTestCase.test_enqueue_task_async",
    "TaskTestCase.test_get_missing_result",
    "TaskTestCase.test_refresh_result",
}


def reason(case: str, test: str, library: str) -> str | None:
    """Return why a test cannot apply, or None if it must pass."""
    table = DJANGO | TASKS_DB | (BACKPORT if library == "django_tasks" else {})
    return table.get(case) or table.get(f"{case}.{test}")
