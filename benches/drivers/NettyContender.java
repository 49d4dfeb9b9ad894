// Netty's HashedWheelTimer as a contender of Timers.java. Compiled only if Netty's jar is installed.

import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;
import io.netty.util.TimerTask;
import java.util.concurrent.TimeUnit;

/** A wheel with 512 buckets, its default. Without periodic timers: each tick schedules the next, as its users do. */
final class NettyContender implements Timers.Contender {
    private final HashedWheelTimer timer;

    NettyContender(long tickMs) {
        timer = new HashedWheelTimer(work -> new Thread(work, Timers.THREADS), tickMs, TimeUnit.MILLISECONDS);
    }

    @Override
    public Object once(long delayNs, Runnable callback) {
        return timer.newTimeout(timeout -> callback.run(), delayNs, TimeUnit.NANOSECONDS);
    }

    @Override
    public boolean cancel(Object timer) {
        return ((Timeout) timer).cancel();
    }

    @Override
    public void periodic(long firstNs, long periodNs, Runnable tick) {
        timer.newTimeout(new TimerTask() {
            @Override
            public void run(Timeout timeout) {
                timer.newTimeout(this, periodNs, TimeUnit.NANOSECONDS);
                tick.run();
            }
        }, firstNs, TimeUnit.NANOSECONDS);
    }

    @Override
    public long pending() {
        return timer.pendingTimeouts();
    }

    @Override
    public String version() {
        String netty = HashedWheelTimer.class.getPackage().getImplementationVersion();
        return "Netty " + netty + " on Java " + System.getProperty("java.version");
    }
}
