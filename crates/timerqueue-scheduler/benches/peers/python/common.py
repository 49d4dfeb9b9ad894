"""What the drivers in Python share: works, callers, due times and answers. The README of the folder has the list of works."""

import asyncio
import math
import os
import sys
import time

MANY, DELAYS, PLACES, FAR, BYTES = 1000, 1000, 16, 36_000, 200


def delays():
    """The same delays for each contender, in seconds."""
    seed = 17
    for _ in range(DELAYS):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (100_000 + (seed >> 33) % 4_900_000) / 1e6


class Late:
    def __init__(self):
        self.all = []

    def ran(self, due):
        due = float(due)
        self.all.append((time.time() - due) * 1000)

    def report(self):
        late = sorted(self.all) or [math.nan]
        print(f"ran {len(self.all)}\nearly {sum(late < 0 for late in late)}")
        for name, part in ("first", 0), ("p50", 0.5), ("p99", 0.99), ("worst", 1):
            print(name, late[min(int(len(late) * part), len(late) - 1)])


def end():
    """Ends the process without waiting for what a library leaves behind."""
    sys.stdout.flush()
    os._exit(0)


async def drained(ran, jobs, limit):
    started = time.time()
    while not ran and time.time() - started < limit * 4:
        await asyncio.sleep(0.001)
    begun, before = time.time(), len(ran)
    last, seen = begun, before
    while len(ran) < jobs and time.time() - begun < limit:
        await asyncio.sleep(0.001)
        if len(ran) > seen:
            last, seen = time.time(), len(ran)
    spent = (last if len(ran) >= jobs else time.time()) - begun
    print(f"rate {(len(ran) - before) / max(spent, 1e-9)}\nfirst_after {begun - started}")


async def node(ran, limit):
    """One of several processes that run the jobs which are due."""
    started = time.time()
    first, last, seen = math.nan, started, 0
    while time.time() - started < limit and (not seen or time.time() - last < 1):
        await asyncio.sleep(0.001)
        if len(ran) > seen:
            first = first if seen else time.time()
            last, seen = time.time(), len(ran)
    print(f"ran {seen}\nfrom {first}\nto {last}")


async def puts(library, number, seconds):
    payload, count, goes_on, begun = "x" * BYTES, 0, True, time.time()

    async def caller():
        nonlocal count
        while goes_on:
            if number == 0:
                await library.put_many([payload] * MANY, time.time() + FAR)
            else:
                await library.put(payload, time.time() + FAR)
            count += (MANY if number == 0 else 1) if goes_on else 0

    callers = [asyncio.create_task(caller()) for _ in range(number or 1)]
    await asyncio.sleep(seconds)
    print("rate", count / (time.time() - begun))
    goes_on = False
    await asyncio.gather(*callers)


async def drive(library):
    """`library`: an object with `open(place)`, `put(text, due)`, `put_many(texts, due)`, `work(places, handle)`; due times are seconds since 1970."""
    work, place, number, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    payload, far, jobs = "x" * BYTES, time.time() + FAR, max(1, int(seconds * 5)) * MANY
    await library.open(place)
    if work == "put":
        await puts(library, number, seconds)
    elif work == "run":
        for _ in range(jobs // MANY):
            await library.put_many([payload] * MANY, None)
        ran = []
        task = asyncio.create_task(library.work(number, ran.append))
        await drained(ran, jobs, seconds)
    elif work == "late":
        late = Late()
        task = asyncio.create_task(library.work(PLACES, late.ran))
        await asyncio.sleep(1)
        for delay in delays():
            due = time.time() + delay
            await library.put(repr(due), due)
        begun = time.time()
        while len(late.all) < DELAYS and time.time() - begun < 60:
            await asyncio.sleep(0.02)
        late.report()
    elif work == "idle":
        task = asyncio.create_task(library.work(PLACES, lambda text: None))
        await library.put(payload, far)
        print("ready", flush=True)
        await asyncio.sleep(seconds)
    elif work == "node":
        ran = []
        task = asyncio.create_task(library.work(number, ran.append))
        await node(ran, seconds)
    elif work in ("fill", "due"):
        for _ in range(number // MANY):
            await library.put_many([payload] * MANY, far if work == "fill" else None)
    end()
