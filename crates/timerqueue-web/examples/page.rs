//! A scheduler with some work to do, and its page at <http://127.0.0.1:8787/>.
//!
//! ```sh
//! cargo run -p timerqueue-web --features server --example page -- [address] [token]
//! ```

use std::net::TcpListener;
use std::time::Duration;

use timerqueue::CancellationTokenSource;
use timerqueue_scheduler::{Handler, Retry, Run, Schedule, Scheduler};
use timerqueue_web::{Page, serve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let flaky = |number: u64, run: &Run| match number % 7 {
        3 => Err("the printer is on fire"),
        5 if run.attempt() < 3 => Err("connection refused"),
        _ => Ok(()),
    };
    let scheduler = Scheduler::builder()
        .handler("mail", |_: String, _: &Run| std::thread::sleep(Duration::from_millis(20)))
        .register(
            Handler::new("report", flaky)
                .retry(Retry::new(4).first(Duration::from_secs(5)).longest(Duration::from_secs(60))),
        )
        .handler("backup", |_: (), _: &Run| std::thread::sleep(Duration::from_secs(8)))
        .start()?;
    for number in 0..2_000 {
        let due = Duration::from_millis(number * 1_700);
        let _ = scheduler
            .put_to("mail", &format!("user{number}@example.com"))
            .key(&format!("mail/{number}"))
            .due(due)
            .send()
            .wait()?;
        let _ = scheduler.put_to("report", &number).key(&format!("report/{number}")).due(3 * due).send().wait()?;
    }
    let minutely = Schedule::every(Duration::from_secs(60)).build()?;
    let _ = scheduler.put_to("backup", &()).key("backup/minutely").schedule(minutely).send().wait()?;
    let nightly = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build()?;
    let _ = scheduler.put_to("backup", &()).key("backup/nightly").schedule(nightly).send().wait()?;

    let mut arguments = std::env::args().skip(1);
    // As a test it takes any port, and ends at once.
    let (default, stop) = match cfg!(test) {
        true => ("127.0.0.1:0", CancellationTokenSource::after(Duration::from_millis(50))),
        false => ("127.0.0.1:8787", CancellationTokenSource::new()),
    };
    let address = arguments.next().filter(|_| !cfg!(test)).unwrap_or_else(|| default.to_owned());
    let mut page = Page::builder(&scheduler);
    if let Some(token) = arguments.next().filter(|_| !cfg!(test)) {
        page = page.token(&token);
    }
    let listener = TcpListener::bind(address)?;
    println!("http://{}/", listener.local_addr()?);
    serve(&page.build()?, listener, &stop.token())?;
    Ok(())
}
