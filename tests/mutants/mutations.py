"""The mutations: each breaks one rule of the queue, and names the tests that hold it."""

from __future__ import annotations

from collections.abc import Iterator

from .mutation import Database, Edit, Mutation, python, sql

RECORDED = "tests/worker/test_stages.py"
REPORTED = "tests/worker/test_progress.py"
PROGRESS = "tests/lifecycle/test_progress.py"
STAGES = "tests/lifecycle/test_stages.py"
SETTLE = "tests/lifecycle/test_settles.py"
FINISH = "tests/lifecycle/test_completions.py"
CLAIM = "tests/lifecycle/test_claims.py"
STUCK = "tests/instances/test_stuck.py"
FLOOR = "tests/worker/test_floor.py"
THRESHOLD = "tests/lifecycle/test_threshold.py"
REASONS = "tests/lifecycle/test_reason_policies.py"
UNREGISTERED = "tests/worker/test_unregistered.py"
STREAMS = "tests/lifecycle/test_stream_claims.py"
NEIGHBOURS = "tests/lifecycle/test_stream_neighbours.py"
POLICIES = "tests/lifecycle/test_stream_policies.py"
LEVELS = "tests/lifecycle/test_levels.py"
BUSY = "tests/worker/test_levels.py"
IMPORTS = "tests/operations/test_imports.py"
PATTERNS = "tests/lifecycle/test_patterns.py"
RELOADER = "tests/worker/test_reloader.py"
REPLACEMENT = "tests/worker/test_replacement.py"
COPIES = "tests/worker/test_forks.py"
ATOMIC = "tests/worker/test_atomic.py"
DELIVERY = "tests/alerts/test_delivery.py"
RACES = "tests/races"
DEAD_QUEUE_RETRIES = "tests/lifecycle/test_dead_queue_retries.py"
COST = "tests/plans/test_stream_cost.py"

BOTH: tuple[Database, Database] = ("sqlite", "postgresql")

#: The statements that apply a verb's report.
REPORTS = {
    "complete": ("complete", "complete_streamed"),
    "fail": ("read_for_failure", "fail"),
    "release": ("release",),
    "renew": ("renew",),
}
#: How a statement says that the lease is the caller's, and that it is not over.
TOKEN = {
    "sqlite": "lease_token || '-' || {0}id IN (SELECT value FROM json_each(%(pairs)s))",
    "postgresql": "m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])",
}
#: Those that finish messages of which the worker has said whether they have a stream.
KNOWN = ("complete_plain", "complete_streamed")
#: How long a worker keeps the levels that it has found.
KEPT = "if levels is not None and now - levels.read > WHOLE_LOOK:"
LIVE = {
    "sqlite": "available_at > %(now)s",
    "postgresql": "COALESCE(m.available_at, '-infinity') > %(now)s",
}


def mutations() -> list[Mutation]:
    return [
        *_guards(),
        *_counting(),
        *_thresholds(),
        *_stages(),
        *_progress(),
        *_streams(),
        *_locks(),
        *_waits(),
        *_order(),
        *_levels(),
        *_numbers(),
        *_quarantine(),
        *_dead_queues(),
        *_processes(),
        *_people(),
        *_applications(),
        *_payload_types(),
        *_schedules(),
        *_failure_groups(),
        *_results(),
        *_outbox(),
        *_rest(),
    ]


def _guards() -> Iterator[Mutation]:
    """Only the holder of a live lease may settle."""
    for on in BOTH:
        for verb, statements in REPORTS.items():
            yield Mutation(
                f"{verb} without the token",
                on,
                [_without_token(on, statement) for statement in statements],
                [f"{SETTLE}::test_a_wrong_token_changes_nothing"],
            )
            yield Mutation(
                f"{verb} under a lease that is over",
                on,
                [_without_end(on, statement) for statement in statements],
                [f"{SETTLE}::test_a_lease_that_ran_out_settles_nothing_even_if_nobody_took_it"],
            )
        yield Mutation(
            "settle by id only",
            on,
            [
                edit
                for statements in REPORTS.values()
                for statement in statements
                for edit in (_without_token(on, statement), _without_end(on, statement))
            ],
            [f"{SETTLE}::test_a_lease_somebody_else_took_over_settles_nothing"],
        )
    for what, edit, test in (
        (
            "without their tokens",
            _without_token,
            "test_tokens_of_the_same_report_do_not_stand_for_each_other",
        ),
        ("under a lease that is over", _without_end, "test_a_lease_that_is_over_settles_nothing"),
    ):
        yield Mutation(
            f"finish known messages {what}",
            "postgresql",
            [edit("postgresql", statement) for statement in KNOWN],
            [f"{FINISH}::{test}"],
        )


def _without_token(on: Database, statement: str) -> Edit:
    name = "m." if statement == "read_for_failure" else ""
    return sql(on, statement, TOKEN[on].format(name), _true(on))


def _without_end(on: Database, statement: str) -> Edit:
    # A name in front of the column is part of it, where there is one.
    name = "m." if on == "sqlite" and statement == "read_for_failure" else ""
    return sql(on, statement, name + LIVE[on], "1 = 1")


def _true(on: Database) -> str:
    # SQLite's text may have "m." in front, which must stay good: m.id is never 0.
    return "id" if on == "sqlite" else "true"


def _counting() -> Iterator[Mutation]:
    """The claim counts, a release refunds, nothing else does either."""
    for on, column in zip(BOTH, ("", "m."), strict=True):
        counts = f"SET attempts = {column}attempts + 1, fence"
        refunds = (
            "attempts = MAX(attempts - r.refund, 0)"
            if on == "sqlite"
            else "GREATEST(m.attempts - r.refund, 0)"
        )
        later = "attempts = attempts + 1" if on == "sqlite" else "m.attempts + 1"
        kept = "attempts = attempts" if on == "sqlite" else "m.attempts"
        at_the_claim = [sql(on, name, counts, "SET fence") for name in ("claim", "lease_runs")]
        yield Mutation(
            "count at the failure instead of the claim",
            on,
            [*at_the_claim, sql(on, "fail", refunds, later)],
            [
                f"{THRESHOLD}::test_a_message_whose_leases_run_out_is_handed_out_n_times_then_is_poison"
            ],
        )
        yield Mutation(
            "count at the claim and at the failure",
            on,
            [sql(on, "fail", refunds, later)],
            [f"{THRESHOLD}::test_failing_does_not_count_a_second_time"],
        )
        yield Mutation(
            "forget the refund of a deferral",
            on,
            [sql(on, "fail", refunds, kept)],
            [
                f"{UNREGISTERED}::test_a_handler_that_appears_has_its_full_number_of_attempts",
            ],
        )
        least = "MAX" if on == "sqlite" else "GREATEST"
        for statement, test in {
            "release": f"{SETTLE}::test_a_release_refunds_the_attempt_and_frees_the_message",
            "refund": f"{SETTLE}::test_a_refund_takes_the_charge_off_a_lease_that_ran_out_unused",
        }.items():
            refund = f"attempts = {least}({column}attempts - 1, 0)"
            kept = sql(on, statement, refund, f"attempts = {column}attempts")
            yield Mutation(f"forget the refund of a {statement}", on, [kept], [test])
        grows = f"fence = {column}fence + 1"
        yield Mutation(
            "a fence that stands still",
            on,
            [sql(on, name, grows, f"fence = {column}fence") for name in ("claim", "lease_runs")],
            [f"{CLAIM}::test_the_fence_grows_with_every_claim"],
        )


def _thresholds() -> Iterator[Mutation]:
    """N = max_attempts means N executions."""
    yield Mutation(
        "one attempt too many after a failure",
        "sqlite",
        [
            python(
                "failure_policy.py",
                "return limit is not None and count >= max(limit, 1)",
                "return limit is not None and count > max(limit, 1)",
            )
        ],
        [f"{THRESHOLD}::test_a_message_that_always_fails_is_executed_n_times_then_is_poison"],
    )
    yield Mutation(
        "forget a handler's own number at the claim",
        "sqlite",
        [
            python(
                "lifecycle/limits.py",
                "handler = None if is_flow else self.handlers.get(suspect.name)",
                "handler = None",
            )
        ],
        [f"{THRESHOLD}::test_leases_that_run_out_are_counted_by_a_handlers_own_number"],
    )
    # Not a lost lease, which is judged once more.
    unread = [
        f"{REASONS}::test_a_payload_that_cannot_be_read_dies_at_the_general_limit_whatever_others_have"
    ]
    yield Mutation(
        "one claim too many",
        "postgresql",
        [
            sql(
                "postgresql",
                "claim",
                "found.attempts >= level.max_attempts",
                "found.attempts > level.max_attempts",
            )
        ],
        unread,
    )
    yield Mutation(
        "one claim too many",
        "sqlite",
        [
            sql("sqlite", "claim", "attempts >= MAX(", "attempts > MAX("),
            sql("sqlite", "claim", "attempts < MAX(", "attempts <= MAX("),
        ],
        unread,
    )
    for on in BOTH:
        yield Mutation(
            "one claim too many in a stream",
            on,
            [sql(on, "read_streams", "m.attempts >= ", "m.attempts > ")],
            unread,
        )
    yield from _unregistered()
    yield from _reasons()


def _unregistered() -> Iterator[Mutation]:
    """A name that nobody knows is counted by itself, and dead when nobody will know it."""
    limit = [f"{UNREGISTERED}::test_with_three_attempts_the_fourth_claim_poisons"]
    yield Mutation(
        "count deferrals as attempts",
        "sqlite",
        [
            python(
                "lifecycle/failures.py",
                "return Deferral(count, row",
                "return Deferral(row.attempts, row",
            )
        ],
        [f"{UNREGISTERED}::test_a_queue_may_put_unknown_names_off_more_often"],
    )
    yield Mutation(
        "one deferral too many",
        "postgresql",
        [
            sql(
                "postgresql",
                "claim",
                "found.deferrals >= level",
                "found.deferrals > level",
            )
        ],
        limit,
    )
    yield Mutation(
        "one deferral too many",
        "sqlite",
        [sql("sqlite", "claim", "unregistered_count >= MAX(", "unregistered_count > MAX(")],
        limit,
    )
    for on in BOTH:
        yield Mutation(
            "one deferral too many in a stream",
            on,
            [sql(on, "read_streams", "m.unregistered_count >= ", "m.unregistered_count > ")],
            [f"{UNREGISTERED}::test_a_limit_of_nothing_still_puts_off_once"],
        )
    for what, before, after, test in (
        (
            "put off for a worker of another queue",
            "served.count(suspect.queue, is_dead_queue=is_dead_queue)",
            "True",
            "test_a_worker_that_could_not_get_it_saves_nothing",
        ),
        (
            "put off for a worker whose pattern names a dead queue",
            "is_dead_queue = suspect.queue in self._dead_queues",
            "is_dead_queue = False",
            "test_a_worker_that_serves_a_queue_by_pattern_may_know_it",
        ),
        (
            "put off for a worker that is gone",
            "alive = WorkerProcess.objects.using(self.tx.using).alive(self.tx.time())",
            "alive = WorkerProcess.objects.using(self.tx.using)",
            "test_a_worker_that_could_not_get_it_saves_nothing",
        ),
        (
            "put off for ever",
            "self.tx.time() - since >= LONGEST_DEFERRAL",
            "since > self.tx.time()",
            "test_a_known_name_is_put_off_for_a_day_at_most",
        ),
        (
            "give up what another worker knows",
            "for served, handlers in self._workers",
            "for served, handlers in []",
            "test_beyond_the_limit_it_is_put_off_while_another_worker_knows_it",
        ),
        (
            "give up what the claimer knows",
            "if self.knows is not None and self.knows(",
            "if self.knows is None and self.knows(",
            "test_a_claimer_that_knows_it_takes_it_whenever_it_comes",
        ),
    ):
        yield Mutation(
            what,
            "sqlite",
            [python("lifecycle/limits.py", before, after)],
            [f"{UNREGISTERED}::{test}"],
        )


def _reasons() -> Iterator[Mutation]:
    """A failure is judged by the number of failures of its reason."""
    path = "failure_policy.py"
    for on in BOTH:
        yield Mutation(
            "let what a reason allows outlive its time",
            on,
            [sql(on, "claim", "THEN 'exhausted or expired'", "THEN 'exhausted'")],
            [f"{REASONS}::test_what_a_reason_allows_expires_all_the_same"],
        )
    for what, before, after, test in (
        (
            "judge a failure by all attempts",
            "        count = self._count(reason, counts)\n",
            "        count = attempts\n",
            "test_fifteen_outages_and_a_bug_do_not_kill_at_once",
        ),
        (
            "judge by the general limit instead of the largest",
            "largest = self.largest_limit\n",
            "largest = self.limit(None)\n",
            "test_fifteen_outages_and_a_bug_do_not_kill_at_once",
        ),
        (
            "no end at the largest limit",
            "return ReachedLimit(largest, attempts) if _is_reached(largest, attempts) else None",
            "return None",
            "test_as_many_attempts_as_the_largest_limit_are_the_end_in_any_case",
        ),
        (
            "wait by the attempts, whatever the reason has",
            "self._count(reason, counts) if is_own else attempts",
            "attempts",
            "test_the_backoff_of_a_reason_counts_failures_of_that_reason",
        ),
        (
            "let a cooldown below go before a backoff above",
            "if level.sets_backoff or level.cooldown is None:",
            "if level.cooldown is None:",
            "test_the_level_above_wins_and_what_it_leaves_out_is_the_queues",
        ),
        (
            "let the queue go before the handler",
            "for level in (self.handler, self.queue):\n            if reason is not None",
            "for level in (self.queue, self.handler):\n            if reason is not None",
            "test_a_handler_goes_before_its_queue",
        ),
    ):
        yield Mutation(what, "sqlite", [python(path, before, after)], [f"{REASONS}::{test}"])
    yield Mutation(
        "forget to count a failure by its reason",
        "sqlite",
        [
            python(
                "lifecycle/failures.py",
                'written[row.id] = _as_written(failure, delay, facts) | {"counts": counts}',
                "written[row.id] = _as_written(failure, delay, facts)",
            )
        ],
        [f"{REASONS}::test_a_bug_kills_when_it_has_failed_as_often_as_the_queue_says"],
    )
    for on, one in zip(BOTH, ("'$.\"10\"', 1 + ", "'10', 1 + "), strict=True):
        yield Mutation(
            "forget to count a lost lease by its reason",
            on,
            [sql(on, "lease_runs", one, one.replace("1 + ", "0 + "))],
            [f"{REASONS}::test_a_lost_lease_is_counted_by_its_reason"],
        )


def _stages() -> Iterator[Mutation]:
    """Only PUBLISHED ends a message; a stage adds a flag, and order comes first."""
    for on, column, kind in zip(BOTH, ("", "m."), ("", "::int"), strict=True):
        yield Mutation(
            "any completion ends its message",
            on,
            [
                python(
                    "lifecycle/stages.py",
                    "is_other = not flags or (flags & _PUBLISHED and not flags & ~STAGE_BITS)",
                    "is_other = True",
                )
            ],
            [f"{STAGES}::test_a_stage_keeps_the_message_and_gives_it_all_its_attempts"],
        )
        yield Mutation(
            "a stage of what is PUBLISHED already",
            on,
            [sql(on, "complete_stage", f"{column}status & %(published)s{kind} = 0 AND ", "")],
            [f"{STAGES}::test_published_now_or_before_deletes"],
        )
        yield Mutation(
            "a stage that adds no flag",
            on,
            [
                sql(
                    on,
                    "complete_stage",
                    f" AND {column}status | %(flags)s{kind} <> {column}status",
                    "",
                )
            ],
            [f"{STAGES}::test_a_completion_that_makes_no_stage_is_refused"],
        )
        yield Mutation(
            "a stage with the attempts of the one before",
            on,
            [sql(on, "complete_stage", "attempts = 0, ", "")],
            [f"{STAGES}::test_between_two_stages_there_are_max_attempts_starts"],
        )
        yield Mutation(
            "a stage that keeps the rest of its run",
            on,
            [
                python(
                    "lifecycle/stages.py",
                    "    if not first:\n        return []\n",
                    "    return []\n",
                )
            ],
            [f"{STAGES}::test_a_stage_gives_back_the_rest_of_its_run"],
        )
        yield Mutation(
            "a stage that gives back what is reported with it",
            on,
            [
                python(
                    "lifecycle/batch.py",
                    "    outcomes = complete_in(tx, done) if done else {}\n",
                    "    outcomes = complete_stages_in(tx, stages) if stages else {}\n"
                    "    outcomes |= complete_in(tx, done) if done else {}\n",
                )
            ],
            [f"{STAGES}::test_what_is_reported_with_a_stage_is_settled_as_reported"],
        )
        yield Mutation(
            "a stage without the token",
            on,
            [_without_token(on, "complete_stage")],
            [f"{STAGES}::test_only_the_holder_of_a_live_lease_finishes_a_stage"],
        )
        yield Mutation(
            "a stage under a lease that is over",
            on,
            [_without_end(on, "complete_stage")],
            [f"{STAGES}::test_only_the_holder_of_a_live_lease_finishes_a_stage"],
        )

    for on in BOTH:
        yield Mutation(
            "record progress without the token",
            on,
            [_without_token(on, "record_stages")],
            [f"{RECORDED}::test_only_the_holder_of_a_live_lease_records"],
        )
        yield Mutation(
            "record progress under a lease that is over",
            on,
            [_without_end(on, "record_stages")],
            [f"{RECORDED}::test_only_the_holder_of_a_live_lease_records"],
        )
        yield Mutation(
            "record progress after its message was given back",
            on,
            [
                python(
                    "lifecycle/batch.py",
                    "released = {item.id for item in reports.releases} if progress else ()",
                    "released: Collection[int] = ()",
                )
            ],
            [f"{RECORDED}::test_progress_is_written_before_its_message_is_given_back"],
        )
    yield Mutation(
        "record a next stage before its handler returns",
        "sqlite",
        [python("worker/in_flight.py", " & ~message.stage", "")],
        [f"{RECORDED}::test_a_next_stage_is_not_recorded_before_its_handler_returns"],
    )
    yield Mutation(
        "keep a stage whose work was rolled back",
        "sqlite",
        [
            python(
                "worker/failure.py",
                "        return reached & ~message.stage\n",
                "        return reached\n",
            )
        ],
        [f"{RECORDED}::test_a_stage_that_was_to_be_committed_with_its_work_is_undone_with_it"],
    )
    yield Mutation(
        "forget progress where nothing is due",
        "sqlite",
        [
            python(
                "lifecycle/batch.py",
                "if not (len(reports) or progress) and",
                "if not len(reports) and",
            )
        ],
        [f"{RECORDED}::test_progress_is_written_where_nothing_is_due"],
    )
    yield Mutation(
        "go on with a run behind a stage",
        "sqlite",
        [
            python(
                "worker/executors.py",
                "            if type(report) in ENDS_RUN or item.message.stage:\n"
                "                return True\n"
                "        return True\n\n"
                "    def cancel",
                "            if type(report) in ENDS_RUN:\n"
                "                return True\n"
                "        return True\n\n"
                "    def cancel",
            ),
            python(
                "worker/in_flight.py",
                "        if type(report) in ENDS_RUN or item.message.stage:\n"
                "            if isinstance(report, Release):",
                "        if type(report) in ENDS_RUN:\n            if isinstance(report, Release):",
            ),
        ],
        [f"{RECORDED}::test_a_handler_goes_through_its_stages_with_all_attempts_for_each"],
    )
    yield Mutation(
        "complete the stage of a dead process as its end",
        "sqlite",
        [
            python(
                "worker/orphans.py",
                "Completion(entry.id, entry.flags, entry.token)",
                "Completion(entry.id, token=entry.token)",
            )
        ],
        [f"{RECORDED}::test_a_stage_that_a_dead_process_had_finished_is_finished_for_it"],
    )


def _progress() -> Iterator[Mutation]:
    """A report is the holder's, costs little, and stays until the next one."""
    for on in BOTH:
        yield Mutation(
            "write a report without the token",
            on,
            [_without_token(on, "record_progress")],
            [f"{PROGRESS}::test_only_the_holder_of_a_live_lease_reports"],
        )
        yield Mutation(
            "write a report under a lease that is over",
            on,
            [_without_end(on, "record_progress")],
            [f"{PROGRESS}::test_only_the_holder_of_a_live_lease_reports"],
        )
        copies = {
            "quarantine": "poison",
            "move_to_dead_queue": "a_dead_queue",
            "retry": "poison",
            "retry_dead": "a_dead_queue",
        }
        for statement, where in copies.items():
            table = "p" if statement == "retry" else "m"
            for column in ("workers", "progress"):
                yield Mutation(
                    f"{statement} without {column}",
                    on,
                    [sql(on, statement, f"{table}.{column}", "NULL")],
                    [f"{PROGRESS}::test_{where}_keeps_report_and_workers_until_a_retry"],
                )
    yield Mutation(
        "wait for a locked row to write a report",
        "postgresql",
        [sql("postgresql", "record_progress", "FOR UPDATE SKIP LOCKED", "FOR UPDATE")],
        [f"{REPORTED}::test_a_row_that_is_locked_is_skipped_and_tried_again"],
    )
    yield Mutation(
        "write every report at once",
        "sqlite",
        [python("worker/in_flight.py", "REPORT_INTERVAL = 1.0", "REPORT_INTERVAL = 0.0")],
        [f"{REPORTED}::test_a_handler_that_reports_in_a_loop_causes_one_exchange_a_second"],
    )
    yield Mutation(
        "queue every report of a loop",
        "sqlite",
        [
            python(
                "lifecycle/values.py",
                "if is_first and self.recorder is not None:",
                "if self.recorder is not None:",
            )
        ],
        [f"{REPORTED}::test_a_handler_that_reports_in_a_loop_is_queued_once"],
    )
    yield Mutation(
        "lose the last report of a failed attempt",
        "sqlite",
        [
            python(
                "lifecycle/failures.py",
                "    record_last_reports(tx, [reports[id] for id in written])\n",
                "",
            )
        ],
        [f"{PROGRESS}::test_a_failure_carries_the_last_report"],
    )
    yield Mutation(
        "lose the last report of a stage",
        "sqlite",
        [
            python(
                "lifecycle/completions.py",
                "    stages.record_last_reports(tx, completions)\n",
                "",
            )
        ],
        [f"{PROGRESS}::test_a_finished_stage_carries_the_last_report"],
    )
    yield Mutation(
        "lose the last report of a result",
        "sqlite",
        [
            python(
                "worker/execute.py",
                "KeptResult(value, handler.kept, message.progress, event)",
                "KeptResult(value, handler.kept, None, event)",
            )
        ],
        [f"{PROGRESS}::test_a_result_keeps_the_last_report"],
    )
    yield Mutation(
        "lose the last report of what is given back",
        "sqlite",
        [python("worker/in_flight.py", "and (is_time or id in released)", "and is_time")],
        [f"{REPORTED}::test_the_last_report_is_kept_when_the_message_is_given_back"],
    )
    yield Mutation(
        "write the report of a message whose stage was skipped",
        "sqlite",
        [
            python(
                "lifecycle/stages.py",
                "if item.report is not None and (not item.flags or item.id in recorded)",
                "if item.report is not None",
            )
        ],
        [f"{PROGRESS}::test_a_report_waits_for_the_stage_whose_row_was_locked"],
    )
    yield Mutation(
        "write a report again with the failure",
        "sqlite",
        [
            python(
                "lifecycle/stages.py",
                "and message.progress is not message.written_progress",
                "and message.progress is not None",
            )
        ],
        [f"{PROGRESS}::test_a_report_that_is_on_the_row_is_not_written_again_by_the_failure"],
    )


def _streams() -> Iterator[Mutation]:
    """What is parked is woken by whoever unblocks its stream."""
    for on in BOTH:
        yield Mutation(
            "forget to wake what is parked",
            on,
            [
                python(
                    "lifecycle/streams.py",
                    'woken = [row[0] for row in tx.run_for(streams, "wake")]',
                    "woken: list[int] = []",
                )
            ],
            [f"{STREAMS}::test_whoever_takes_the_head_out_wakes_the_next"],
        )
        live = {
            "sqlite": "live.lease_token IS NOT NULL AND live.available_at > %(now)s",
            "postgresql": "lease_token IS NOT NULL "
            "AND COALESCE(available_at, '-infinity') > %(now)s",
        }[on]
        yield Mutation(
            "enter a stream that somebody holds",
            on,
            [sql(on, "read_streams", live, "1 = 0")],
            # Under strict its head would stop the run as well: only release tells them apart.
            [f"{STREAMS}::test_a_stream_has_one_holder"],
        )
    for name, held in (
        ("read_streams", "test_a_run_ends_where_the_stream_ends"),
        ("wake", "test_whoever_finishes_wakes_his_own_stream"),
        ("park", "test_a_blocked_stream_parks_nothing_of_its_neighbours"),
        ("lease_runs", "test_leases_of_neighbours_that_ran_out_are_left_alone"),
    ):
        yield Mutation(
            f"read on where a stream ends: {name}",
            "postgresql",
            [sql("postgresql", name, " AND stream <= s.stream", "")],
            [f"{NEIGHBOURS}::{held}"],
        )
    yield Mutation(
        "look for leases that ran out among all that is due",
        "postgresql",
        [
            sql("postgresql", "lease_runs", before, after)
            for before, after in (
                ("stream >= s.stream AND stream <= s.stream", "stream = s.stream"),
                ("COALESCE(available_at, 'infinity') <= %(now)s", "available_at <= %(now)s"),
                ("ORDER BY queue_id, stream\n", ""),
            )
        ],
        [f"{COST}::test_leases_that_ran_out_are_found_by_their_streams"],
    )
    yield Mutation(
        "pass a message that waits under strict",
        "sqlite",
        [
            python(
                "lifecycle/streams.py",
                "choice.blocked = choice.blocked or policy != StreamPolicy.RELEASE",
                "choice.blocked = choice.blocked",
            )
        ],
        [f"{POLICIES}::test_followers_and_later_arrivals_wait_for_the_retry"],
    )
    yield Mutation(
        "pass a halt",
        "sqlite",
        [
            python(
                "lifecycle/streams.py",
                "behind_halt = halted_at is not None and member.id > halted_at",
                "behind_halt = False",
            )
        ],
        [f"{POLICIES}::test_under_halt_the_stream_stands_still_until_an_operator_decides"],
    )
    yield Mutation(
        "claim again what failed in the same call",
        "sqlite",
        [
            python(
                "lifecycle/batch.py",
                "claim_in(tx, claim, worker=worker, exclude=waiting)",
                "claim_in(tx, claim, worker=worker)",
            )
        ],
        [
            "tests/lifecycle/test_process_batch.py::test_what_failed_in_this_call_is_not_claimed_by_it"
        ],
    )


def _locks() -> Iterator[Mutation]:
    """Parking and waking happen under the stream's lock."""
    yield Mutation(
        "claim without the stream's lock",
        "postgresql",
        [
            sql(
                "postgresql",
                "claim",
                "pg_try_advisory_xact_lock(hashtextextended(c.stream, c.queue_id))",
                "true",
            )
        ],
        [f"{RACES}/test_wakeups.py", f"{RACES}/test_claims.py"],
    )
    yield Mutation(
        "fail and release without the stream's lock",
        "postgresql",
        [
            python(
                "lifecycle/streams.py",
                "    if ids:\n        tx.run(",
                "    if not ids:\n        tx.run(",
            )
        ],
        [f"{RACES}/test_wakeups.py"],
    )
    yield Mutation(
        "complete without the stream's lock",
        "postgresql",
        [
            sql(
                "postgresql",
                "complete",
                "SELECT pg_advisory_xact_lock(hashtextextended(stream, queue_id))::text",
                "SELECT 'streamed'",
            )
        ],
        [f"{RACES}/test_wakeups.py"],
    )
    yield Mutation(
        "count the times of messages that were lost",
        "postgresql",
        [
            sql(
                "postgresql",
                "complete_plain",
                "AND (SELECT one FROM every)\n             GROUP",
                "GROUP",
            )
        ],
        [f"{FINISH}::test_what_is_not_the_callers_any_more_is_neither_deleted_nor_counted"],
    )
    yield Mutation(
        "finish without the stream's lock",
        "postgresql",
        [
            python(
                "lifecycle/completions.py",
                "        streams.lock(tx, [item.id for item in streamed])\n",
                "        pass\n",
            )
        ],
        [f"{RACES}/test_wakeups.py"],
    )
    yield Mutation(
        "fail known messages without their stream's lock",
        "postgresql",
        [
            python(
                "lifecycle/batch.py",
                "if item.message is None or item.message.stream is not None",
                "if item.message is None",
            )
        ],
        [
            "tests/lifecycle/test_process_batch.py::test_a_failure_that_has_its_message_locks_its_stream"
        ],
    )
    yield Mutation(
        "lock streams in any order",
        "postgresql",
        [sql("postgresql", "lock_streams", "ORDER BY key", "ORDER BY key DESC")],
        [f"{RACES}/test_settles.py"],
    )
    yield Mutation(
        "take away a lease that was renewed at the last moment",
        "postgresql",
        [
            sql(
                "postgresql",
                "lease_runs",
                "AND (m.available_at IS NULL OR m.available_at <= %(now)s)",
                "",
            )
        ],
        [
            f"{RACES}/test_claims.py::test_a_lease_that_was_renewed_at_the_last_moment_is_not_taken_away"
        ],
    )
    yield Mutation(
        "notify inside the transaction",
        "postgresql",
        [
            python(
                "lifecycle/notify.py",
                "transaction.on_commit(lambda: _notify(using, channel), using=using, robust=True)",
                "_notify(using, channel)",
            )
        ],
        ["tests/lifecycle/test_notify.py"],
    )


def _waits() -> Iterator[Mutation]:
    """Nobody waits without a limit, and what is busy is neither lost nor settled."""
    busy = f"{RACES}/test_busy_reports.py"
    deletion = f"{RACES}/test_queue_deletion.py"
    edits = "tests/lifecycle/test_policy_edits.py"
    yield Mutation(
        "settle a part of a stream whose other message is locked",
        "postgresql",
        [
            python(
                "lifecycle/locks.py",
                "    busy |= {id for id in mine if streams.get(id) in refused}\n",
                "",
            )
        ],
        [f"{busy}::test_a_locked_row_makes_the_reports_of_its_stream_busy"],
    )
    yield Mutation(
        "take a lease that is over for busy",
        "postgresql",
        [python("lifecycle/locks.py", "if live or not alive}", "}")],
        [f"{busy}::test_a_lease_that_is_over_is_lost_and_not_busy"],
    )
    yield Mutation(
        "set nothing aside for what a settle changes besides its row",
        "postgresql",
        [
            python(
                "lifecycle/locks.py",
                "            if middle:\n",
                "            if False:\n",
            )
        ],
        [f"{busy}::test_a_parked_row_that_somebody_holds_makes_its_stream_busy"],
    )
    yield Mutation(
        "take a locked row for a lost lease",
        "postgresql",
        [
            python(
                "lifecycle/renewals.py",
                'tx.run("read_leases", **guard) if live and id in missing',
                'tx.run("read_leases", **guard) if not live and id in missing',
            )
        ],
        [f"{busy}::test_renewals_pass_over_what_somebody_holds"],
    )
    yield Mutation(
        "leave a lock_timeout behind in a caller's transaction",
        "postgresql",
        [python("lifecycle/transaction.py", "before and not is_last", "False")],
        [f"{busy}::test_a_verb_inside_a_callers_transaction_leaves_its_lock_timeout_as_it_was"],
    )
    yield Mutation(
        "keep the locks of a verb that was refused",
        "postgresql",
        [
            python(
                "lifecycle/transaction.py",
                "if self.is_own or self.is_sqlite:\n            return work()",
                "if True:\n            return work()",
            )
        ],
        [f"{busy}::test_a_refused_verb_inside_a_callers_transaction_leaves_no_lock"],
    )
    yield Mutation(
        "delete a queue without asking who sends",
        "postgresql",
        [python("models/queue.py", "first = _senders(connection)", "first: dict[str, str] = {}")],
        [deletion],
    )
    yield Mutation(
        "delete a queue without looking again",
        "postgresql",
        [
            python(
                "models/queue.py",
                "        put_back(queue, using)\n        raise\n",
                "        raise\n",
            )
        ],
        [deletion],
    )
    for on in BOTH:
        yield Mutation(
            "forget what an edited policy frees",
            on,
            [
                python(
                    "models/queue.py",
                    "    if ids:\n        stream",
                    "    if not ids:\n        stream",
                )
            ],
            [edits],
        )
        yield Mutation(
            "wake a stream that is being worked on when a policy is edited",
            on,
            [
                sql(
                    on,
                    "wake_queue",
                    "head.available_at > %(now)s AND head.lease_token IS NULL",
                    "true",
                )
            ],
            [f"{edits}::test_a_stream_that_is_being_worked_on_is_left_alone"],
        )


def _order() -> Iterator[Mutation]:
    """Order is by id."""
    yield Mutation(
        "sort a stream by time",
        "postgresql",
        [
            sql(
                "postgresql",
                "read_streams",
                "ORDER BY s.queue_id, s.stream, m.id",
                "ORDER BY s.queue_id, s.stream, m.available_at DESC",
            )
        ],
        [f"{STREAMS}::test_inside_a_stream_order_wins_over_time"],
    )
    yield Mutation(
        "sort a stream by time",
        "sqlite",
        [sql("sqlite", "read_streams", " ORDER BY m.id;", " ORDER BY m.available_at;")],
        [f"{STREAMS}::test_inside_a_stream_order_wins_over_time"],
    )


def _levels() -> Iterator[Mutation]:
    """What is known of the levels is only where to look first."""
    given = "test_what_is_due_at_a_level_that_is_not_given_is_found_when_the_others_did_not_fill"
    for on in BOTH:
        yield Mutation(
            "look only at the levels that are known",
            on,
            [
                python(
                    "lifecycle/claims.py",
                    "if not (claim.room and request.rediscover) or claim.cut_short:",
                    "if True:",
                )
            ],
            [f"{LEVELS}::{given}"],
        )
        yield Mutation(
            "claim from every queue whose levels are known",
            on,
            [
                python(
                    "lifecycle/claims.py",
                    "if request.queues is not None:\n            # The known",
                    "if False:\n            # The known",
                )
            ],
            [f"{LEVELS}::test_levels_of_a_queue_that_is_not_asked_for_are_passed_over"],
        )
        yield Mutation(
            "let a pattern match dead queues",
            on,
            [
                python("patterns.py", "or is_dead_queue or name ==", "or name =="),
                python(
                    "lifecycle/claims.py",
                    "if any(level.queue not in names for",
                    "if any(not names for",
                )
                if on == "sqlite"
                else python(
                    "lifecycle/claims.py",
                    "level.queue if level.queue in names else None",
                    "level.queue if names else None",
                ),
            ],
            [f"{PATTERNS}::test_a_pattern_never_matches_a_dead_queue_or_our_own"],
        )
        yield Mutation(
            "let a pattern match the own queue",
            on,
            [python("patterns.py", " or name == OWN_QUEUE:", ":")],
            [f"{PATTERNS}::test_a_pattern_never_matches_a_dead_queue_or_our_own"],
        )
        yield Mutation(
            "look into the queues of a pattern in any order",
            on,
            [
                python(
                    "lifecycle/levels.py",
                    "found.sort(key=lambda pair: (pair[0], ",
                    "found.sort(key=lambda pair: (",
                )
            ],
            [f"{PATTERNS}::test_names_and_patterns_keep_the_order_given"],
        )
    yield Mutation(
        "leave the order of a batch to the planner",
        "postgresql",
        [python("lifecycle/candidates.py", "leased.sort(key=lambda row: row[2])", "pass")],
        [f"{CLAIM}::test_the_order_holds_whatever_plan_is_chosen"],
    )
    yield Mutation(
        "keep the levels that were found for ever",
        "postgresql",
        [python("worker/intake.py", KEPT, "if levels is None:")],
        [f"{BUSY}::test_a_worker_that_is_never_idle_finds_what_is_more_urgent"],
    )
    yield Mutation(
        "look for no new level after a notification",
        "postgresql",
        [python("worker/pump.py", "self._intake.heard += 1", "pass")],
        [f"{BUSY}::test_a_notification_makes_an_idle_worker_look_for_new_levels"],
    )
    yield Mutation(
        "take the write lock to look",
        "sqlite",
        [python("lifecycle/batch.py", "hint = look_ahead(claim, using=using)", "hint = None")],
        [f"{LEVELS}::test_a_claim_that_finds_nothing_does_not_need_the_write_lock"],
    )
    yield Mutation(
        "claim from a queue that is paused since its level was found",
        "postgresql",
        [sql("postgresql", "claim", "q.id = wanted.queue_id AND NOT q.paused", "q.id = queue_id")],
        [f"{LEVELS}::test_a_queue_that_is_paused_since_hands_out_nothing"],
    )
    yield Mutation(
        "claim from a queue that has another name since",
        "postgresql",
        [sql("postgresql", "claim", "ELSE q.name = wanted.name END", "ELSE true END")],
        [f"{LEVELS}::test_a_queue_that_is_renamed_since_is_no_longer_the_one_asked_for"],
    )


def _quarantine() -> Iterator[Mutation]:
    """One place for every message, one record however many race."""
    for on in BOTH:
        yield Mutation(
            "take a negative duration as text",
            on,
            [
                python("durations.py", ' or "-" in text or "+" in text', ""),
                python("durations.py", "not timedelta(0) <= found <= LONGEST", "found > LONGEST"),
            ],
            ["tests/models/test_durations.py::test_a_queue_takes_nothing_negative"],
        )
        yield Mutation(
            "store durations of an update unchecked",
            on,
            [
                python(
                    "models/fields.py",
                    "value = value if prepared else self.get_prep_value(value)",
                    "pass",
                )
            ],
            [
                "tests/models/test_durations.py::test_an_update_of_many_queues_is_checked_as_a_save_is"
            ],
        )
        yield Mutation(
            "import what has died already",
            on,
            [python("lifecycle/imports.py", "sorted(dead & found.stored.keys())", "()")],
            [f"{IMPORTS}::test_a_second_import_ignores_what_waits_and_what_is_dead"],
        )
        yield Mutation(
            "import what lies in a dead queue",
            on,
            [python("lifecycle/imports.py", " | {row[0] for row in moved}", "")],
            [f"{IMPORTS}::test_a_message_that_lies_in_a_dead_queue_is_not_imported_again"],
        )
        yield Mutation(
            "import a hidden value as it is shown",
            on,
            [python("operations/imports.py", "            _refuse_hidden(row)\n", "")],
            [f"{IMPORTS}::test_a_redacted_export_is_refused_and_a_revealed_one_is_not"],
        )
        yield Mutation(
            "forget the origin at the quarantine",
            on,
            [sql(on, "quarantine", "m.origin,", "NULL,")],
            [f"{IMPORTS}::test_origin_and_id_survive_death_and_retry"],
        )
        yield Mutation(
            "forget the origin's id at a retry into another queue",
            on,
            [sql(on, "retry", " OR p.origin IS NOT NULL", "")],
            [f"{IMPORTS}::test_origin_and_id_survive_death_and_retry"],
        )
        yield Mutation(
            "leave a poisoned message in its queue",
            on,
            [
                python(
                    "lifecycle/quarantine.py",
                    'tx.run("delete", ids=[item.id for item in dying])',
                    'tx.run("delete", ids=[])',
                )
            ],
            ["tests/lifecycle/test_quarantine.py"],
        )
    yield Mutation(
        "announce poison before the commit",
        "sqlite",
        [
            python(
                "signals.py",
                "transaction.on_commit(send, using=using, robust=True)",
                "send()",
            )
        ],
        ["tests/lifecycle/test_quarantine.py"],
    )
    for on in BOTH:
        yield Mutation(
            "expire under a live lease",
            on,
            [sql(on, "read_expired", " AND (available_at IS NULL OR available_at <= %(now)s)", "")],
            ["tests/lifecycle/test_sweeps.py"],
        )


def _people() -> Iterator[Mutation]:
    """What a person's retry does and what it refuses; what is stored of what they send."""
    for on in BOTH:
        for name, before, after, test in (
            (
                "retry now what was never tried",
                "    if not message.was_tried:\n",
                "    if False:\n",
                "test_only_what_was_tried_can_be_retried_now",
            ),
            (
                "keep the count although a person retries",
                "            changes |= _FRESH\n",
                "            pass\n",
                "test_a_failed_message_is_retried_now_with_a_fresh_count",
            ),
            (
                "move what is due to the end of the line",
                "        if state != State.PENDING:  # a due",
                "        if True:  # a due",
                "test_what_is_due_again_counts_from_0_and_keeps_its_place",
            ),
        ):
            edit = python("lifecycle/manual_acts.py", before, after)
            yield Mutation(name, on, [edit], [f"tests/operations/test_messages.py::{test}"])
    yield Mutation(
        "store a decimal that is no number",
        "sqlite",
        [python("payload.py", "and not node.is_finite():", "and False:")],
        ["tests/hostile/test_door.py::test_a_bad_payload_is_refused"],
    )


def _dead_queues() -> Iterator[Mutation]:
    """One death, at the move; and the way back under its own id."""
    for on in BOTH:
        yield Mutation(
            "count the death in a dead queue again",
            on,
            [python("lifecycle/quarantine.py", "if not item.row.is_moved:", "if True:")],
            [DEAD_QUEUE_RETRIES],
        )
        yield Mutation(
            "let a death in a dead queue be the latest of its group",
            on,
            [sql(on, "quarantine", "COALESCE(m.died_at, %(now)s)", "%(now)s")],
            [DEAD_QUEUE_RETRIES],
        )
        yield Mutation(
            "group a death in a dead queue by itself",
            on,
            [
                python(
                    "lifecycle/quarantine.py",
                    "        group = row.first_group\n",
                    "        group = fingerprint(row.name, exception, frame)\n",
                )
            ],
            ["tests/operations/test_groups_in_dead_queues.py"],
        )
        yield Mutation(
            "take a message back under another id",
            on,
            [sql(on, "retry_dead", "SELECT m.source_id, q.id", "SELECT m.source_id + 500, q.id")],
            [DEAD_QUEUE_RETRIES],
        )
        yield Mutation(
            "delete the copy in the dead queue before the message is back",
            on,
            [
                python(
                    "lifecycle/dead_queues.py",
                    "    batch.restore_all()\n",
                    '    tx.run("delete", ids=sorted(free))\n    batch.restore_all()\n',
                )
            ],
            [DEAD_QUEUE_RETRIES],
        )
        yield Mutation(
            "leave the copy in the dead queue",
            on,
            [python("lifecycle/dead_queues.py", 'tx.run("delete", ids=done)', "pass")],
            [DEAD_QUEUE_RETRIES],
        )
        yield Mutation(
            "take a message back whose id a poison record has",
            on,
            [
                sql(
                    on,
                    "retry_dead",
                    "WHERE p.message_id = m.source_id",
                    "WHERE p.message_id = m.source_id AND p.message_id < 0",
                )
            ],
            [f"{DEAD_QUEUE_RETRIES}::test_an_id_that_a_poison_record_has_is_refused"],
        )
        yield Mutation(
            "leave what lies in dead queues out of the groups",
            on,
            [
                sql(
                    on,
                    "read_groups",
                    "UNION ALL\n                    SELECT MIN(m.",
                    "EXCEPT\n                    SELECT MIN(m.",
                )
            ],
            ["tests/operations/test_groups_in_dead_queues.py"],
        )


def _outbox() -> Iterator[Mutation]:
    """Break the order, the leases and the refusals of the outbox, and the inbox."""
    relay, inbox = "tests/outbox/test_relay.py", "tests/outbox/test_inbox.py"
    batches = "lifecycle/outbox_batches.py"
    pauses, archives = "tests/outbox/test_pauses.py", "tests/outbox/test_archives.py"
    returned = "tests/outbox/test_publications.py"
    wakeups = "tests/outbox/test_wakeups.py"
    secrets = "tests/outbox/test_transport_secrets.py"
    for name, edit, test in (
        (
            "publish what waits behind a refused message of its key",
            python(
                "worker/relay.py",
                "                row.lane_key in self._waiting\n",
                "                False\n",
            ),
            f"{relay}::test_a_refused_message_holds_its_key_and_nobody_else",
        ),
        (
            "forget the keys that wait when lanes change hands",
            python(
                "worker/relay.py",
                "return lanes, read_waiting_keys(tx, name, lanes), ",
                "return lanes, set(), ",
            ),
            f"{relay}::test_another_relay_knows_which_keys_wait",
        ),
        (
            "note a refusal without holding the lane",
            python(batches, "if row.lane not in lanes:", "if False:"),
            f"{relay}::test_a_refusal_is_not_noted_by_a_relay_that_lost_its_lanes",
        ),
        (
            "leave a key held when its refused message has died",
            python(
                batches,
                "            if row.is_due_again:\n                left.append(row)",
                "            pass",
            ),
            f"{relay}::test_at_the_limit_it_becomes_poison_and_its_key_goes_on",
        ),
        (
            "count a broker that is away",
            python(
                "worker/relay.py",
                "                self._unsettled = outcome\n",
                "                outcome.refused += [\n"
                "                    (row, BrokerRefusal(1, '')) for row in batch\n"
                "                    if row not in outcome.published\n"
                "                ]\n",
            ),
            f"{relay}::test_a_lost_connection_repeats_only_what_was_not_confirmed",
        ),
        (
            "forget confirms while the database is away",
            python(
                "worker/relay.py",
                "        self._unsettled = outcome\n        is_due",
                "        is_due",
            ),
            f"{relay}::test_a_confirm_is_settled_after_the_database_was_away",
        ),
        (
            "publish what is paused",
            python("worker/relay.py", "if self._has_paused and", "if False and"),
            f"{pauses}::test_a_paused_topic_waits_and_the_others_go_on",
        ),
        (
            "publish to a broker that is paused",
            python(
                "worker/relay.py",
                "if not self._lanes or self._pauses.is_whole:",
                "if not self._lanes:",
            ),
            f"{pauses}::test_a_paused_broker_gets_nothing_and_nothing_is_updated",
        ),
        (
            "pass a paused message of the same batch",
            python("worker/relay.py", "                or row.lane_key in paused\n", ""),
            f"{pauses}::test_messages_of_other_topics_wait_behind_a_paused_one_of_their_key",
        ),
        (
            "pass a paused message of an earlier batch",
            python("worker/relay.py", "                or self._is_behind_paused(row)\n", ""),
            f"{pauses}::test_messages_of_other_topics_wait_behind_a_paused_one_of_their_key",
        ),
        (
            "free what waits behind the next paused message",
            sql(
                "sqlite",
                "free_key",
                "AND p.paused AND p.retry_at IS NULL), 9223372036854775807)",
                "AND false), 9223372036854775807)",
            ),
            f"{pauses}::test_a_message_between_two_paused_topics_goes_on_with_the_first",
        ),
        (
            "try a refused message whose topic is paused",
            sql("sqlite", "hold_paused", "SET held = 1, paused = 1", "SET held = 1"),
            f"{pauses}::test_a_refused_message_whose_topic_is_paused_is_not_tried",
        ),
        (
            "keep what was published although the settings do not say so",
            python(
                batches,
                '"archive_published" if is_archived(broker) else "delete_published"',
                '"archive_published"',
            ),
            f"{archives}::test_nothing_is_kept_unless_the_settings_say_so",
        ),
        (
            "publish again without the id of the first message",
            python(
                "lifecycle/archives.py",
                "headers |= {ORIGINAL_ID",
                "_unused = {ORIGINAL_ID",
            ),
            f"{archives}::test_a_message_is_published_again_with_a_new_id",
        ),
        (
            "publish for a message that is no longer the worker's",
            python("lifecycle/completions.py", "        if item.id in ours and", "        if"),
            f"{returned}::test_a_lost_lease_publishes_nothing_and_the_rest_of_the_batch_does",
        ),
        (
            "keep EVENT_STORED after a failure, without the event",
            python(
                "worker/failure.py",
                "return reached & ~(message.stage & Status.EVENT_STORED)",
                "return reached",
            ),
            f"{returned}::test_a_failure_after_next_stage_does_not_lose_the_event",
        ),
        (
            "publish the event of a stage once more at the end",
            python(
                "lifecycle/publications.py",
                "elif value is None or message.status & _EVENT_STORED:",
                "elif value is None:",
            ),
            f"{returned}::test_the_stage_event_stored_stores_the_event_and_the_end_does_not_repeat_it",
        ),
        (
            "take lanes that another relay holds",
            python("lifecycle/lanes.py", "wanted = -(-LANES // relays)", "wanted = LANES"),
            f"{relay}::test_relays_share_the_lanes",
        ),
        (
            "let a relay be woken by the pause before",
            python(
                "worker/relay.py",
                "                    self._woken.clear()\n"
                "                    self._stopping.wait(2 * INTERVAL)\n",
                "                    self._stopping.wait(2 * INTERVAL)\n"
                "                    self._woken.clear()\n",
            ),
            f"{wakeups}::test_a_notification_during_the_pause_leads_to_a_pause_and_a_turn_of_its_own",
        ),
        (
            "tell what an old Redis repeats of a password",
            python(
                "outbox/transports/redis_streams.py", 'ARGUMENTS.sub("", str(error))', "str(error)"
            ),
            f"{secrets}::test_a_long_password_that_is_cut_off_is_not_quoted",
        ),
        (
            "remember a message whose work was undone",
            python(
                "lifecycle/inboxes.py",
                "    with transaction.atomic(using=alias):\n",
                "    if True:\n",
            ),
            f"{inbox}::test_work_that_fails_is_undone_and_may_be_repeated",
        ),
    ):
        yield Mutation(name, "sqlite", [edit], [test])


def _results() -> Iterator[Mutation]:
    """Break what people see of tasks and their results, and what they may cancel."""
    of = {"operations": "tests/operations/test_results.py", "admin": "tests/admin/test_results.py"}
    calls, edits = "tests/operations/test_task_calls.py", "tests/operations/test_typed_edits.py"
    rows, deaths = "tests/tasks/test_result_rows.py", "tests/tasks/test_deaths.py"
    for what, path, before, after, test in (
        (
            "cancel a task in a dead queue",
            "operations/messages.py",
            "discard_in(tx, [id for id in ids if id not in copies])",
            "discard_in(tx, ids)",
            f"{of['operations']}::test_a_task_in_a_dead_queue_is_not_cancelled_under_either_id",
        ),
        (
            "say of a dead task that it is missing",
            "operations/messages.py",
            "refused[id] = Refusal(RefusalReason.DEAD, id=id, poison_id=poison_id)",
            "pass",
            f"{of['operations']}::test_a_dead_task_is_not_cancelled",
        ),
        (
            "take the id of a poison record for the id of its message",
            "operations/messages.py",
            'getattr(given, "message_id", getattr(given, "id", given))',
            'getattr(given, "id", given)',
            f"{of['operations']}::test_a_dead_task_is_not_cancelled",
        ),
        (
            "read a result beside its message",
            "tasks/result_rows.py",
            "if result is not None and not is_in_queue:",
            "if result is not None:",
            f"{rows}::test_what_an_earlier_end_of_an_id_left_behind_does_not_count",
        ),
        (
            "look everywhere for a task that waits",
            "tasks/result_rows.py",
            "_Place.QUEUE if is_in_queue else _find_place(message_id, using)",
            "_find_place(message_id, using)",
            f"{rows}::test_a_result_is_read_by_few_statements",
        ),
        (
            "give a task the dead queue that it lies in",
            "tasks/task_results.py",
            "if death is not None and death.queue:",
            "if death is not None and not death.queue:",
            f"{deaths}::test_a_dead_task_is_as_it_was_enqueued_and_says_why_it_died",
        ),
        (
            "show secrets in calls",
            "operations/task_calls.py",
            "payload if reveal else redact(payload)",
            "payload",
            f"{calls}::test_a_call_is_shown_as_python_writes_it",
        ),
        (
            "read long payloads for a list",
            "operations/task_calls.py",
            "When(size__lte=_SHORT, then=",
            "When(size__gte=0, then=",
            f"{calls}::test_the_calls_of_a_list_are_read_in_one_statement",
        ),
        (
            "search results without an end",
            "admin/results.py",
            "newest[:REACH] if row.items()",
            "newest if row.items()",
            f"{of['admin']}::test_a_filter_without_an_index_searches_the_newest_results",
        ),
        (
            "show results to who may see messages only",
            "admin/messages/page.py",
            'if row is not None and self.request.user.has_perm("deadletter.view_result"):',
            "if row is not None:",
            f"{of['admin']}::test_who_may_not_see_results_learns_only_how_a_message_ended",
        ),
        (
            "retry a task with arguments that it does not take",
            "tasks/lookup.py",
            "calls.check_arguments(task.func, payload, takes_context=task.takes_context)",
            "calls.read_payload(payload)",
            f"{edits}::test_a_payload_that_a_task_cannot_be_called_with_is_refused",
        ),
    ):
        yield Mutation(what, "sqlite", [python(path, before, after)], [test])
    yield Mutation(
        "list calls for who may not see payloads",
        "sqlite",
        [
            python("admin/results.py", '"shown_call": "shown_name",', ""),
            python("admin/results.py", 'user.has_perm("deadletter.view_payload")', "user.is_staff"),
        ],
        [f"{of['admin']}::test_without_the_permission_no_page_shows_payload_value_or_error"],
    )


def _rest() -> Iterator[Mutation]:
    for on in BOTH:
        yield Mutation(
            "decode in the claim",
            on,
            [
                python(
                    "lifecycle/candidates.py",
                    "        unneeded = self._decide(others) if others else 0\n",
                    "        [message.payload for message in self.messages]\n"
                    "        unneeded = self._decide(others) if others else 0\n",
                )
            ],
            ["tests/hostile/test_damaged_rows.py::test_the_claim_itself_does_not_read_payloads"],
        )
        yield Mutation(
            "count beyond the largest number",
            on,
            [
                python(
                    "lifecycle/streams.py",
                    "bool(id in judgement.deaths or overflow),",
                    "bool(id in judgement.deaths),",
                )
            ],
            ["tests/lifecycle/test_overflow.py"],
        )
    yield Mutation(
        "store keys in the order given",
        "postgresql",
        [
            python(
                "lifecycle/insert.py",
                'key=lambda pair: (pair[1]["key"], pair[0]),',
                "key=lambda pair: pair[0],",
            )
        ],
        ["tests/races/test_key_order.py"],
    )
    yield Mutation(
        "raise what a pooler's next session has prepared already",
        "postgresql",
        [python("sql/prepared_statements.py", '"26000", "42P05", "0A000"', '"26000", "0A000"')],
        ["tests/lifecycle/test_prepared.py"],
    )
    yield Mutation(
        "use in the caller's transaction what may not be prepared",
        "postgresql",
        [
            python(
                "sql/prepared_statements.py",
                "return raw is None or not raw.info.transaction_status",
                "return True",
            )
        ],
        ["tests/lifecycle/test_prepared.py"],
    )
    yield Mutation(
        "take the worker's own connections out of the handlers' pool",
        "postgresql",
        [
            python(
                "worker/thread_connections.py",
                "            connections[alias] = unpooled(alias)\n",
                "",
            )
        ],
        ["tests/worker/test_connection_pools.py::test_handlers_have_the_whole_pool_for_themselves"],
    )
    yield Mutation(
        "let pools cross a fork",
        "postgresql",
        [
            python(
                "worker/thread_connections.py",
                "    _inherited.extend(_pools_of(wrapper).pop(wrapper.alias, None) "
                "for wrapper in wrappers)\n",
                "",
            )
        ],
        ["tests/worker/test_connection_pools.py"],
    )
    yield Mutation(
        "take a missing table for an outage",
        "sqlite",
        [
            python(
                "worker/outages.py",
                "    if any(words in text for words in _MISSING_TEXTS):\n        return False\n",
                "",
            )
        ],
        ["tests/worker/test_refusals.py"],
    )
    yield Mutation(
        "never begin at the beginning again while busy",
        "postgresql",
        [python("worker/intake.py", KEPT, "if levels is None:")],
        [f"{FLOOR}::test_all_that_is_due_is_looked_at_every_second"],
    )
    yield Mutation(
        "take a look at a part for a look at all",
        "postgresql",
        [python("worker/pump.py", "more = batch.more or exchange.is_partial", "more = batch.more")],
        [FLOOR],
    )
    yield Mutation(
        "repeat a transaction inside the caller's",
        "postgresql",
        [
            python(
                "lifecycle/transaction.py",
                "if nested or not left or not _is_transient(error):",
                "if not left or not _is_transient(error):",
            )
        ],
        ["tests/lifecycle/test_transaction.py"],
    )
    yield Mutation(
        "store error text as it comes",
        "postgresql",
        [
            python(
                "lifecycle/failures.py",
                "    error = storable_text(failure.error)\n",
                "    error = str(failure.error)\n",
            )
        ],
        ["tests/hostile/test_error_text.py"],
    )
    yield Mutation(
        "let NaN in",
        "sqlite",
        [
            python("payload.py", "allow_nan=False", "allow_nan=True"),
            python("payload.py", "if not math.isfinite(node):", "if False:"),
        ],
        ["tests/hostile/test_door.py"],
    )
    yield Mutation(
        "call an instance stuck that waits for an event from outside",
        "sqlite",
        [
            python(
                "lifecycle/instances/stuck.py",
                "return [int(id) for id in pending]",
                "return [int(id) for id in pending] or [0]",
            )
        ],
        [STUCK],
    )
    yield Mutation(
        "call an instance stuck whose poison can be retried",
        "sqlite",
        [
            python(
                "lifecycle/instances/stuck.py",
                "if any((row.id, row.execution_id, what) not in died for what in row.waits_for())",
                "if True",
            )
        ],
        [STUCK],
    )
    yield Mutation(
        "begin the search for the stuck at the start every time",
        "sqlite",
        [python("lifecycle/instances/stuck.py", "_places[alias] = found[-1]", "pass")],
        [STUCK],
    )
    yield Mutation(
        "keep the mark of an instance that goes on",
        "sqlite",
        [
            python(
                "lifecycle/instances/stuck.py",
                "rows.filter(pk__in=ids).update(stuck_since=None)",
                "pass",
            )
        ],
        [STUCK],
    )
    yield Mutation(
        "pair elements of lists with hidden values by position",
        "sqlite",
        [
            python(
                "operations/hidden_values.py",
                "            if text in before:\n",
                "            if n < len(shown):\n"
                "                found.append(self.value(element, shown[n], original[n], place))\n"
                "                continue\n"
                "            if text in before:\n",
            )
        ],
        ["tests/operations/test_hidden_values.py"],
    )
    yield Mutation(
        "copy a hidden value to another element",
        "sqlite",
        [
            python(
                "operations/hidden_values.py",
                "if len(values) == 1 and len(pair.after) <= len(pair.before):",
                "if len(values) == 1:",
            )
        ],
        ["tests/operations/test_hidden_values.py"],
    )
    yield Mutation(
        "leave hidden values where they are while their neighbours in the list move",
        "sqlite",
        [
            python(
                "operations/hidden_values.py",
                "if pair.in_place and pair.after == pair.before:",
                "if pair.after == pair.before:",
            )
        ],
        ["tests/operations/test_hidden_values.py"],
    )
    yield Mutation(
        "take what was shown under another key for an edit",
        "sqlite",
        [
            python(
                "operations/hidden_values.py",
                "if isinstance(edited, dict | list) and _text(edited) in self._hiding:",
                "if False:",
            )
        ],
        ["tests/operations/test_hidden_values.py"],
    )
    yield Mutation(
        "show keys of secrets inside a text that is JSON",
        "sqlite",
        [
            python(
                "redaction.py",
                "return bool(_hidden(value, words, depth + 1) != value)",
                "return False",
            )
        ],
        ["tests/operations/test_hidden_values.py"],
    )
    yield Mutation(
        "allow every lookup in the lists of the admin",
        "sqlite",
        [
            python(
                "admin/lookups.py",
                "        if lookup in self.other_lookups:\n",
                "        if lookup:\n",
            )
        ],
        ["tests/admin/test_lookups.py"],
    )
    yield Mutation(
        "let strangers choose the limits of the health page",
        "sqlite",
        [python("views.py", "        if not may_know_more:\n", "        if False:\n")],
        ["tests/test_views.py"],
    )
    yield Mutation(
        "delete a queue without a trace",
        "sqlite",
        [
            python(
                "operations/queues.py",
                '_record(tx, Act.EDIT_QUEUE, queue, by, {"deleted": True, **policy}, why)',
                "_ = policy",
            )
        ],
        ["tests/cli/test_queues.py"],
    )
    yield Mutation(
        "take any word before a colon for the class of an error",
        "sqlite",
        [python("admin/error_text.py", 'return name if is_known else ""', "return name")],
        ["tests/admin/test_error_texts.py"],
    )
    yield Mutation(
        "search texts of errors without the permission",
        "sqlite",
        [python("admin/poison/query.py", "if self.forbidden:", "if False:")],
        ["tests/admin/test_error_texts.py"],
    )
    yield Mutation(
        "count expires_in from the start of the transaction",
        "postgresql",
        [python("sql/__init__.py", "statement_timestamp())", "now())")],
        ["tests/lifecycle/test_send_expiry.py"],
    )
    yield Mutation(
        "let in times that cannot be read back",
        "sqlite",
        [python("lifecycle/enqueue.py", "if not is_readable(moment):", "if False:")],
        ["tests/hostile/test_times.py"],
    )


def _numbers() -> Iterator[Mutation]:
    """What operators read: numbers of now, and what may be read at all."""
    agree = "tests/admin/test_numbers_agree.py"
    outcomes = "tests/operations/test_retry_outcomes.py"
    edits = {
        "tell a notice with the numbers of its decision": (
            python(
                "alerts/current_counts.py",
                "count = max(_count(context, found, subject), ",
                "count = (",
            ),
            "tests/alerts/test_current_counts.py",
        ),
        "call over what has dead letters left": (
            python("alerts/notice.py", 'and alert.get("left"):', "and False:"),
            "tests/alerts/test_current_counts.py",
        ),
        "tell apart only the first that wait": (
            python("operations/depths.py", "    if look < LOOK and found", "    if 0 and found"),
            f"{agree}::test_each_state_is_counted_up_to_its_own_limit",
        ),
        "call a number of which none was found zero and more": (
            python("operations/depths.py", "if self.more and not self.n:", "if False:"),
            agree,
        ),
        "leave what was completed to the sweep": (
            python(
                "operations/retry_outcomes.py",
                "_Outcome.SUCCEEDED if pk in completed else outcome",
                "outcome",
            ),
            outcomes,
        ),
        "count a message twice when a sweep comes between": (
            python(
                "operations/retry_outcomes.py", "if not _changed(unsettled, alias):", "if True:"
            ),
            f"{outcomes}::test_a_sweep_between_the_reads_moves_no_number_twice",
        ),
        "keep the payloads of an edit for ever": (
            python("lifecycle/sweeps.py", ", at__lte=tx.time()", ", at=tx.time()"),
            "tests/operations/test_edits.py",
        ),
        "show the payloads of an edit without the permission": (
            python("admin/audits.py", '"edit": "edit_hidden",', ""),
            "tests/admin/test_audits.py",
        ),
    }
    for name, (edit, test) in edits.items():
        yield Mutation(name, "sqlite", [edit], [test])


def _processes() -> Iterator[Mutation]:
    """Who ends a process, who follows it, and what its handlers may do to it."""
    exits = "test_a_handler_that_exits_is_a_death_whatever_its_exit_code"
    once = "test_at_most_one_process_of_a_place_drains_and_the_next_one_works_until_it_may"
    lone = "test_a_lone_process_with_a_stuck_thread_lets_its_other_handlers_finish"
    cancelled = "test_an_async_handler_is_cancelled_when_the_grace_ends_and_given_back"
    edits = {
        "take exit code 0 for a regular end": (
            python("worker/supervisor.py", "phase is Phase.FINISHED or", "code == 0 or"),
            f"{REPLACEMENT}::{exits}",
        ),
        "replace a process without an end of its handlers": (
            python(
                "worker/process.py",
                "        self.pump.finish()\n",
                "        self.pump.stop(grace=self.options.grace)\n",
            ),
            f"{REPLACEMENT}::{lone}",
        ),
        "let a copy take signals for requests to the worker": (
            python(
                "worker/shutdown.py",
                "if signal.getsignal(number) == self._received:",
                "if False:",
            ),
            f"{COPIES}::test_processes_that_a_handler_starts_end_when_it_ends_them",
        ),
        "let any number of processes of a place drain": (
            python(
                "worker/supervisor.py",
                "if child.name in leaving or not child.pid:",
                "if child.is_leaving or not child.pid:",
            ),
            f"{REPLACEMENT}::{once}",
        ),
        "take one Ctrl-C for two under a reloader": (
            python(
                "management/commands/run_worker.py",
                "Shutdown(supervised=bool(options.reloader))",
                "Shutdown()",
            ),
            f"{RELOADER}::test_a_stop_ends_every_process_and_lets_handlers_finish",
        ),
        "take one Ctrl-C for two under a reloader and a supervisor": (
            python(
                "management/commands/run_worker.py", "reloader=options.reloader,", "reloader=0,"
            ),
            f"{RELOADER}::test_a_stop_ends_every_process_and_lets_handlers_finish",
        ),
        "start the worker before its code is watched": (
            python("worker/reloader.py", " and self._watcher.is_watching:", ":"),
            f"{RELOADER}::test_a_change_while_the_code_is_imported_is_not_missed",
        ),
        "start the next worker beside the last one": (
            python(
                "worker/reloader.py",
                "        if self._worker is not None:\n            return\n        self._is_due",
                "        self._is_due",
            ),
            f"{RELOADER}::test_a_worker_is_started_only_after_the_end_of_the_last_one",
        ),
        "kill the worker when the code changes": (
            python(
                "worker/reloader.py",
                "AT_ONCE if at_once else signal.SIGTERM",
                "AT_ONCE if at_once else signal.SIGKILL",
            ),
            f"{RELOADER}::test_a_handler_that_outlives_the_grace_is_run_again_without_a_counted_attempt",
        ),
        "leave an async handler alone when the grace ends": (
            python("worker/pump.py", "return self._executors.cancel(item, now)", "return False"),
            f"{REPLACEMENT}::{cancelled}",
        ),
        "let a copy of the process go on": (
            python("forks.py", "    _forks += 1\n", "    _forks += 0\n"),
            f"{COPIES}::test_a_copy_does_not_end_the_transaction_of_an_atomic_handler",
        ),
        "count a hook that fails after the commit as a failure": (
            python("worker/execute.py", "        if not commits:\n", "        if True:\n"),
            f"{ATOMIC}::test_a_hook_that_fails_after_the_commit_is_no_failure_of_the_message",
        ),
        "let notices have every thread": (
            python(
                "worker/intake.py", "            if not self._may_deliver:\n", "            if 0:\n"
            ),
            f"{DELIVERY}::test_receivers_that_drip_leave_the_threads_of_a_worker_to_the_work",
        ),
        "wait for a delivery for as long as it takes": (
            python("alerts/deadline.py", "thread.join(seconds)", "thread.join(60 * seconds)"),
            f"{DELIVERY}::test_a_server_that_drips_is_given_up_in_time_and_leaves_no_thread",
        ),
    }
    for name, (edit, test) in edits.items():
        yield Mutation(name, "sqlite", [edit], [test])


def _applications() -> Iterator[Mutation]:
    """What the log and the test helpers owe to the application, and to its platform."""
    drain = "tests/test_drain.py::test_"
    sentry = "tests/worker/test_sentry.py::test_"
    alone = "tests/worker/test_without_fork.py"
    level = "logging.ERROR if poisoning.reason is not FailureReason.OPERATOR else logging.WARNING"
    edits: dict[str, tuple[Database, Edit, str]] = {
        "log a death as a warning": (
            "sqlite",
            python("lifecycle/quarantine.py", level, "logging.WARNING"),
            f"{sentry}one_event_for_a_death_and_none_for_its_retries",
        ),
        "log a death without its exception": (
            "sqlite",
            python("lifecycle/quarantine.py", "exc_info=item.death.raised", "exc_info=None"),
            f"{sentry}one_event_for_a_death_and_none_for_its_retries",
        ),
        "leave Sentry's events to the end of a process that has none": (
            "sqlite",
            python("worker/process.py", "        _flush_sentry()\n", ""),
            f"{sentry}a_site_with_all_that_sentry_enables_by_itself",
        ),
        "register fork hooks on every platform": (
            "sqlite",
            python("forks.py", 'if hasattr(os, "register_at_fork"):', "if True:"),
            f"{alone}::test_a_single_process_runs_where_nothing_can_be_forked",
        ),
        "drain async handlers on another connection": (
            "sqlite",
            python("worker/execute.py", "return async_to_sync(run)()", "return asyncio.run(run())"),
            f"{drain}an_async_handler_uses_the_connection_of_the_test",
        ),
        "leave the test's transaction broken by an error": (
            "postgresql",
            python("testing.py", 'self._savepoint("ROLLBACK TO SAVEPOINT")', "pass  # broken"),
            f"{drain}a_database_error_undoes_its_statement_alone",
        ),
        "let errors mark the test's transaction": (
            "sqlite",
            python("testing.py", "if not blocks or blocks[0] is None:", "if False:"),
            f"{drain}a_handler_may_go_on_after_a_database_error",
        ),
        "drain without time limits": (
            "sqlite",
            python(
                "worker/execute.py",
                "if monotonic() - message.started > handler.seconds:",
                "if False:",
            ),
            f"{drain}a_handler_that_took_too_long_has_failed",
        ),
        "take Ctrl-C for a failure of the message": (
            "sqlite",
            python(
                "worker/execute.py",
                "if caller is not None and isinstance(error, KeyboardInterrupt):",
                "if False:",
            ),
            f"{drain}ctrl_c_ends_the_drain_and_is_no_failure",
        ),
        "raise an error before it is settled": (
            "sqlite",
            python("testing.py", "return report.raised", "raise report.raised"),
            f"{drain}the_first_error_is_raised_when_it_is_settled",
        ),
    }
    for name, (on, edit, test) in edits.items():
        yield Mutation(name, on, [edit], [test])


def _payload_types() -> Iterator[Mutation]:
    sent = "tests/lifecycle/test_send_typed.py::test_"
    worker = "tests/worker/test_typed_payloads.py::test_"
    operations = "tests/operations/test_typed_edits.py::test_"
    form = "tests/admin/poison/test_edit.py::test_"
    pure = "tests/pure/test_payload_types.py::test_"
    edits: dict[str, tuple[Edit, str]] = {
        "send what the class of the handler refuses": (
            python(
                "lifecycle/enqueue.py",
                "(typed := payload_types.of_handlers.get(name)) is None",
                "(typed := None) is None",
            ),
            f"{sent}a_payload_that_does_not_match_is_refused_and_nothing_is_stored",
        ),
        "quote a value that is hidden on pages": (
            python("lifecycle/enqueue.py", "if callable(rule) or any(", "if False and any("),
            f"{sent}a_value_that_is_hidden_on_pages_is_not_quoted",
        ),
        "call a handler with what its class refuses": (
            python("worker/execute.py", "if handler.payload is not None:", "if False:"),
            f"{worker}a_mismatch_is_a_counted_failure_and_the_handler_is_not_called",
        ),
        "group mismatches by indices and keys of the payload": (
            python("worker/failure.py", "frame=error.origin", "frame=error.place"),
            f"{worker}mismatches_of_one_field_are_one_group_whatever_the_payload_has",
        ),
        "take a bool for an int": (
            python(
                "payload_types/converters.py",
                "if type(value) is kind:",
                "if isinstance(value, kind):",
            ),
            f"{pure}a_value_that_does_not_fit_is_refused_with_the_type_and_without_the_value",
        ),
        "retry the first of several before a payload is refused": (
            python(
                "operations/poison_records.py",
                "options.check_for(PoisonRecord.objects.using(primary_alias(using)), ids)",
                "options.check_for(PoisonRecord.objects.using(primary_alias(using)), ids[:1])",
            ),
            f"{operations}one_mismatch_among_several_records_changes_none",
        ),
        "show the difference to a payload that the class refuses": (
            python(
                "admin/poison/edit.py",
                "payload_types.check(record.kind, record.name, value)",
                "pass",
            ),
            f"{form}a_payload_that_its_handler_would_refuse_is_refused_in_the_form",
        ),
    }
    for name, (edit, test) in edits.items():
        yield Mutation(name, "sqlite", [edit], [test])


def _schedules() -> Iterator[Mutation]:
    firings = "tests/schedules/test_firings.py::test_"
    operations = "tests/schedules/test_operations.py::test_"
    declarations = "tests/schedules/test_declarations.py::test_"
    outages = "tests/schedules/test_outages.py::test_"
    history = "tests/schedules/test_history.py::test_"
    locks = "tests/schedules/test_locks.py::test_"
    edits = {
        "miss the latest moments of a schedule after a long outage": (
            python(
                "schedules/firings.py",
                "DueMoments([latest[0]], count - MOST_FIRED, first, latest[1], is_part=True)",
                "DueMoments([latest[-1]], count, first, following, is_part=True)",
            ),
            f"{outages}the_latest_moments_are_fired_however_many_were_missed",
        ),
        "compute all moments of all due schedules in one transaction": (
            python("schedules/firings.py", "if done.moments >= MOST_MOMENTS:", "if False:"),
            f"{outages}a_transaction_computes_a_bounded_number_of_moments",
        ),
        "let a schedule that is behind go first again": (
            python("schedules/firings.py", "schedule.due_at = now\n", "pass\n"),
            f"{outages}schedules_that_catch_up_for_long_do_not_keep_the_others_waiting",
        ),
        "let an expired message of a schedule hinder the next one": (
            python("schedules/firings.py", "expires_at__lte=now)", "expires_at__lte=None)"),
            f"{firings}an_expired_message_does_not_hinder_the_next_one_before_a_sweep_has_met_it",
        ),
        "send the messages of a schedule to a dead queue": (
            python("schedules/messages.py", "        _check_queue(item.queue, tx.using)\n", ""),
            f"{firings}a_queue_that_has_become_a_dead_queue_gets_no_messages",
        ),
        "keep all runs of a schedule by hand": (
            python("operations/schedules.py", "schedules.trim_runs(tx, row)", "pass"),
            f"{history}runs_by_hand_of_a_paused_schedule_are_bounded",
        ),
        "delete the run of an unfinished message of a schedule": (
            python("schedules/run_history.py", "if message in unfinished]", "if False]"),
            f"{history}a_message_that_waits_for_long_hinders_the_next_one_although_its_run_is_old",
        ),
        "lose the overdue moment of an edited schedule": (
            python(
                "models/schedule.py",
                "elif self.next_at is None or set(edited) & set(self.MOMENTS):",
                "elif True:",
            ),
            f"{operations}an_edit_that_moves_no_moment_keeps_one_that_is_overdue",
        ),
        "fire a moment again": (
            python("schedules/firings.py", "schedule.set_next(due.following)", "pass"),
            f"{firings}a_moment_sends_one_message_and_is_recorded",
        ),
        "send beside an unfinished message": (
            python(
                "schedules/firings.py",
                "if schedule.overlap == Overlap.ALLOW:",
                "if schedule.overlap != Overlap.ONE:",
            ),
            f"{firings}overlap_skip_sends_nothing_while_an_earlier_message_waits_or_runs",
        ),
        "let a schedule that cannot fire stop the others": (
            python(
                "schedules/firings.py",
                "except (OperationalError, InterfaceError):",
                "except Exception:",
            ),
            f"{firings}a_schedule_that_cannot_fire_stops_no_other_one",
        ),
        "count run now as a moment": (
            python(
                "operations/schedules.py",
                "run = ScheduleRun(schedule=row, fired_at=tx.time(), by=audit.person(by))",
                "run = ScheduleRun(schedule=row, moment=tx.time(), fired_at=tx.time())",
            ),
            f"{operations}run_now_consumes_no_moment_and_is_hindered_by_nothing",
        ),
        "orphan schedules of modules that cannot be imported": (
            python("schedules/rows.py", "if not declared.unreadable:", "if True:"),
            f"{declarations}nothing_is_orphaned_while_a_module_cannot_be_imported",
        ),
        "add an interval to a local time": (
            python(
                "timetable.py",
                "(self.start or self.anchor or moment).astimezone(UTC)",
                "(self.start or self.anchor or moment)",
            ),
            "tests/pure/test_timetable.py::test_intervals_from_a_local_time_are_real_time_as_well",
        ),
    }
    for name, (edit, test) in edits.items():
        yield Mutation(name, "sqlite", [edit], [test])
    yield Mutation(
        "lock every declared schedule to migrate",
        "postgresql",
        [
            python(
                "schedules/rows.py",
                "elif _is_behind(row, declaration, overwrite=overwrite):",
                "else:",
            )
        ],
        [f"{locks}migrate_waits_for_no_schedule_that_it_does_not_change"],
    )
    yield Mutation(
        "wait for a schedule that another transaction holds",
        "postgresql",
        [
            python(
                "schedules/firings.py", "select_for_update(skip_locked=True)", "select_for_update()"
            )
        ],
        [
            f"{locks}a_schedule_that_another_transaction_holds_is_left_to_it_and_the_others_are_fired"
        ],
    )


def _failure_groups() -> Iterator[Mutation]:
    """Failures and deaths are counted once; states change by themselves only as the rules say."""
    counts, states = "tests/groups/test_counts.py::test_", "tests/groups/test_states.py::test_"
    adoption, tags = "tests/groups/test_adoption.py::test_", "tests/groups/test_tags.py::test_"
    fingerprints = "tests/groups/test_fingerprints.py::test_"
    retention = "tests/groups/test_retention.py::test_"
    races = f"{RACES}/test_groups.py::test_"
    edits: dict[str, tuple[Edit, str]] = {
        "forget what a savepoint added to groups": (
            python("lifecycle/transaction.py", "        self.groups.absorb(part.groups)\n", ""),
            f"{counts}a_savepoint_that_is_kept_is_counted_and_one_that_meets_a_lock_is_not",
        ),
        "keep what a lost savepoint added to groups": (
            python(
                "lifecycle/transaction.py",
                "groups=GroupChanges(),",
                "groups=self.groups,",
            ),
            f"{counts}a_savepoint_that_is_kept_is_counted_and_one_that_meets_a_lock_is_not",
        ),
        "add changes to groups without the lock of the fold": (
            sql("postgresql", "lock_folding", "pg_try_advisory_xact_lock", "(SELECT 1) IN"),
            f"{races}of_two_folds_the_second_does_not_wait_and_adds_nothing",
        ),
        "wait for a group that a person is changing": (
            sql("postgresql", "lock_groups", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
            f"{races}a_fold_leaves_a_group_that_a_person_is_changing",
        ),
        "add to groups whose main group a person is changing": (
            python("lifecycle/group_states.py", "in busy_mains}", "in ()}"),
            f"{races}a_fold_leaves_groups_whose_main_group_a_person_is_changing",
        ),
        "delete a change before the transaction of its sum": (
            python(
                "lifecycle/groups.py",
                '    tx.run("delete_group_changes", ids=[change.id for change in changes])\n',
                "",
            ),
            f"{counts}failures_of_one_settle_are_one_change",
        ),
        "count the deaths of one moment in two statements": (
            sql(
                "postgresql",
                "read_uncounted_groups",
                "COALESCE(LEAST(g.first_died_at, pending.at), 'infinity')",
                "COALESCE(g.first_died_at, 'infinity')",
            ),
            f"{adoption}deaths_that_a_change_has_counted_are_not_adopted",
        ),
    }
    for name, (edit, test) in edits.items():
        yield Mutation(name, "postgresql", [edit], [test])
    edits = {
        "count a death in a dead queue a second time": (
            python(
                "lifecycle/quarantine.py",
                "            tx.groups.add_death(GroupKey(",
                "        tx.groups.add_death(GroupKey(",
            ),
            f"{counts}a_death_in_a_dead_queue_is_not_a_second_death",
        ),
        "forget the failure of a lost worker": (
            python(
                "lifecycle/candidates.py",
                "        if lost:\n            self._count_lost(lost)\n",
                "",
            ),
            f"{counts}a_lost_worker_is_a_failure_of_its_release",
        ),
        "describe a group by what was folded last": (
            sql("sqlite", "update_groups", "r.last_at >= last_failed_at", "true"),
            f"{counts}changes_that_are_folded_out_of_order_leave_the_same_group",
        ),
        "let a failure from before the resolution be a regression": (
            python("lifecycle/group_states.py", "at > resolved_at and not", "not"),
            f"{states}failures_from_before_the_resolution_are_no_regression",
        ),
        "let a failure of an older release be a regression": (
            python(
                "lifecycle/group_states.py",
                "return repaired not in starts or starts[release] < starts[repaired]",
                "return False",
            ),
            f"{states}a_group_that_is_resolved_in_a_release",
        ),
        "believe that an unknown release is an older one": (
            python("lifecycle/group_states.py", " or release not in starts:", ":"),
            f"{states}a_group_that_is_resolved_in_a_release",
        ),
        "let a death without a failure be a regression": (
            python(
                "lifecycle/groups.py",
                "return self.failures > 0 or self.reason in _WITHOUT_ATTEMPT",
                "return True",
            ),
            f"{states}the_death_of_a_message_that_failed_before_is_no_regression",
        ),
        "forget the main group of a failure": (
            python(
                "lifecycle/group_states.py",
                "main = group.merged_into if group.merged_into in locked else fingerprint",
                "main = fingerprint",
            ),
            f"{states}a_failure_of_a_merged_group_is_a_regression_of_its_main_group",
        ),
        "let a mute end later than it grew": (
            python("lifecycle/group_states.py", ">= group.muted_until_failures", "> 1 << 40"),
            f"{states}a_mute_ends_when_the_failures_have_grown",
        ),
        "adopt deaths that were counted": (
            sql("sqlite", "read_uncounted_groups", "p.poisoned_at < counted.at", "true"),
            f"{adoption}a_second_adoption_adds_nothing",
        ),
        "store hidden values as tags": (
            python(
                "message_tags.py", "type(value) is type(shown) and bool(value == shown)", "True"
            ),
            f"{tags}a_hidden_value_is_no_tag",
        ),
        "keep every value of a tag": (
            python("lifecycle/groups.py", "count >= TAG_VALUES", "count < 0"),
            f"{tags}a_group_keeps_a_hundred_values_of_a_key",
        ),
        "let every text make a group": (
            python(
                "lifecycle/custom_fingerprints.py",
                '    if len(known) >= limit:\n        return ""\n',
                "",
            ),
            f"{fingerprints}beyond_the_bound_failures_have_the_default_fingerprint",
        ),
        "delete groups that have records": (
            python("lifecycle/group_retention.py", "~Exists(dead), ", ""),
            f"{retention}a_group_with_records_stays",
        ),
        "delete muted groups": (
            python("lifecycle/group_retention.py", "state=GroupState.MUTED", "pk=-1"),
            f"{retention}a_muted_group_stays",
        ),
    }
    for name, (edit, test) in edits.items():
        yield Mutation(name, "sqlite", [edit], [test])
