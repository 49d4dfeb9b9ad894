// The timers of Java's library, and Netty's if its jar is installed, on the workloads of `timerqueue-peers`.
//
// README.md beside this file says what each workload does, which parameters it takes, and what is printed. A
// contender is an implementation of `Contender`; the one for Netty is in NettyContender.java, so that this file compiles
// without the jar. The virtual machine keeps its default settings. All work is done for two seconds, or three times,
// before it is measured, as a warm-up for the compilers.

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.function.IntToLongFunction;
import java.util.stream.Stream;

public final class Timers {
    /** What the workloads ask of a library of timers. */
    interface Contender {
        Object once(long delayNs, Runnable callback);

        /** Whether it was pending. */
        boolean cancel(Object timer);

        void periodic(long firstNs, long periodNs, Runnable tick);

        /** How many timers it holds. */
        long pending();

        String version();
    }

    /** The name of a library's threads. */
    static final String THREADS = "timers";

    /** As many threads as there are cores, and what is cancelled leaves the heap at once. */
    static final class Scheduled implements Contender {
        private final ScheduledThreadPoolExecutor executor = new ScheduledThreadPoolExecutor(
            Runtime.getRuntime().availableProcessors(), work -> new Thread(work, THREADS));

        Scheduled() {
            executor.setRemoveOnCancelPolicy(true);
        }

        @Override
        public Object once(long delayNs, Runnable callback) {
            return executor.schedule(callback, delayNs, TimeUnit.NANOSECONDS);
        }

        @Override
        public boolean cancel(Object timer) {
            return ((ScheduledFuture<?>) timer).cancel(false);
        }

        @Override
        public void periodic(long firstNs, long periodNs, Runnable tick) {
            executor.scheduleAtFixedRate(tick, firstNs, periodNs, TimeUnit.NANOSECONDS);
        }

        @Override
        public long pending() {
            return executor.getQueue().size();
        }

        @Override
        public String version() {
            return "Java " + System.getProperty("java.version");
        }
    }

    static final String SWITCHES = "\nvoluntary_ctxt_switches:";
    static final int TOO_LATE = 42; // exit code: the timers of a storm were not made in time
    static final int MAKERS = 2;
    static final long NOT_FIRED = Long.MIN_VALUE;
    static final long WARM_UP_NS = 2_000_000_000L;
    static final long MAKE_NS = 1_500; // a generous estimate of the time to make a timer of a storm
    static final long SAMPLE_NS = 20_000_000;
    static final long LOST_NS = 60_000_000_000L; // a timer not fired after this time never fires
    static final long MS = 1_000_000;

    private final Contender contender;
    private final Map<String, String> args = new HashMap<>();
    private final SplittableRandom random = new SplittableRandom(7);

    private Timers(Contender contender) {
        this.contender = contender;
    }

    public static void main(String[] words) {
        try {
            run(words);
        } catch (Exception problem) {
            problem.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.exit(0); // the libraries' threads would go on
    }

    private static void run(String[] words) throws Exception {
        if (words.length < 2) {
            throw new IllegalArgumentException("CONTENDER WORKLOAD [name=value]...; see README.md");
        }
        Timers timers = new Timers(contender(words[0]));
        for (String word : Arrays.copyOfRange(words, 2, words.length)) {
            String[] pair = word.split("=", 2);
            timers.args.put(pair[0], pair[1]);
        }
        if (words[1].startsWith("Q")) {
            DelayQueues.run(words[1], timers.args);
            return;
        }
        switch (words[1]) {
            case "version" -> System.out.printf("{\"version\":\"%s\"}%n", timers.contender.version());
            case "W1" -> timers.createAndCancel();
            case "W3" -> timers.storms();
            case "W4" -> timers.lateness();
            case "W6" -> timers.idle();
            case "W7" -> timers.blocked();
            case "W8" -> timers.drift();
            default -> throw new IllegalArgumentException("no workload " + words[1] + " for Java");
        }
    }

    private static Contender contender(String name) throws ReflectiveOperationException {
        return switch (name) {
            case "scheduled", "delay-queue" -> new Scheduled();
            case "netty-1ms" -> netty(1);
            case "netty-100ms" -> netty(100);
            default -> throw new IllegalArgumentException("no contender " + name);
        };
    }

    private static Contender netty(long tickMs) throws ReflectiveOperationException {
        return (Contender) Class.forName("NettyContender").getDeclaredConstructor(long.class).newInstance(tickMs);
    }

    // W1

    private void createAndCancel() throws Exception {
        int pending = (int) number("pending", 0);
        int threads = (int) number("threads", 1);
        int behind = (int) number("behind", 0);
        long heartbeat = number("heartbeat_us", 100_000) * 1_000;
        contender.periodic(heartbeat, heartbeat, () -> {});
        List<Object> others = new ArrayList<>(pending);
        for (int i = 0; i < pending; i++) {
            others.add(contender.once((21_000 + random.nextLong(39_000)) * MS, Timers::notDue));
        }
        awaitPending(pending + 1);
        Object[][] rings = new Object[threads][behind];
        for (Object[] ring : rings) {
            Arrays.setAll(ring, i -> contender.once(30_000 * MS, Timers::notDue));
        }
        long times = 1_000;
        for (long start = System.nanoTime(); System.nanoTime() - start < WARM_UP_NS; ) {
            double took = pairs(threads, rings, times);
            times = Math.max(1_000, (long) (SAMPLE_NS / took));
        }
        for (long sample = number("samples", 9); sample > 0; sample--) {
            print("ns per operation", pairs(threads, rings, times));
        }
        awaitPending(pending + 1 + (long) threads * behind);
        for (Object timer : others) {
            check(contender.cancel(timer), "a timer came due that was not");
        }
    }

    /** Nanoseconds that a pair takes as a thread sees it. */
    private double pairs(int threads, Object[][] rings, long times) throws Exception {
        CyclicBarrier start = new CyclicBarrier(threads);
        long took = onThreads(threads, index -> {
            await(start);
            long began = System.nanoTime();
            pairs(rings[index], times);
            return System.nanoTime() - began;
        });
        return (double) took / threads / times;
    }

    private void pairs(Object[] ring, long times) {
        int at = 0;
        for (long i = 0; i < times; i++) {
            Object timer = contender.once(30_000 * MS, Timers::notDue);
            if (ring.length > 0) {
                Object older = ring[at];
                ring[at] = timer;
                timer = older;
                at = at + 1 == ring.length ? 0 : at + 1;
            }
            check(contender.cancel(timer), "it was pending");
        }
    }

    /** What a library files or forgets on a thread of its own may take it a while. */
    private void awaitPending(long expected) throws InterruptedException {
        for (int i = 0; contender.pending() != expected; i++) {
            check(i < 3_000, "pending: " + contender.pending() + " instead of " + expected);
            Thread.sleep(10);
        }
    }

    private static void notDue() {
        check(false, "a timer came due that was not");
    }

    // W3

    private void storms() throws Exception {
        for (int i = 0; i < 3; i++) {
            storm(20_000, 100 * MS, 20, false); // cold, so with more time to make the timers
        }
        storm((int) number("n", 10_000), number("span_us", 1_000_000) * 1_000, number("patience", 1), true);
    }

    private void storm(int n, long spanNs, long patience, boolean measured) throws Exception {
        AtomicLongArray late = new AtomicLongArray(n);
        boolean sharing = number("sharing", 0) == 1;
        AtomicLong shared = new AtomicLong();
        long[] after = new long[n];
        for (int i = 0; i < n; i++) {
            late.set(i, NOT_FIRED);
            after[i] = random.nextLong(spanNs + 1);
        }
        long cpu = cpuNs(""), begin = System.nanoTime();
        long firstDue = begin + 100 * MS + MAKE_NS * patience * n;
        onThreads(MAKERS, maker -> {
            for (int i = maker; i < n; i += MAKERS) {
                int index = i;
                long due = firstDue + after[i];
                contender.once(due - System.nanoTime(), () -> {
                    long now = System.nanoTime();
                    check(late.get(index) == NOT_FIRED, "a timer fires twice");
                    late.setRelease(index, now - due);
                    if (sharing) {
                        shared.incrementAndGet();
                    }
                });
            }
            return 0;
        });
        cpu = cpuNs("") - cpu;
        if (System.nanoTime() >= firstDue) {
            System.exit(TOO_LATE);
        }
        if (measured) {
            check(contender.pending() == n, "pending: " + contender.pending());
            print("CPU ns to make one", (double) cpu / n);
        }
        cpu = cpuNs("") - ownCpuNs();
        long switches = switches("") - ownSwitches();
        Thread.sleep(Math.max(0, firstDue + spanNs - System.nanoTime()) / MS);
        long[] sorted = new long[n];
        long lastDue = 0, lastFired = 0;
        for (int i = 0; i < n; i++) {
            while ((sorted[i] = late.getAcquire(i)) == NOT_FIRED) {
                check(System.nanoTime() < firstDue + spanNs + LOST_NS, "a timer does not fire");
                Thread.sleep(1);
            }
            lastDue = Math.max(lastDue, after[i]);
            lastFired = Math.max(lastFired, after[i] + sorted[i]);
        }
        Thread.sleep(30);
        cpu = cpuNs("") - ownCpuNs() - cpu;
        switches = switches("") - ownSwitches() - switches;
        if (measured) {
            check(contender.pending() == 0, "pending: " + contender.pending());
            print("CPU ns to fire one", (double) cpu / n);
            print("thread wake-ups per 1,000", switches * 1e3 / n);
            print("last one ran after the last was due, ms", (double) (lastFired - lastDue) / MS);
            printLate(sorted);
        }
    }

    // W4

    private void lateness() throws Exception {
        int pending = (int) number("pending", 0);
        int periodic = (int) number("periodic", 0);
        for (int i = 0; i < pending; i++) {
            contender.once((600_000 + random.nextLong(300_000)) * MS, Timers::notDue);
        }
        AtomicLongArray ticks = new AtomicLongArray(Math.max(periodic, 1));
        for (int i = 0; i < periodic; i++) {
            int index = i;
            contender.periodic(100 * MS + 100 * MS * i / periodic, 100 * MS, () -> ticks.getAndIncrement(index));
        }
        SynchronousQueue<Long> lates = new SynchronousQueue<>();
        for (long start = System.nanoTime(); System.nanoTime() - start < WARM_UP_NS; ) {
            late(lates, 100_000);
        }
        long span = number("span_ms", 0) * MS, samples = number("samples", span > 0 ? Long.MAX_VALUE : 80);
        List<Long> late = new ArrayList<>();
        long ticked = sum(ticks), switches = switches(""), cpu = cpuNs(""), began = System.nanoTime();
        while (late.size() < samples && (span == 0 || System.nanoTime() - began < span)) {
            late.add(late(lates, MS + random.nextLong(9 * MS)));
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        print("CPU ms per second", (cpuNs("") - cpu) / 1e6 / seconds);
        print("thread wake-ups per second", (switches("") - switches) / seconds);
        if (periodic > 0) {
            print("ticks lost, %", 100 - (sum(ticks) - ticked) * 10.0 / periodic / seconds);
        }
        check(contender.pending() >= pending, "pending: " + contender.pending());
        printLate(late.stream().mapToLong(Long::longValue).toArray());
    }

    private long late(SynchronousQueue<Long> lates, long waitNs) throws InterruptedException {
        long due = System.nanoTime() + waitNs;
        contender.once(waitNs, () -> {
            long late = System.nanoTime() - due;
            try {
                lates.put(late);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
        return lates.take();
    }

    // W6

    /** Of the library's own threads: one of the virtual machine's wakes up twenty times a second, whatever runs in it. */
    private void idle() throws Exception {
        int pending = (int) number("pending", 100_000);
        for (int i = 0; i < pending; i++) {
            contender.once((60_000 + random.nextLong(540_000)) * MS, Timers::notDue);
        }
        Thread.sleep(3_000); // let the machine's start be over
        long cpu = cpuNs(THREADS), switches = switches(THREADS);
        Thread.sleep(10_000);
        print("thread wake-ups in 10 s", switches(THREADS) - switches);
        print("CPU ms in 10 s", (cpuNs(THREADS) - cpu) / 1e6);
        check(contender.pending() == pending, "pending: " + contender.pending());
    }

    // W7 and W8

    /** When a timer has ticked. */
    private static final class Ticks implements Runnable {
        private final long[] times = new long[1 << 14];
        private volatile int count;

        @Override
        public void run() {
            times[count] = System.nanoTime();
            count++;
        }
    }

    private void blocked() throws Exception {
        int others = (int) number("others", 16);
        int blockers = (int) number("blockers", 64);
        long period = number("period_us", 10_000) * 1_000;
        Ticks[] all = new Ticks[others];
        for (int i = 0; i < others; i++) {
            all[i] = new Ticks();
            contender.periodic(period + period * i / others, period, all[i]);
        }
        Thread.sleep(2_000); // warm
        long from = System.nanoTime(), due = from + 500 * MS, end = due + number("block_ms", 2_000) * MS;
        AtomicInteger now = new AtomicInteger(), most = new AtomicInteger(), done = new AtomicInteger();
        for (int i = 0; i < blockers; i++) {
            contender.once(due - System.nanoTime(), () -> {
                most.accumulateAndGet(now.incrementAndGet(), Math::max);
                sleepUntil(end);
                now.decrementAndGet();
                done.incrementAndGet();
            });
        }
        sleepUntil(end + 300 * MS);
        long to = System.nanoTime(), ticked = 0;
        List<Long> excess = new ArrayList<>();
        for (Ticks ticks : all) {
            int count = ticks.count;
            check(count > 10, "it has ticked before");
            for (int i = 1; i <= count; i++) {
                long last = ticks.times[i - 1], next = i < count ? ticks.times[i] : to;
                if (next > from) {
                    ticked += i < count ? 1 : 0;
                    long above = Math.max(0, next - last - period);
                    // A gap is weighted by its length; otherwise the burst of ticks after a long gap would hide the gap.
                    for (long rest = next - last; rest >= MS / 10; rest -= MS / 10) {
                        excess.add(above);
                    }
                }
            }
        }
        for (int i = 0; done.get() < blockers; i++) {
            check(i < 2_000, "not all blocked callbacks run");
            Thread.sleep(10);
        }
        print("ticks lost, %", 100 - ticked * 100.0 * period / others / (to - from));
        print("blocked at once", most.get());
        printQuantiles("excess gap, ms", excess.stream().mapToLong(Long::longValue).toArray(), 1e6);
    }

    private static void sleepUntil(long end) {
        try {
            Thread.sleep(Math.max(0, end - System.nanoTime() + MS - 1) / MS);
        } catch (InterruptedException problem) {
            throw new IllegalStateException(problem);
        }
    }

    private void drift() throws Exception {
        long period = number("period_us", 10_000) * 1_000;
        int expected = (int) number("ticks", 1_000);
        SynchronousQueue<Long> lates = new SynchronousQueue<>();
        for (long start = System.nanoTime(); System.nanoTime() - start < WARM_UP_NS; ) {
            late(lates, 100_000);
        }
        Ticks ticks = new Ticks();
        long first = 100 * MS, start = System.nanoTime();
        contender.periodic(first, period, ticks);
        sleepUntil(start + first + period * expected - period / 2);
        int count = ticks.count;
        check(count > expected / 2, "ticks: " + count);
        long[] late = new long[count];
        long[] off = new long[count - 1];
        for (int i = 0; i < count; i++) {
            late[i] = ticks.times[i] - ticks.times[0] - period * i;
            if (i > 0) {
                off[i - 1] = Math.abs(ticks.times[i] - ticks.times[i - 1] - period);
            }
        }
        int tenth = count / 10;
        print("drift, us", (median(late, count - tenth, count) - median(late, 0, tenth)) / 1e3);
        print("ticks lost", expected - count);
        printQuantiles("us of jitter", off, 1e3);
    }

    private static long median(long[] samples, int from, int to) {
        long[] sorted = Arrays.copyOfRange(samples, from, to);
        Arrays.sort(sorted);
        return sorted[sorted.length / 2];
    }

    // Tools of all workloads

    private long number(String name, long otherwise) {
        String text = args.get(name);
        return text == null ? otherwise : Long.parseLong(text);
    }

    static void check(boolean right, String otherwise) {
        if (!right) {
            System.err.println(otherwise);
            Runtime.getRuntime().halt(1); // from any thread
        }
    }

    static void await(CyclicBarrier barrier) {
        try {
            barrier.await();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /** The sum of what the threads return. */
    static long onThreads(int threads, IntToLongFunction work) throws InterruptedException {
        long[] results = new long[threads];
        Thread[] all = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            int index = i;
            all[i] = new Thread(() -> results[index] = work.applyAsLong(index));
            all[i].setUncaughtExceptionHandler((thread, problem) -> check(false, problem.toString()));
            all[i].start();
        }
        for (Thread thread : all) {
            thread.join();
        }
        return Arrays.stream(results).sum();
    }

    private static long sum(AtomicLongArray numbers) {
        long sum = 0;
        for (int i = 0; i < numbers.length(); i++) {
            sum += numbers.get(i);
        }
        return sum;
    }

    /** Adds up a figure of all threads with that in their names, those of compilers and collectors too. */
    private static long ofThreads(String name, String file, String before) throws IOException {
        long sum = 0;
        try (Stream<Path> tasks = Files.list(Path.of("/proc/self/task"))) {
            for (Path task : tasks.toList()) {
                boolean named = name.isEmpty() || Files.readString(task.resolve("comm")).contains(name);
                sum += named ? figure(task.resolve(file), before) : 0;
            }
        }
        return sum;
    }

    /** The number that follows `before` in a file; zero if the thread has ended meanwhile. */
    private static long figure(Path path, String before) {
        try {
            String text = Files.readString(path);
            String rest = text.substring(text.indexOf(before) + before.length()).trim();
            return Long.parseLong(rest.split("\\s", 2)[0]);
        } catch (IOException gone) {
            return 0;
        }
    }

    /** Processor time of threads: what Java itself says of the process counts in steps of 10 ms. */
    private static long cpuNs(String name) throws IOException {
        return ofThreads(name, "schedstat", "");
    }

    private static long ownCpuNs() {
        return figure(Path.of("/proc/thread-self/schedstat"), "");
    }

    /** How often threads have gone to sleep. */
    private static long switches(String name) throws IOException {
        return ofThreads(name, "status", SWITCHES);
    }

    private static long ownSwitches() {
        return figure(Path.of("/proc/thread-self/status"), SWITCHES);
    }

    private void printLate(long[] late) {
        print("early, %", Arrays.stream(late).filter(ns -> ns < 0).count() * 100.0 / late.length);
        printQuantiles("us late", late, 1e3);
    }

    static void print(String metric, double value) {
        System.out.printf(Locale.ROOT, "{\"metric\":\"%s\",\"value\":%.3f}%n", metric, value);
    }

    private void printQuantiles(String metric, long[] samples, double unit) {
        check(samples.length > 0, "no samples");
        Arrays.sort(samples);
        StringBuilder pairs = new StringBuilder();
        for (String share : args.getOrDefault("shares", "0,0.5,0.9,0.99,1").split(",")) {
            long sample = samples[(int) Math.round((samples.length - 1) * Double.parseDouble(share))];
            pairs.append(pairs.length() > 0 ? "," : "").append(String.format(Locale.ROOT, "[%s,%.3f]", share, sample / unit));
        }
        System.out.printf("{\"metric\":\"%s\",\"quantiles\":[%s]}%n", metric, pairs);
    }
}
