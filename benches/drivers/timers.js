// Node's timers on the workloads of `timerqueue-peers`.
//
// README.md beside this file says what each workload does, which parameters it takes, and what is printed. Node
// has one thread. Delays are whole milliseconds, rounded up here, so rounding makes no timer early. All work is done for two
// seconds, or three times, before it is measured, as a warm-up for the compilers.

'use strict';

const { performance } = require('node:perf_hooks');

const TOO_LATE = 42; // exit code: the timers of a storm were not made in time
const WARM_UP_MS = 2_000;
const SAMPLE_MS = 20;
const LOST_MS = 60_000; // a timer not fired after this time never fires
const MAKE_MS = 0.002; // a generous estimate of the time to make a timer of a storm

const [contender, workload, ...words] = process.argv.slice(2);
const args = Object.fromEntries(words.map((word) => word.split('=')));
const number = (name, otherwise) => (args[name] === undefined ? otherwise : Number(args[name]));

const now = () => performance.now();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const once = (after, callback) => setTimeout(callback, Math.ceil(after));

function check(right, otherwise) {
  if (!right) {
    console.error(otherwise);
    process.exit(1);
  }
}

function notDue() {
  check(false, 'a timer came due that was not');
}

/** xorshift32: numbers from 0 to 1. */
let state = 7;
function random() {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) / 0x1_0000_0000;
}

function print(metric, value) {
  console.log(JSON.stringify({ metric, value: Math.round(value * 1e3) / 1e3 }));
}

function printQuantiles(metric, samples) {
  check(samples.length > 0, 'no samples');
  const sorted = Float64Array.from(samples).sort();
  const quantiles = (args.shares ?? '0,0.5,0.9,0.99,1').split(',').map(Number).map((share) => {
    const sample = sorted[Math.round((sorted.length - 1) * share)];
    return [share, Math.round(sample * 1e3) / 1e3];
  });
  console.log(JSON.stringify({ metric, quantiles }));
}

/** Of lateness in milliseconds. */
function printLate(late) {
  print('early, %', (late.filter((ms) => ms < 0).length * 100) / late.length);
  printQuantiles('us late', late.map((ms) => ms * 1e3));
}

/** Processor time of the process, in milliseconds. */
function cpu() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e3;
}

const switches = () => process.resourceUsage().voluntaryContextSwitches;
const active = () => process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;

function periodic(first, period, tick) {
  setTimeout(() => {
    tick();
    setInterval(tick, period);
  }, first);
}

// W1 and W2

/** Measures `operations(times)`, which does it so many times. */
async function measure(operations) {
  let times = 1_000;
  const sample = async () => {
    await new Promise(setImmediate); // the loop turns
    const began = now();
    operations(times);
    return (now() - began) / times;
  };
  for (const start = now(); now() - start < WARM_UP_MS; ) {
    times = Math.max(1_000, Math.floor(SAMPLE_MS / (await sample())));
  }
  for (let i = number('samples', 9); i > 0; i--) {
    print('ns per operation', (await sample()) * 1e6);
  }
}

function pendingTimers(n, nearest, furthest) {
  return Array.from({ length: n }, () => setTimeout(notDue, nearest + Math.floor(random() * (furthest - nearest))));
}

async function createAndCancel() {
  check(number('threads', 1) === 1, 'there is one thread');
  const others = pendingTimers(number('pending', 0), 21_000, 60_000);
  const heartbeat = setInterval(() => {}, number('heartbeat_us', 100_000) / 1e3);
  const ring = Array.from({ length: number('behind', 0) }, () => setTimeout(notDue, 30_000));
  const before = active();
  let at = 0;
  await measure((times) => {
    for (let i = 0; i < times; i++) {
      let timer = setTimeout(notDue, 30_000);
      if (ring.length > 0) {
        [ring[at], timer] = [timer, ring[at]];
        at = (at + 1) % ring.length;
      }
      clearTimeout(timer);
    }
  });
  check(active() === before, `${active()} timers instead of ${before}`);
  [...others, ...ring, heartbeat].forEach(clearTimeout);
}

async function change() {
  check(number('to_and_fro', 0) === 0, 'a timer can only be started again for the time that it had');
  const others = pendingTimers(number('pending', 0), 21_000, 60_000);
  const heartbeat = setInterval(() => {}, number('heartbeat_us', 100_000) / 1e3);
  const timer = setTimeout(notDue, 30_000);
  await measure((times) => {
    for (let i = 0; i < times; i++) {
      timer.refresh();
    }
  });
  [...others, timer, heartbeat].forEach(clearTimeout);
}

// W3

async function storm(n, span, patience, measured) {
  const late = new Float64Array(n).fill(NaN);
  const after = Float64Array.from({ length: n }, () => random() * span);
  let used = cpu();
  const firstDue = now() + 100 + MAKE_MS * patience * n;
  for (let i = 0; i < n; i++) {
    const due = firstDue + after[i];
    once(due - now(), () => {
      const at = now();
      check(Number.isNaN(late[i]), 'a timer fires twice');
      late[i] = at - due;
    });
  }
  used = cpu() - used;
  if (now() >= firstDue) {
    process.exit(TOO_LATE);
  }
  if (measured) {
    print('CPU ns to make one', (used * 1e6) / n);
  }
  used = cpu();
  const slept = switches();
  await sleep(firstDue + span - now());
  for (let i = 0; i < n; i++) {
    while (Number.isNaN(late[i])) {
      check(now() < firstDue + span + LOST_MS, 'a timer does not fire');
      await sleep(1);
    }
  }
  await sleep(30);
  if (measured) {
    print('CPU ns to fire one', ((cpu() - used) * 1e6) / n);
    print('thread wake-ups per 1,000', ((switches() - slept) * 1e3) / n);
    const last = (times) => times.reduce((a, b) => Math.max(a, b));
    print('last one ran after the last was due, ms', last(after.map((ms, i) => ms + late[i])) - last(after));
    printLate(late);
  }
}

async function storms() {
  for (let i = 0; i < 3; i++) {
    await storm(20_000, 100, 10, false); // cold, so with more time to make the timers
  }
  await storm(number('n', 10_000), number('span_us', 1_000_000) / 1e3, number('patience', 1), true);
}

// W4

function lateBy(wait) {
  return new Promise((resolve) => {
    const due = now() + wait;
    once(wait, () => resolve(now() - due));
  });
}

async function lateness() {
  const others = pendingTimers(number('pending', 0), 600_000, 900_000);
  const count = number('periodic', 0);
  let ticks = 0;
  for (let i = 0; i < count; i++) {
    periodic(100 + (100 * i) / count, 100, () => ticks++);
  }
  for (const start = now(); now() - start < WARM_UP_MS; ) {
    await lateBy(1);
  }
  const span = number('span_ms', 0);
  const samples = number('samples', span > 0 ? Infinity : 80);
  const late = [];
  const [ticked, slept, used, began] = [ticks, switches(), cpu(), now()];
  while (late.length < samples && (span === 0 || now() - began < span)) {
    late.push(await lateBy(1 + random() * 9));
  }
  const ms = now() - began;
  print('CPU ms per second', ((cpu() - used) * 1e3) / ms);
  print('thread wake-ups per second', ((switches() - slept) * 1e3) / ms);
  if (count > 0) {
    print('ticks lost, %', 100 - ((ticks - ticked) * 1e4) / count / ms);
  }
  check(active() >= others.length, 'timers are missing');
  printLate(late);
}

// W6

async function idle() {
  const others = pendingTimers(number('pending', 100_000), 60_000, 600_000);
  await sleep(3_000); // let the machine's start be over
  const [slept, used] = [switches(), cpu()];
  await sleep(10_000);
  // The last sleep is the measuring function's own.
  print('thread wake-ups in 10 s', Math.max(0, switches() - slept - 1));
  print('CPU ms in 10 s', cpu() - used);
  check(active() === others.length, 'timers are missing');
}

// W7 and W8

async function blocked() {
  const others = number('others', 16);
  const blockers = number('blockers', 64);
  const period = number('period_us', 10_000) / 1e3;
  const all = Array.from({ length: others }, () => []);
  all.forEach((ticks, i) => periodic(period + (period * i) / others, period, () => ticks.push(now())));
  await sleep(2_000); // warm
  const from = now();
  const due = from + 500;
  const end = due + number('block_ms', 2_000);
  const cell = new Int32Array(new SharedArrayBuffer(4));
  let done = 0;
  for (let i = 0; i < blockers; i++) {
    once(due - now(), () => {
      if (now() < end) {
        Atomics.wait(cell, 0, 0, end - now());
      }
      done++;
    });
  }
  await sleep(end + 300 - now());
  const to = now();
  const excess = [];
  let ticked = 0;
  for (const ticks of all) {
    check(ticks.length > 10, 'it has ticked before');
    for (let i = 1; i <= ticks.length; i++) {
      const next = ticks[i] ?? to;
      if (next > from) {
        ticked += i < ticks.length ? 1 : 0;
        const gap = next - ticks[i - 1];
        // A gap is weighted by its length; otherwise the burst of ticks after a long gap would hide the gap.
        for (let rest = gap; rest >= 0.1; rest -= 0.1) {
          excess.push(Math.max(0, gap - period));
        }
      }
    }
  }
  check(done === blockers, 'not all blocked callbacks run');
  print('ticks lost, %', 100 - (ticked * 100 * period) / others / (to - from));
  print('blocked at once', 1);
  printQuantiles('excess gap, ms', excess);
}

async function drift() {
  const period = number('period_us', 10_000) / 1e3;
  const expected = number('ticks', 1_000);
  for (const start = now(); now() - start < WARM_UP_MS; ) {
    await lateBy(1);
  }
  const ticks = [];
  const start = now();
  periodic(100, period, () => ticks.push(now()));
  await sleep(start + 100 + period * expected - period / 2 - now());
  const count = ticks.length;
  check(count > expected / 2, `${count} ticks`);
  const late = ticks.map((at, i) => at - ticks[0] - period * i);
  const off = ticks.slice(1).map((at, i) => Math.abs(at - ticks[i] - period) * 1e3);
  const tenth = Math.floor(count / 10);
  const median = (samples) => samples.sort((a, b) => a - b)[Math.floor(samples.length / 2)];
  print('drift, us', (median(late.slice(-tenth)) - median(late.slice(0, tenth))) * 1e3);
  print('ticks lost', expected - count);
  printQuantiles('us of jitter', off);
}

const workloads = {
  version: () => console.log(JSON.stringify({ version: `Node ${process.versions.node}` })),
  W1: createAndCancel,
  W2: change,
  W3: storms,
  W4: lateness,
  W6: idle,
  W7: blocked,
  W8: drift,
};
check(contender === 'setTimeout' && workload in workloads, 'setTimeout WORKLOAD [name=value]...; see README.md');
Promise.resolve(workloads[workload]()).then(
  () => process.exit(0), // pending timers would keep the process alive
  (problem) => check(false, problem.stack),
);
