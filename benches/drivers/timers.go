// Go's timers on the workloads of `timerqueue-peers`.
//
// README.md beside this file says what each workload does, which parameters it takes, and what is printed. In Go,
// one-shots are time.AfterFunc, periodic timers a time.Ticker and a goroutine for each, threads are goroutines, and
// the runtime keeps its default settings.
package main

import (
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	tooLate  = 42 // exit code: the timers of a storm were not made in time
	makers   = 2
	notFired = int64(-1) << 62
	warmUp   = 2 * time.Second
	sample   = 20 * time.Millisecond
	lost     = int64(time.Minute)     // a timer not fired after this time never fires
	makeOne  = 1500 * time.Nanosecond // a generous estimate of the time to make a timer of a storm
)

var (
	args   = map[string]string{}
	random = rand.New(rand.NewSource(7))
	epoch  = time.Now()
)

// now is the monotonic clock.
func now() int64 { return int64(time.Since(epoch)) }

func number(name string, otherwise int64) int64 {
	text, given := args[name]
	if !given {
		return otherwise
	}
	value, problem := strconv.ParseInt(text, 10, 64)
	check(problem == nil, name+" is not a number")
	return value
}

func check(right bool, otherwise string) {
	if !right {
		fmt.Fprintln(os.Stderr, otherwise)
		os.Exit(1)
	}
}

func notDue() { check(false, "a timer came due that was not") }

func print(metric string, value float64) {
	fmt.Printf("{\"metric\":\"%s\",\"value\":%.3f}\n", metric, value)
}

func printQuantiles(metric string, samples []int64, unit float64) {
	check(len(samples) > 0, "no samples")
	sort.Slice(samples, func(a, b int) bool { return samples[a] < samples[b] })
	shares := args["shares"]
	if shares == "" {
		shares = "0,0.5,0.9,0.99,1"
	}
	var pairs []string
	for _, share := range strings.Split(shares, ",") {
		q, problem := strconv.ParseFloat(share, 64)
		check(problem == nil, "a share is a number")
		at := int(float64(len(samples)-1)*q + 0.5)
		pairs = append(pairs, fmt.Sprintf("[%s,%.3f]", share, float64(samples[at])/unit))
	}
	fmt.Printf("{\"metric\":\"%s\",\"quantiles\":[%s]}\n", metric, strings.Join(pairs, ","))
}

func printLate(late []int64) {
	early := 0
	for _, ns := range late {
		if ns < 0 {
			early++
		}
	}
	print("early, %", float64(early)*100/float64(len(late)))
	printQuantiles("us late", late, 1e3)
}

func usage() syscall.Rusage {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage) == nil, "the usage can be asked for")
	return usage
}

// cpu is the processor time of the process in nanoseconds.
func cpu() int64 {
	usage := usage()
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// switches is the number of times that threads of the process went to sleep.
func switches() int64 { return usage().Nvcsw }

// periodic runs tick in a goroutine of its own; first is a period at least.
func periodic(first, period time.Duration, tick func()) {
	run := func() {
		for range time.NewTicker(period).C {
			tick()
		}
	}
	if first > period {
		time.AfterFunc(first-period, run)
	} else {
		go run()
	}
}

func pendingTimers(n int64, nearest, furthest time.Duration) []*time.Timer {
	timers := make([]*time.Timer, n)
	for i := range timers {
		timers[i] = time.AfterFunc(nearest+time.Duration(random.Int63n(int64(furthest-nearest))), notDue)
	}
	return timers
}

// heartbeat is a periodic timer beside the measured timers.
func heartbeat() {
	period := time.Duration(number("heartbeat_us", 100000)) * time.Microsecond
	periodic(period, period, func() {})
}

func stopAll(timers []*time.Timer) {
	for _, timer := range timers {
		check(timer.Stop(), "a timer came due that was not")
	}
}

// W1 and W2

// measure prints the time of an operation in each of so many goroutines.
func measure(goroutines int64, operations func(goroutine, times int64)) {
	times := int64(1000)
	once := func() float64 {
		var ready, done sync.WaitGroup
		start := make(chan struct{})
		took := make([]int64, goroutines)
		ready.Add(int(goroutines))
		done.Add(int(goroutines))
		for g := int64(0); g < goroutines; g++ {
			go func(g int64) {
				ready.Done()
				<-start
				began := now()
				operations(g, times)
				took[g] = now() - began
				done.Done()
			}(g)
		}
		ready.Wait()
		close(start)
		done.Wait()
		sum := int64(0)
		for _, ns := range took {
			sum += ns
		}
		return float64(sum) / float64(goroutines) / float64(times)
	}
	for start := now(); now()-start < int64(warmUp); {
		times = int64(float64(sample) / once())
		if times < 1000 {
			times = 1000
		}
	}
	for i := number("samples", 9); i > 0; i-- {
		print("ns per operation", once())
	}
}

func createAndCancel() {
	others := pendingTimers(number("pending", 0), 21*time.Second, 60*time.Second)
	heartbeat()
	threads := number("threads", 1)
	rings := make([][]*time.Timer, threads)
	for g := range rings {
		rings[g] = pendingTimers(number("behind", 0), 30*time.Second, 30*time.Second+1)
	}
	at := make([]int, threads)
	measure(threads, func(g, times int64) {
		ring, next := rings[g], at[g]
		for i := int64(0); i < times; i++ {
			timer := time.AfterFunc(30*time.Second, notDue)
			if len(ring) > 0 {
				timer, ring[next] = ring[next], timer
				if next++; next == len(ring) {
					next = 0
				}
			}
			check(timer.Stop(), "it was pending")
		}
		at[g] = next
	})
	stopAll(others)
	for _, ring := range rings {
		stopAll(ring)
	}
}

func change() {
	others := pendingTimers(number("pending", 0), 21*time.Second, 60*time.Second)
	heartbeat()
	threads := number("threads", 1)
	afters := []time.Duration{30 * time.Second, 30 * time.Second}
	if number("to_and_fro", 0) != 0 {
		afters[1] = 20 * time.Second
	}
	timers := pendingTimers(threads, 30*time.Second, 30*time.Second+1)
	measure(threads, func(g, times int64) {
		timer := timers[g]
		for i := int64(0); i < times; i++ {
			check(timer.Reset(afters[i&1]), "it was pending")
		}
	})
	stopAll(timers)
	stopAll(others)
}

// W3

func storm(n, span, patience int64, measured bool) {
	late := make([]int64, n)
	after := make([]time.Duration, n)
	for i := range late {
		late[i] = notFired
		after[i] = time.Duration(random.Int63n(span + 1))
	}
	used := cpu()
	firstDue := now() + int64(100*time.Millisecond) + int64(makeOne)*patience*n
	var done sync.WaitGroup
	done.Add(makers)
	for maker := int64(0); maker < makers; maker++ {
		go func(maker int64) {
			for i := maker; i < n; i += makers {
				place, due := &late[i], firstDue+int64(after[i])
				time.AfterFunc(time.Duration(due-now()), func() {
					at := now()
					check(atomic.SwapInt64(place, at-due) == notFired, "a timer fires twice")
				})
			}
			done.Done()
		}(maker)
	}
	done.Wait()
	used = cpu() - used
	if now() >= firstDue {
		os.Exit(tooLate)
	}
	if measured {
		print("CPU ns to make one", float64(used)/float64(n))
	}
	used = cpu()
	slept := switches()
	time.Sleep(time.Duration(firstDue + span - now()))
	lastDue, lastFired := int64(0), int64(0)
	for i := range late {
		for atomic.LoadInt64(&late[i]) == notFired {
			check(now() < firstDue+span+lost, "a timer does not fire")
			time.Sleep(time.Millisecond)
		}
		if due := int64(after[i]); due > lastDue {
			lastDue = due
		}
		if fired := int64(after[i]) + late[i]; fired > lastFired {
			lastFired = fired
		}
	}
	time.Sleep(30 * time.Millisecond)
	if measured {
		print("CPU ns to fire one", float64(cpu()-used)/float64(n))
		print("thread wake-ups per 1,000", float64(switches()-slept)*1e3/float64(n))
		print("last one ran after the last was due, ms", float64(lastFired-lastDue)/1e6)
		printLate(late)
	}
}

func storms() {
	storm(20000, int64(100*time.Millisecond), 10, false) // after the first growth of the heap
	storm(number("n", 10000), number("span_us", 1000000)*1000, number("patience", 1), true)
}

// W4

func lateBy(wait time.Duration) int64 {
	late := make(chan int64)
	due := now() + int64(wait)
	time.AfterFunc(wait, func() { late <- now() - due })
	return <-late
}

func lateness() {
	others := pendingTimers(number("pending", 0), 600*time.Second, 900*time.Second)
	count := number("periodic", 0)
	ticks := int64(0)
	for i := int64(0); i < count; i++ {
		period := 100 * time.Millisecond
		periodic(period+period*time.Duration(i)/time.Duration(count), period, func() { atomic.AddInt64(&ticks, 1) })
	}
	for start := now(); now()-start < int64(warmUp); {
		lateBy(100 * time.Microsecond)
	}
	span := number("span_ms", 0) * 1e6
	samples := number("samples", 80)
	if span > 0 {
		samples = 1 << 30
	}
	var late []int64
	ticked, slept, used, began := atomic.LoadInt64(&ticks), switches(), cpu(), now()
	for int64(len(late)) < samples && (span == 0 || now()-began < span) {
		late = append(late, lateBy(time.Millisecond+time.Duration(random.Int63n(int64(9*time.Millisecond)))))
	}
	seconds := float64(now()-began) / 1e9
	print("CPU ms per second", float64(cpu()-used)/1e6/seconds)
	print("thread wake-ups per second", float64(switches()-slept)/seconds)
	if count > 0 {
		due := float64(count) * 10 * seconds
		print("ticks lost, %", 100-float64(atomic.LoadInt64(&ticks)-ticked)*100/due)
	}
	stopAll(others)
	printLate(late)
}

// W6

func idle() {
	others := pendingTimers(number("pending", 100000), time.Minute, 10*time.Minute)
	time.Sleep(3 * time.Second) // let the runtime's start be over
	slept, used := switches(), cpu()
	time.Sleep(10 * time.Second)
	print("thread wake-ups in 10 s", float64(switches()-slept))
	print("CPU ms in 10 s", float64(cpu()-used)/1e6)
	stopAll(others)
}

// W7 and W8

// ticks is when a timer has ticked.
type ticks struct {
	times [1 << 14]int64
	count int64
}

func (t *ticks) tick() {
	t.times[t.count] = now()
	atomic.AddInt64(&t.count, 1)
}

func blocked() {
	others, blockers := number("others", 16), number("blockers", 64)
	period := number("period_us", 10000) * 1000
	all := make([]ticks, others)
	for i := range all {
		periodic(time.Duration(period+period*int64(i)/others), time.Duration(period), all[i].tick)
	}
	time.Sleep(warmUp)
	from := now()
	due := from + int64(500*time.Millisecond)
	end := due + number("block_ms", 2000)*int64(time.Millisecond)
	var running, most, done int64
	for i := int64(0); i < blockers; i++ {
		time.AfterFunc(time.Duration(due-now()), func() {
			blocked := atomic.AddInt64(&running, 1)
			for seen := atomic.LoadInt64(&most); seen < blocked; seen = atomic.LoadInt64(&most) {
				atomic.CompareAndSwapInt64(&most, seen, blocked)
			}
			// Blocks the thread, not only the goroutine.
			for left := end - now(); left > 0; left = end - now() {
				rest := syscall.NsecToTimespec(left)
				syscall.Nanosleep(&rest, nil)
			}
			atomic.AddInt64(&running, -1)
			atomic.AddInt64(&done, 1)
		})
	}
	time.Sleep(time.Duration(end-now()) + 300*time.Millisecond)
	to := now()
	ticked := int64(0)
	var excess []int64
	for i := range all {
		count := atomic.LoadInt64(&all[i].count)
		check(count > 10, "it has ticked before")
		for k := int64(1); k <= count; k++ {
			next := to
			if k < count {
				next = all[i].times[k]
			}
			if next > from {
				if k < count {
					ticked++
				}
				gap := next - all[i].times[k-1]
				above := gap - period
				if above < 0 {
					above = 0
				}
				// A gap is weighted by its length; otherwise the burst of ticks after a long gap would hide the gap.
				for rest := gap; rest >= 100000; rest -= 100000 {
					excess = append(excess, above)
				}
			}
		}
	}
	for i := 0; atomic.LoadInt64(&done) < blockers; i++ {
		check(i < 2000, "not all blocked callbacks run")
		time.Sleep(10 * time.Millisecond)
	}
	print("ticks lost, %", 100-float64(ticked*100*period)/float64(others*(to-from)))
	print("blocked at once", float64(most))
	printQuantiles("excess gap, ms", excess, 1e6)
}

func drift() {
	period, expected := number("period_us", 10000)*1000, number("ticks", 1000)
	time.Sleep(500 * time.Millisecond)
	var ticks ticks
	first, start := int64(100*time.Millisecond), now()
	periodic(time.Duration(first), time.Duration(period), ticks.tick)
	time.Sleep(time.Duration(start + first + period*expected - period/2 - now()))
	count := atomic.LoadInt64(&ticks.count)
	check(count > expected/2, fmt.Sprint("ticks: ", count))
	late := make([]int64, count)
	var off []int64
	for i := range late {
		late[i] = ticks.times[i] - ticks.times[0] - period*int64(i)
		if i > 0 {
			gap := ticks.times[i] - ticks.times[i-1] - period
			if gap < 0 {
				gap = -gap
			}
			off = append(off, gap)
		}
	}
	tenth := count / 10
	drift := median(late[count-tenth:]) - median(late[:tenth])
	print("drift, us", float64(drift)/1e3)
	print("ticks lost", float64(expected-count))
	printQuantiles("us of jitter", off, 1e3)
}

func median(samples []int64) int64 {
	sorted := append([]int64(nil), samples...)
	sort.Slice(sorted, func(a, b int) bool { return sorted[a] < sorted[b] })
	return sorted[len(sorted)/2]
}

func main() {
	workloads := map[string]func(){
		"version": func() { fmt.Printf("{\"version\":\"Go %s\"}\n", strings.TrimPrefix(runtime.Version(), "go")) },
		"W1":      createAndCancel,
		"W2":      change,
		"W3":      storms,
		"W4":      lateness,
		"W6":      idle,
		"W7":      blocked,
		"W8":      drift,
	}
	check(len(os.Args) > 2 && os.Args[1] == "AfterFunc" && workloads[os.Args[2]] != nil,
		"AfterFunc WORKLOAD [name=value]...; see README.md")
	for _, word := range os.Args[3:] {
		name, value, _ := strings.Cut(word, "=")
		args[name] = value
	}
	workloads[os.Args[2]]()
}
