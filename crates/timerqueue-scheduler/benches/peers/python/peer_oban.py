"""Driver of oban, on a server: as shipped."""

import asyncio
from datetime import datetime, timezone

import psycopg
from common import drive
from oban import Oban, worker
from oban.schema import install_sql

HANDLE = None


@worker(queue="h")
class Work:
    async def process(self, job):
        HANDLE(job.args["text"])


def at(due):
    return {} if due is None else {"scheduled_at": datetime.fromtimestamp(due, timezone.utc)}


class Library:
    async def open(self, place):
        with psycopg.connect(place, autocommit=True) as db:
            if db.execute("SELECT to_regclass('public.oban_jobs')").fetchone()[0] is None:
                db.execute(install_sql())
        self.pool = await Oban.create_pool(place, min_size=4, max_size=20)
        self.client = Oban(pool=self.pool, name="client")

    def put(self, text, due):
        return self.client.enqueue(Work.new({"text": text}, **at(due)))

    def put_many(self, texts, due):
        return self.client.enqueue_many([Work.new({"text": text}, **at(due)) for text in texts])

    async def work(self, places, handle):
        global HANDLE
        HANDLE = handle
        await Oban(pool=self.pool, queues={"h": places}).start()
        await asyncio.sleep(3600)


asyncio.run(drive(Library()))
