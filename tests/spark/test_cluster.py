"""Executors in processes of their own, on a store that needs credentials.

The rest of the job runs on every kind of cluster in `make interop`.
"""

from __future__ import annotations

from pathlib import Path

from tests.interop.servers import Server
from tests.interop.spark_job import check_hidden, check_logged, event_log, remove_work, run_job
from tests.interop.spark_program import REPEATED_ROWS, TOTAL


def test_executors_find_credentials_in_their_environment_and_nothing_shows_them(
    tmp_path: Path, ministack: Server
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    conf = {**event_log(events), "spark.executor.memory": "512m"}
    told = run_job(
        tmp_path / "job",
        {"master": "local-cluster[2,1,512]", "conf": conf},
        *("workers", "batch", "repeated", "plan", "refusals"),
        url=f"{ministack.url}cluster",
        env=ministack.env,
    )
    folders = {Path(worker["folder"]) for worker in told["workers"]}
    assert len(folders) == 2
    assert told["batch"] == {"ids": list(range(TOTAL)), "offsets": TOTAL}
    assert told["repeated"] == REPEATED_ROWS
    assert "headwater" in told["plan"]
    assert "nothing-of-this-name" in told["refusals"][0]
    assert "damaged" in told["refusals"][1]
    keys = [ministack.env["AWS_ACCESS_KEY_ID"], ministack.env["AWS_SECRET_ACCESS_KEY"]]
    check_logged(events)
    for place in (events, *folders):
        check_hidden(keys, told, place)
    remove_work(told)
