// What the drivers in JavaScript share: works, callers, due times and answers. The README of the folder has the list of works.

const MANY = 1000, DELAYS = 1000, PLACES = 16, FAR = 36_000_000, BYTES = 200;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const micros = () => (performance.timeOrigin + performance.now()) * 1000;

// The same delays for each contender, in microseconds.
function delays() {
  let seed = 17n;
  return Array.from({ length: DELAYS }, () => {
    seed = BigInt.asUintN(64, seed * 6364136223846793005n + 1442695040888963407n);
    return 100_000 + Number((seed >> 33n) % 4_900_000n);
  });
}

class Late {
  all = [];
  ran = (due) => isNaN(due) || this.all.push(micros() - due);
  async report() {
    for (const begun = micros(); this.all.length < DELAYS && micros() - begun < 60e6; ) await sleep(20);
    const late = this.all.sort((a, b) => a - b);
    const at = (part) => late[Math.min(Math.floor(late.length * part), late.length - 1)] / 1000;
    console.log(`ran ${late.length}\nearly ${late.filter((late) => late < 0).length}`);
    console.log(`first ${at(0)}\np50 ${at(0.5)}\np99 ${at(0.99)}\nworst ${at(1)}`);
  }
}

async function drained(ran, jobs, time) {
  const started = micros();
  while (!ran.count && micros() - started < time * 4e6) await sleep(1);
  const begun = micros(), before = ran.count;
  let last = begun, seen = before;
  while (ran.count < jobs && micros() - begun < time * 1e6) {
    await sleep(1);
    if (ran.count > seen) [last, seen] = [micros(), ran.count];
  }
  const spent = (ran.count >= jobs ? last : micros()) - begun;
  console.log(`rate ${((ran.count - before) / spent) * 1e6}\nfirst_after ${(begun - started) / 1e6}`);
}

// One of several processes that run the jobs which are due.
async function node(ran, time) {
  const started = micros();
  let first = NaN, last = started, seen = 0;
  while (micros() - started < time * 1e6 && (!seen || micros() - last < 1e6)) {
    await sleep(1);
    if (ran.count > seen) {
      if (!seen) first = micros();
      [last, seen] = [micros(), ran.count];
    }
  }
  console.log(`ran ${seen}\nfrom ${first / 1e6}\nto ${last / 1e6}`);
}

// A library: `put(text, due)` and `putMany(texts, due)` with due times in milliseconds since 1970 or none, `work(places, handle)`.
export async function drive(open) {
  const [work, place, number, seconds] = [...process.argv.slice(2, 4), ...process.argv.slice(4).map(Number)];
  const library = await open(place);
  const payload = "x".repeat(BYTES), far = () => Date.now() + FAR, jobs = Math.max(1, Math.floor(seconds * 5)) * MANY;
  const many = Array(MANY).fill(payload);
  if (work === "put") {
    let count = 0, goesOn = true;
    const begun = micros();
    const caller = async () => {
      while (goesOn) {
        await (number === 0 ? library.putMany(many, far()) : library.put(payload, far()));
        if (goesOn) count += number === 0 ? MANY : 1;
      }
    };
    const callers = Array.from({ length: number || 1 }, caller);
    await sleep(seconds * 1000);
    console.log(`rate ${(count / (micros() - begun)) * 1e6}`);
    goesOn = false;
    await Promise.all(callers);
  } else if (work === "run") {
    for (let n = 0; n < jobs; n += MANY) await library.putMany(many);
    const ran = { count: 0 };
    await library.work(number, () => ran.count++);
    await drained(ran, jobs, seconds);
  } else if (work === "late") {
    const late = new Late();
    await library.work(PLACES, (due) => late.ran(Number(due)));
    await sleep(1000);
    for (const delay of delays()) {
      const due = micros() + delay;
      // Times are milliseconds here: rounded up, so that no job is early.
      await library.put(`${due}`, Math.ceil(due / 1000));
    }
    await late.report();
  } else if (work === "idle") {
    await library.work(PLACES, () => {});
    await library.put(payload, far());
    console.log("ready");
    await sleep(seconds * 1000);
  } else if (work === "node") {
    const ran = { count: 0 };
    await library.work(number, () => ran.count++);
    await node(ran, seconds);
  } else if (work === "due") {
    for (let n = 0; n < number; n += MANY) await library.putMany(many);
  } else if (work === "fill") {
    for (let n = 0; n < number; n += MANY) await library.putMany(many, far());
  }
  process.exit(0);
}
