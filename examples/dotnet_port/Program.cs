// A poller with System.Threading.Timer. main.rs is its twin, line by line.
using System;
using System.Threading;
using System.Threading.Tasks;

class Poller : IAsyncDisposable
{
    int polls;
    readonly Timer timer;

    public Poller() =>
        timer = new Timer(Poll, null, dueTime: TimeSpan.FromMilliseconds(100), period: TimeSpan.FromMilliseconds(20));

    void Poll(object? state)
    {
        Console.WriteLine($"poll {Interlocked.Increment(ref polls)}");
        if (Volatile.Read(ref polls) == 5)
            timer.Change(TimeSpan.FromMilliseconds(50), Timeout.InfiniteTimeSpan);   // one more, and then no more
    }

    public int Polls => Volatile.Read(ref polls);

    public ValueTask DisposeAsync() => timer.DisposeAsync();    // waits for a callback that runs
}

static class Program
{
    static async Task Main()
    {
        await using var poller = new Poller();
        using var limit = new CancellationTokenSource(TimeSpan.FromSeconds(1));
        using var registration = limit.Token.Register(() => Console.WriteLine("time is up"));
        try { await Task.Delay(Timeout.Infinite, limit.Token); }
        catch (OperationCanceledException) { }
        Console.WriteLine($"{poller.Polls} polls");
    }
}
