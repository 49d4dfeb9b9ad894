"""Driver of pgqueuer, on a server: as shipped, with batches of ten."""

import asyncio
import time
from datetime import timedelta

import asyncpg
from common import drive
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.queries import Queries


def after(due):
    return None if due is None else timedelta(seconds=max(0, due - time.time()))


class Library:
    async def open(self, place):
        self.driver = AsyncpgPoolDriver(await asyncpg.create_pool(place, min_size=4, max_size=20))
        self.queries = Queries(self.driver)
        if not await self.queries.schema_is_installed():
            await self.queries.install()

    def put(self, text, due):
        return self.queries.enqueue("h", text.encode(), execute_after=after(due))

    def put_many(self, texts, due):
        many = len(texts)
        return self.queries.enqueue(["h"] * many, [text.encode() for text in texts], [0] * many, [after(due)] * many)

    async def work(self, places, handle):
        queuer = PgQueuer(self.driver)

        @queuer.entrypoint("h", concurrency_limit=places)
        async def job(job):
            handle(job.payload.decode())

        await queuer.run(batch_size=min(places, 10))


asyncio.run(drive(Library()))
