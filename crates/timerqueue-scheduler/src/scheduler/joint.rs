//! Puts and ends of runs in transactions of the user's, on the file of the store.

use std::sync::atomic::Ordering;

use rusqlite::Transaction;

use super::put::{Put, placed_of};
#[cfg(doc)]
use crate::Outcome;
use crate::engine::{Core, Run, wrong_answer};
use crate::store::{Applied, Error, Op, Placed};

impl Put<'_> {
    /// Puts the job in a transaction of your own on the file of the store: the job is there if the
    /// transaction commits, and never without it. Blocks as the transaction does. The scheduler
    /// looks when the transaction has ended, also if it is not told.
    ///
    /// Begin the transaction as `Immediate`. Do not wait for another answer of the scheduler during
    /// it: the store waits for its end.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the scheduler's store is on no file or another one, if `synchronous` of
    /// the connection is below `FULL`, and all failures of the file; and the errors of
    /// [`send`](Self::send). After an error the transaction is as before.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_scheduler::Scheduler;
    /// use timerqueue_scheduler::rusqlite::{Connection, TransactionBehavior};
    ///
    /// # let folder = std::env::temp_dir().join(format!("timerqueue-in-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("shop.db");
    /// let scheduler = Scheduler::open(&path).handler("mail", |order: u32, _| println!("mail for {order}")).start()?;
    /// let mut shop = Connection::open(&path)?;
    /// shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)")?;
    ///
    /// let sale = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// sale.execute("INSERT INTO orders (id) VALUES (17)", [])?;
    /// let placed = scheduler.put_to("mail", &17).key("mail/17").send_in(&sale)?;
    /// assert!(!placed.is_refused());
    /// sale.commit()?; // the order and the mail, or neither
    /// # drop(scheduler);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send_in(self, transaction: &Transaction<'_>) -> Result<Placed, Error> {
        let core = self.core;
        placed_of(apply_in(core, transaction, self.op(core)?)?)
    }
}

impl Run {
    /// Ends the job as done, in a transaction of your own on the file of the store. What the
    /// handler writes in the same transaction happens once: a run that is repeated after a crash
    /// finds that it was not written, and a run that is no longer the job's is refused here.
    ///
    /// Commit the transaction, and return [`Outcome::Done`] or `()`. If the commit fails, return
    /// its error: the attempt has failed. What a handler returns after the commit changes nothing.
    ///
    /// Begin the transaction as `Immediate`.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if the run is not the job's any more: roll back.
    /// [`Error::Store`] as for [`Put::send_in`].
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_scheduler::{Run, Scheduler};
    /// use timerqueue_scheduler::rusqlite::{Connection, TransactionBehavior};
    ///
    /// # let folder = std::env::temp_dir().join(format!("timerqueue-done-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("shop.db");
    /// # let file = path.clone();
    /// let book = move |amount: i64, run: &Run| -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut shop = Connection::open(&file)?;
    ///     let booking = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
    ///     booking.execute("INSERT INTO bookings (amount) VALUES (?1)", [amount])?;
    ///     run.done_in(&booking)?;
    ///     Ok(booking.commit()?) // the booking and the end of the job, or neither
    /// };
    /// let scheduler = Scheduler::open(&path).handler("book", book).start()?;
    /// # let shop = Connection::open(&path)?;
    /// # shop.execute_batch("CREATE TABLE bookings (amount INTEGER)")?;
    /// let _ = scheduler.put_to("book", &250).send().wait()?;
    /// # let report = scheduler.close(std::time::Duration::from_secs(9)).wait()?;
    /// # drop(scheduler);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn done_in(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let (core, run) = (&self.inner.core, &self.inner);
        match apply_in(core, transaction, core.done(run))? {
            Applied::Held(true) => {
                run.settled.store(true, Ordering::Release);
                Ok(())
            }
            _ => Err(Error::NotHeld),
        }
    }
}

fn apply_in(core: &Core, transaction: &Transaction<'_>, op: Op) -> Result<Applied, Error> {
    core.store.apply_in(transaction, vec![op])?.into_iter().next().ok_or_else(wrong_answer)
}
