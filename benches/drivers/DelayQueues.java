// Java's `DelayQueue` on the workloads of delay queues, Q1 to Q3, of `timerqueue-peers`.
//
// README.md beside this file says what each workload does. A queue is unkeyed: the caller keeps the entry. Its library has no move, so
// a move is a removal and an insertion. A removal searches the heap from its beginning, so with many pending entries few are measured.

import java.util.Map;
import java.util.SplittableRandom;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.TimeUnit;

final class DelayQueues {
    private static final long NEAREST_NS = 600_000_000_000L;
    private static final long SPAN_NS = 60_000_000_000L;

    static final class Entry implements Delayed {
        final long due;

        Entry(long afterNs) {
            due = System.nanoTime() + afterNs;
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(due - System.nanoTime(), TimeUnit.NANOSECONDS);
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.signum(due - ((Entry) other).due);
        }
    }

    private final DelayQueue<Entry> queue = new DelayQueue<>();
    private final String workload;

    private DelayQueues(String workload) {
        this.workload = workload;
    }

    static void run(String workload, Map<String, String> args) throws Exception {
        new DelayQueues(workload).measure(
            Integer.parseInt(args.getOrDefault("pending", "0")),
            Integer.parseInt(args.getOrDefault("threads", "1")),
            Integer.parseInt(args.getOrDefault("samples", "9")));
    }

    private void measure(int pending, int threads, int samples) throws Exception {
        SplittableRandom random = new SplittableRandom(7);
        for (int i = 0; i < pending; i++) {
            queue.add(new Entry(NEAREST_NS + random.nextLong(SPAN_NS)));
        }
        long times = 1;
        for (long start = System.nanoTime(); System.nanoTime() - start < Timers.WARM_UP_NS; ) {
            double took = sample(threads, times);
            times = Math.max(1, (long) (Timers.SAMPLE_NS / took));
        }
        for (int i = 0; i < samples; i++) {
            Timers.print("ns per operation", sample(threads, times));
        }
        Timers.check(queue.size() == pending, "pending: " + queue.size() + " instead of " + pending);
    }

    /** Nanoseconds that an operation takes as a thread sees it. */
    private double sample(int threads, long times) throws Exception {
        CyclicBarrier start = new CyclicBarrier(threads);
        long took = Timers.onThreads(threads, index -> {
            SplittableRandom random = new SplittableRandom(System.nanoTime());
            Timers.await(start);
            return operate(random, times);
        });
        return (double) took / threads / times;
    }

    /** The nanoseconds of all operations. */
    private long operate(SplittableRandom random, long times) {
        long began = System.nanoTime();
        switch (workload) {
            case "Q1" -> {
                for (long i = 0; i < times; i++) {
                    Entry entry = some(random);
                    queue.add(entry);
                    Timers.check(queue.remove(entry), "it was pending");
                }
            }
            case "Q2" -> {
                Entry entry = some(random);
                queue.add(entry);
                for (long i = 0; i < times; i++) {
                    Timers.check(queue.remove(entry), "it was pending");
                    entry = some(random);
                    queue.add(entry);
                }
                Timers.check(queue.remove(entry), "it was pending");
            }
            case "Q3" -> {
                for (long i = 0; i < times; i++) {
                    queue.add(new Entry(0));
                }
                began = System.nanoTime();
                for (long i = 0; i < times; i++) {
                    Timers.check(queue.poll() != null, "it was due");
                }
            }
            default -> throw new IllegalArgumentException("no workload " + workload + " for a delay queue");
        }
        return System.nanoTime() - began;
    }

    private static Entry some(SplittableRandom random) {
        return new Entry(NEAREST_NS + random.nextLong(SPAN_NS));
    }
}
