"""Driver of procrastinate, on a server: as shipped."""

import asyncio
from datetime import datetime, timezone

from common import drive
from procrastinate import App, PsycopgConnector


def at(due):
    return {} if due is None else {"schedule_at": datetime.fromtimestamp(due, timezone.utc)}


class Library:
    async def open(self, place):
        self.app = App(connector=PsycopgConnector(conninfo=place, min_size=4, max_size=20))
        self.handle = None

        @self.app.task(name="h", queue="h")
        async def job(text):
            self.handle(text)

        self.job = job
        await self.app.open_async()
        if not await self.app.check_connection_async():
            await self.app.schema_manager.apply_schema_async()

    def put(self, text, due):
        return self.job.configure(**at(due)).defer_async(text=text)

    def put_many(self, texts, due):
        return self.job.configure(**at(due)).batch_defer_async(*({"text": text} for text in texts))

    async def work(self, places, handle):
        self.handle = handle
        await self.app.run_worker_async(queues=["h"], concurrency=places, install_signal_handlers=False)


asyncio.run(drive(Library()))
