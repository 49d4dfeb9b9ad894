//! Transactions of the user's on the file of the store.

use std::time::Duration;

use timerqueue_scheduler::rusqlite::{Connection, TransactionBehavior};
use timerqueue_scheduler::store::Fault;
use timerqueue_scheduler::{Cancel, Change, Error, Handler, Retry, Run, Scheduler};

use crate::support::{Folder, Log, until};

#[test]
fn k5_a_put_in_a_transaction_is_there_with_it_and_is_seen_without_a_word() {
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = folder.scheduler(&log);
    let mut shop = Connection::open(folder.file()).unwrap();
    shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)").unwrap();
    for (key, commits) in [("rolled back", false), ("committed", true)] {
        let sale = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        sale.execute("INSERT INTO orders DEFAULT VALUES", []).unwrap();
        assert!(!scheduler.put_to("log", &()).key(key).send_in(&sale).unwrap().is_refused());
        assert!(scheduler.put_to("log", &()).key(key).send_in(&sale).unwrap().is_refused(), "the key is taken");
        assert!(scheduler.get(key).wait().unwrap().is_none(), "not yet");
        if commits { sale.commit().unwrap() } else { sale.rollback().unwrap() }
    }
    until(|| log.keys().len() == 1);
    let _ = scheduler.put_to("log", &()).key("after").send().wait().unwrap();
    until(|| log.keys().len() == 2);
    assert_eq!(log.keys(), ["after", "committed"]);
}

#[test]
fn k5_a_transaction_on_another_file_or_with_less_safety_is_refused() {
    let folder = Folder::new();
    let scheduler = folder.scheduler(&Log::default());
    let mut other = Connection::open_in_memory().unwrap();
    let transaction = other.transaction().unwrap();
    let error = scheduler.put_to("log", &()).send_in(&transaction).unwrap_err();
    assert!(matches!(error, Error::Store { fault: Fault::Other, .. }), "{error}");
    let mut fast = Connection::open(folder.file()).unwrap();
    fast.execute_batch("PRAGMA synchronous = NORMAL").unwrap();
    let transaction = fast.transaction().unwrap();
    assert!(scheduler.put_to("log", &()).send_in(&transaction).is_err());
    let memory = Scheduler::builder().handler("log", |_: (), _: &Run| {}).start().unwrap();
    assert!(memory.put_to("log", &()).send_in(&transaction).is_err());
}

#[test]
fn k5_a_cancel_and_a_move_are_those_of_the_transaction() {
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = folder.scheduler(&log);
    let mut shop = Connection::open(folder.file()).unwrap();
    let hour = Duration::from_secs(3_600);
    for key in ["a", "b"] {
        let _ = scheduler.put_to("log", &()).key(key).due(hour).send().wait().unwrap();
    }
    for commits in [false, true] {
        let payment = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        assert_eq!(scheduler.cancel_in("a", &payment), Ok(Cancel::Cancelled));
        assert_eq!(scheduler.cancel_in("a", &payment), Ok(Cancel::Absent));
        assert_eq!(scheduler.move_in("b", Duration::ZERO, &payment), Ok(Change::Changed));
        assert_eq!(scheduler.move_in("a", hour, &payment), Ok(Change::Absent));
        assert!(matches!(scheduler.cancel_in("", &payment), Err(Error::Invalid(_))));
        if commits {
            payment.commit().unwrap()
        } else {
            payment.rollback().unwrap()
        }
        assert_eq!(scheduler.get("a").wait().unwrap().is_none(), commits);
    }
    until(|| log.keys() == ["b"]);
}

#[test]
fn k5_a_cancel_in_a_transaction_reaches_the_run() {
    let folder = Folder::new();
    let (send, begun) = std::sync::mpsc::channel();
    let handler = move |_: (), run: &Run| {
        send.send(()).unwrap();
        run.token().wait();
    };
    let scheduler = Scheduler::open(folder.file()).handler("hold", handler).start().unwrap();
    let _ = scheduler.put_to("hold", &()).key("a").send().wait().unwrap();
    begun.recv().unwrap();
    let mut shop = Connection::open(folder.file()).unwrap();
    let payment = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    assert_eq!(scheduler.cancel_in("a", &payment), Ok(Cancel::Running));
    payment.commit().unwrap();
    until(|| scheduler.get("a").wait().unwrap().is_none());
}

/// The effect and the end of the job are one commit, whatever the handler returns or does after it.
#[test]
fn k6_a_run_that_settles_in_its_transaction_has_its_effect_once() {
    let folder = Folder::new();
    Connection::open(folder.file()).unwrap().execute_batch("CREATE TABLE effects (attempt INTEGER)").unwrap();
    let file = folder.file();
    let handler = move |_: (), run: &Run| -> Result<(), Box<dyn std::error::Error>> {
        let mut db = Connection::open(&file)?;
        let effect = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        effect.execute("INSERT INTO effects VALUES (?1)", [run.attempt()])?;
        run.done_in(&effect)?;
        match run.attempt() {
            1 => Err("before the commit".into()), // rolled back
            _ => {
                effect.commit()?;
                Err("after the commit".into())
            }
        }
    };
    let retry = Retry::new(5).first(Duration::from_millis(1));
    let scheduler = Scheduler::open(folder.file()).register(Handler::new("h", handler).retry(retry)).start().unwrap();
    let _ = scheduler.put_to("h", &()).key("a").send().wait().unwrap();
    until(|| scheduler.get("a").wait().unwrap().is_none());
    std::thread::sleep(Duration::from_millis(20));
    let db = Connection::open(folder.file()).unwrap();
    let effects: (i64, i64) =
        db.query_row("SELECT count(*), max(attempt) FROM effects", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(effects, (1, 2));
}

/// A second settle finds that the run is not the job's any more, and its transaction has no effect.
#[test]
fn k6_a_run_that_is_not_held_any_more_is_refused() {
    let folder = Folder::new();
    let (send, answers) = std::sync::mpsc::channel();
    let file = folder.file();
    let handler = move |_: (), run: &Run| {
        for _ in 0..2 {
            let mut db = Connection::open(&file).unwrap();
            let effect = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            let done = run.done_in(&effect);
            send.send(done.clone()).unwrap();
            if done.is_ok() {
                effect.commit().unwrap();
            }
        }
    };
    let scheduler = Scheduler::open(folder.file()).handler("h", handler).start().unwrap();
    let _ = scheduler.put_to("h", &()).key("a").send().wait().unwrap();
    let answers: Vec<_> = answers.iter().take(2).collect();
    assert_eq!(answers, [Ok(()), Err(Error::NotHeld)]);
    until(|| scheduler.stats().wait().unwrap().done == 1);
    assert_eq!(scheduler.stats().wait().unwrap().lost, 0, "settled by the handler itself");
}

#[test]
fn k7_a_foreign_key_of_the_users_keeps_no_job_from_its_end() {
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = folder.scheduler(&log);
    let mut shop = Connection::open(folder.file()).unwrap();
    // The key is no parent that a foreign key may have: each removal of a job would be an error.
    let tables = "CREATE TABLE orders (job INTEGER NOT NULL REFERENCES timerqueue_jobs (id));
                  CREATE TABLE notes (job TEXT REFERENCES timerqueue_jobs (key))";
    shop.execute_batch(tables).unwrap();
    let sale = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let placed = scheduler.put_to("log", &()).key("a").send_in(&sale).unwrap();
    let id = i64::try_from(placed.added().unwrap().0).unwrap();
    sale.execute("INSERT INTO orders VALUES (?1)", [id]).unwrap();
    sale.commit().unwrap();
    until(|| scheduler.get("a").wait().unwrap().is_none());
    let order: i64 = shop.query_row("SELECT job FROM orders", [], |row| row.get(0)).unwrap();
    assert_eq!((order, log.all()), (id, vec![("a".to_owned(), 1)]));
}
