"""Driver of APScheduler, on a file through SQLAlchemy: for lateness and rest. Its waiting jobs are copies of one row."""

import asyncio
import logging
import sys
import time
from datetime import datetime, timezone

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from common import DELAYS, FAR, PLACES, Late, delays, end
from sqlalchemy import text

logging.disable()
LATE = Late()


def job(due):
    LATE.ran(due)


def main():
    # Jobs are found by the name of their function.
    sys.modules["peer_apscheduler"] = sys.modules["__main__"]
    job.__module__ = "peer_apscheduler"
    work, place, number, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    store = SQLAlchemyJobStore(url=f"sqlite:///{place}")
    executors = {"default": ThreadPoolExecutor(PLACES)}
    scheduler = BackgroundScheduler(jobstores={"default": store}, executors=executors, timezone=timezone.utc)
    scheduler.start(paused=work == "fill")

    def put(due):
        at = datetime.fromtimestamp(due, timezone.utc)
        # By default, a job that is later than a second does not run.
        scheduler.add_job(job, "date", run_date=at, args=[due], misfire_grace_time=None)

    if work == "fill":
        put(time.time() + FAR)
        copies = (
            f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {number}) INSERT INTO apscheduler_jobs "
            "SELECT id || n, next_run_time, job_state FROM c, (SELECT * FROM apscheduler_jobs LIMIT 1)"
        )
        with store.engine.begin() as db:
            db.execute(text(copies))
    elif work == "late":
        time.sleep(1)
        for delay in delays():
            put(time.time() + delay)
        begun = time.time()
        while len(LATE.all) < DELAYS and time.time() - begun < 60:
            time.sleep(0.02)
        LATE.report()
    elif work == "idle":
        put(time.time() + FAR)
        print("ready", flush=True)
        time.sleep(seconds)
    end()


main()
