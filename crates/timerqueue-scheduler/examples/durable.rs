//! Jobs that survive: one file, and no server. Run it twice: the second time finds the jobs of the
//! first.
//!
//! `cargo run -p timerqueue-scheduler --features sqlite --example durable -- jobs.db`. Without a
//! name the file is a new one in the folder for temporary files, and the program restarts within
//! itself.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use timerqueue_scheduler::rusqlite::{Connection, TransactionBehavior};
use timerqueue_scheduler::{Clash, Run, Scheduler};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given = std::env::args().nth(1).filter(|name| !name.starts_with('-')).map(PathBuf::from);
    let folder = std::env::temp_dir().join(format!("timerqueue-durable-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = given.unwrap_or_else(|| folder.join("jobs.db"));

    // A process that puts and ends. It has no handler: other processes may.
    let front = Scheduler::open(&path).start()?;
    let reminder = front.put_to("remind", "stretch").key("remind/1").due(Duration::from_millis(200));
    println!("put: {:?}", reminder.clash(Clash::Keep).send().wait()?);
    // An order and its mail, in one commit.
    let mut shop = Connection::open(&path)?;
    shop.execute_batch("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)")?;
    let sale = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    sale.execute("INSERT INTO orders (item) VALUES ('lamp')", [])?;
    let order = sale.last_insert_rowid();
    let placed = front.put_to("mail", &order).key(&format!("mail/{order}")).send_in(&sale)?;
    sale.commit()?;
    println!("order {order} and its mail: {placed:?}");
    drop(front);

    // A process that runs jobs: after a restart, or beside the first.
    let (send, ran) = mpsc::channel();
    let (reminded, mailed) = (send.clone(), send);
    let worker = Scheduler::open(&path)
        .handler("remind", move |what: String, run: &Run| {
            println!("{}: {what}", run.key());
            _ = reminded.send(());
        })
        .handler("mail", move |order: i64, run: &Run| {
            println!("{}: mail for order {order}, attempt {}", run.key(), run.attempt());
            _ = mailed.send(());
        })
        .start()?;
    for _ in 0..2 {
        ran.recv_timeout(Duration::from_secs(30))?;
    }
    let report = worker.close(Duration::from_secs(5)).wait()?;
    assert!(report.is_drained());
    drop((worker, shop));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
