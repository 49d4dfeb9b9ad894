//! Operations in transactions of the user's, on the file or the server of the store.
//!
//! Ground rules. An operation is what it is elsewhere: a value for the store. The transaction says
//! how it gets there and how the answer comes back ([`Joint`]); on a server it is a statement,
//! which any driver can run ([`Sql`]).

#[cfg(feature = "postgres")]
use std::future::Future;
#[cfg(feature = "postgres")]
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use timerqueue::Due;

use super::put::Put;
use super::{Scheduler, cancelled, changed, key_op, placed};
#[cfg(doc)]
use crate::Outcome;
#[cfg(feature = "postgres")]
use crate::debug::debug_of;
use crate::engine::{Core, Run, only, picked};
#[cfg(feature = "postgres")]
use crate::store::Statement;
use crate::store::{Applied, Cancel, Change, Error, Mutation, Op, Placed};

mod sealed {
    pub trait Sealed {}
}

/// A transaction of your own, in which a job is put ([`Put::send_in`]), cancelled
/// ([`Scheduler::cancel_in`]) or moved ([`Scheduler::move_in`]), or a run is ended
/// ([`Run::done_in`]): what you write in it happens together with that, or neither does.
///
/// | store | transaction | answer |
/// |---|---|---|
/// | a file | `&rusqlite::Transaction`, begun as `Immediate` | at once; the call blocks as the transaction does |
/// | a server | `&tokio_postgres::Transaction` on the same database, also of a pool | a future, which takes one round trip |
/// | a server, by another driver | | a statement: [`Sql`] |
///
/// Nobody is told before the commit. Then a scheduler looks, on this store or another one.
///
/// The transaction ends as it always does: by your commit or rollback; and what was done since a
/// savepoint is undone with it. After an error in a transaction on a server nothing but a rollback,
/// or one to a savepoint, is possible; one on a file is as before.
///
/// Sealed: implemented for the two.
pub trait Joint: sealed::Sealed + Sized {
    /// The answer: a `Result`, or a future of it.
    type Answer<T: Send + 'static>;

    #[doc(hidden)]
    fn join<T: Send + 'static>(self, asked: Asked<'_, T>) -> Self::Answer<T>;
}

type Reader<T> = Box<dyn FnOnce(Option<Applied>) -> Result<T, Error> + Send>;

/// An operation, and what its answer means.
#[doc(hidden)]
pub struct Asked<'a, T> {
    core: &'a Core,
    op: Result<Op, Error>,
    read: Reader<T>,
}

impl<'a, T: 'static> Asked<'a, T> {
    fn new(core: &'a Core, op: Result<Op, Error>, pick: fn(Applied) -> Option<T>) -> Self {
        Self { core, op, read: Box::new(move |applied| picked(applied, pick)) }
    }
}

#[cfg(feature = "sqlite")]
impl sealed::Sealed for &rusqlite::Transaction<'_> {}

#[cfg(feature = "sqlite")]
impl Joint for &rusqlite::Transaction<'_> {
    type Answer<T: Send + 'static> = Result<T, Error>;

    fn join<T: Send + 'static>(self, asked: Asked<'_, T>) -> Result<T, Error> {
        let applied = asked.core.store.apply_in(self, vec![asked.op?])?;
        (asked.read)(applied.into_iter().next())
    }
}

#[cfg(feature = "postgres")]
impl sealed::Sealed for &tokio_postgres::Transaction<'_> {}

#[cfg(feature = "postgres")]
impl<'t> Joint for &'t tokio_postgres::Transaction<'_> {
    type Answer<T: Send + 'static> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 't>>;

    fn join<T: Send + 'static>(self, asked: Asked<'_, T>) -> Self::Answer<T> {
        let sql = Sql::of(asked);
        Box::pin(async move {
            let Sql { statement, read } = sql?;
            let answer = statement.run(self).await?;
            Sql { statement, read }.answer(&answer)
        })
    }
}

/// An operation as a statement, for a transaction of your own on the server of the store, by any
/// driver: sqlx, diesel, the blocking `postgres` and others. Those of tokio-postgres need none: see
/// [`Joint`].
///
/// Each parameter is a text or null. The answer is one row with one text, for
/// [`answer`](Self::answer). Run the statement at once: a time from now counts from its execution,
/// while a schedule and a handler's run were looked at when this was made.
///
/// A run that is not the job's any more is refused by the server with the code (`SQLSTATE`)
/// `TQ001`: by the statement, or by the commit.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{Error, Placed, Sql};
///
/// // With sqlx 0.9: `let placed = send(&mut transaction, scheduler.put(&job).sql()?).await?;`
/// # #[cfg(any())]
/// async fn send<T>(transaction: &mut sqlx::PgConnection, sql: Sql<T>) -> Result<T, Box<dyn std::error::Error>> {
///     let text = sqlx::AssertSqlSafe(sql.text().to_owned());
///     let values = sql.parameters().to_vec().into_iter();
///     let query = values.fold(sqlx::query_scalar(text), |query, value| query.bind(value));
///     let answer: String = query.fetch_one(transaction).await?;
///     Ok(sql.answer(&answer)?)
/// }
/// # fn f(_: Result<Sql<Placed>, Error>) {}
/// ```
#[cfg(feature = "postgres")]
#[must_use = "the statement is for a transaction of yours"]
pub struct Sql<T> {
    statement: Statement,
    read: Reader<T>,
}

#[cfg(feature = "postgres")]
impl<T> Sql<T> {
    fn of(asked: Asked<'_, T>) -> Result<Self, Error> {
        Ok(Self { statement: asked.core.store.statement(asked.op?)?, read: asked.read })
    }

    /// The statement, with `$1` and so on for the parameters.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.statement.text
    }

    /// The values of the parameters.
    #[must_use]
    pub fn parameters(&self) -> &[Option<String>] {
        &self.statement.parameters
    }

    /// What the text in the row of the answer means.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if it is not the answer to this statement.
    pub fn answer(self, text: &str) -> Result<T, Error> {
        (self.read)(Statement::applied(text))
    }
}

#[cfg(feature = "postgres")]
debug_of!(Sql<T> of T, |sql| text: sql.statement.text);

impl<'a> Put<'a> {
    /// Puts the job in a transaction of your own on the file or the server of the store: the job is
    /// there if the transaction commits, and never without it.
    ///
    /// On a file the call blocks as the transaction does. The scheduler looks when the transaction
    /// has ended, also if it is not told. Begin the transaction as `Immediate`. Do not wait for
    /// another answer of the scheduler during it: the store waits for its end.
    ///
    /// On a server the answer is a future. A recurring job waits for its first occurrence from the
    /// first look on, which follows the commit. The key of the job is locked until the transaction
    /// ends: an operation that names it waits. Another job that stays ([`Placed::Kept`],
    /// [`Placed::Refused`]) is not held: it may run and leave before the transaction ends, and does
    /// not see what that writes. From `REPEATABLE READ` on, the answer is that of the snapshot of
    /// the transaction: a job that has left since has its key, and a key that a job keeps which is
    /// done since ([`unique_for`](Self::unique_for)) is free. A key that was taken since fails the
    /// transaction, which is to be run again. A two-phase commit is refused by the server at its
    /// `PREPARE TRANSACTION` if a node is to be told.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the store of the scheduler is on another file, or not where the
    /// transaction is, and all failures of the file or the server; on a file if `synchronous` of
    /// the connection is below `FULL`, and on a server for [`Clash::Update`](crate::Clash::Update)
    /// of a recurring job; and the errors of [`send`](Self::send). That clash compares schedules
    /// and goes on from the last occurrence, by rules that the nodes have and the server has not:
    /// state such a job by [`send`](Self::send), as a program does at its start.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(not(feature = "sqlite"))] fn main() {}
    /// # #[cfg(feature = "sqlite")] fn main() -> Result<(), Box<dyn std::error::Error>> {
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
    /// # Ok(()) }
    /// ```
    ///
    /// On a server:
    ///
    /// ```
    /// # #[cfg(feature = "postgres")] mod example {
    /// use timerqueue_scheduler::{Scheduler, tokio_postgres::Client};
    ///
    /// async fn sell(shop: &mut Client, scheduler: &Scheduler) -> Result<(), Box<dyn std::error::Error>> {
    ///     let sale = shop.transaction().await?;
    ///     sale.execute("INSERT INTO orders (id) VALUES (17)", &[]).await?;
    ///     let placed = scheduler.put_to("mail", &17).key("mail/17").send_in(&sale).await?;
    ///     assert!(!placed.is_refused());
    ///     Ok(sale.commit().await?) // the order and the mail, or neither
    /// }
    /// # }
    /// ```
    pub fn send_in<J: Joint>(self, transaction: J) -> J::Answer<Placed> {
        transaction.join(self.asked())
    }

    /// As [`send_in`](Self::send_in), as a statement for any driver.
    ///
    /// # Errors
    ///
    /// As of [`send_in`](Self::send_in).
    #[cfg(feature = "postgres")]
    pub fn sql(self) -> Result<Sql<Placed>, Error> {
        Sql::of(self.asked())
    }

    fn asked(self) -> Asked<'a, Placed> {
        let core = self.core;
        Asked::new(core, self.op(core), placed)
    }
}

impl Scheduler {
    /// Cancels in a transaction of your own on the file or the server of the store, as
    /// [`cancel`](Self::cancel) does: "paid, and the reminder is cancelled, or neither".
    ///
    /// No attempt starts once the transaction has committed. Until then the job is locked, so on a
    /// file nothing begins, and on a server this job does not.
    ///
    /// # Errors
    ///
    /// As of [`Put::send_in`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "postgres")] mod example {
    /// use timerqueue_scheduler::{Scheduler, tokio_postgres::Client};
    ///
    /// async fn pay(shop: &mut Client, scheduler: &Scheduler, order: i32) -> Result<(), Box<dyn std::error::Error>> {
    ///     let payment = shop.transaction().await?;
    ///     payment.execute("UPDATE orders SET paid = true WHERE id = $1", &[&order]).await?;
    ///     let _ = scheduler.cancel_in(&format!("reminder/{order}"), &payment).await?;
    ///     Ok(payment.commit().await?)
    /// }
    /// # }
    /// ```
    pub fn cancel_in<J: Joint>(&self, key: &str, transaction: J) -> J::Answer<Cancel> {
        transaction.join(self.asked_cancel(key))
    }

    /// As [`cancel_in`](Self::cancel_in), as a statement for any driver.
    ///
    /// # Errors
    ///
    /// As of [`Put::send_in`].
    #[cfg(feature = "postgres")]
    pub fn cancel_sql(&self, key: &str) -> Result<Sql<Cancel>, Error> {
        Sql::of(self.asked_cancel(key))
    }

    /// Moves in a transaction of your own on the file or the server of the store, as
    /// [`move_to`](Self::move_to) does.
    ///
    /// # Errors
    ///
    /// As of [`Put::send_in`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "postgres")] mod example {
    /// use std::time::Duration;
    /// use timerqueue_scheduler::{Change, Scheduler, tokio_postgres::Transaction};
    ///
    /// async fn extend(scheduler: &Scheduler, rental: &Transaction<'_>) -> Result<(), Box<dyn std::error::Error>> {
    ///     rental.execute("UPDATE rentals SET days = days + 1 WHERE id = 17", &[]).await?;
    ///     let changed = scheduler.move_in("return/17", Duration::from_secs(86_400), rental).await?;
    ///     assert_eq!(changed, Change::Changed);
    ///     Ok(())
    /// }
    /// # }
    /// ```
    pub fn move_in<J: Joint>(&self, key: &str, due: impl Into<Due>, transaction: J) -> J::Answer<Change> {
        transaction.join(self.asked_move(key, due.into()))
    }

    /// As [`move_in`](Self::move_in), as a statement for any driver.
    ///
    /// # Errors
    ///
    /// As of [`Put::send_in`].
    #[cfg(feature = "postgres")]
    pub fn move_sql(&self, key: &str, due: impl Into<Due>) -> Result<Sql<Change>, Error> {
        Sql::of(self.asked_move(key, due.into()))
    }

    fn asked_cancel(&self, key: &str) -> Asked<'_, Cancel> {
        Asked::new(&self.core, Ok(key_op(key, Mutation::Cancel)), cancelled)
    }

    fn asked_move(&self, key: &str, due: Due) -> Asked<'_, Change> {
        let op = self.core.when(due).map(|when| key_op(key, Mutation::Move(when)));
        Asked::new(&self.core, op.map_err(Error::from), changed)
    }
}

impl Run {
    /// Ends the job as done, in a transaction of your own on the file or the server of the store.
    /// What the handler writes in the same transaction happens once: a run that is repeated after a
    /// crash finds that it was not written, and a run that is no longer the job's is refused.
    ///
    /// Commit the transaction, and return [`Outcome::Done`] or `()`. If the commit fails, return
    /// its error: the attempt has failed, unless the transaction was committed and only the answer
    /// was lost. What a handler returns after the commit changes nothing.
    ///
    /// On a file begin the transaction as `Immediate`. On a server the run is looked at here and at
    /// the commit, which fails if the run is not the job's any more by then (code `TQ001`). Until
    /// the commit the transaction holds no lock on the job, however long it stays open.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if the run is not the job's any more: roll back.
    /// [`Error::Store`] as for [`Put::send_in`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(not(feature = "sqlite"))] fn main() {}
    /// # #[cfg(feature = "sqlite")] fn main() -> Result<(), Box<dyn std::error::Error>> {
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
    /// # Ok(()) }
    /// ```
    ///
    /// On a server:
    ///
    /// ```
    /// # #[cfg(feature = "postgres")] mod example {
    /// use timerqueue_scheduler::{Run, tokio_postgres::Client};
    ///
    /// async fn book(shop: &mut Client, amount: i64, run: &Run) -> Result<(), Box<dyn std::error::Error>> {
    ///     let booking = shop.transaction().await?;
    ///     booking.execute("INSERT INTO bookings (amount) VALUES ($1)", &[&amount]).await?;
    ///     run.done_in(&booking).await?;
    ///     Ok(booking.commit().await?) // the booking and the end of the job, or neither
    /// }
    /// # }
    /// ```
    pub fn done_in<J: Joint>(&self, transaction: J) -> J::Answer<()> {
        transaction.join(self.asked())
    }

    /// As [`done_in`](Self::done_in), as a statement for any driver.
    ///
    /// # Errors
    ///
    /// As of [`Put::send_in`].
    #[cfg(feature = "postgres")]
    pub fn done_sql(&self) -> Result<Sql<()>, Error> {
        Sql::of(self.asked())
    }

    /// The run, for the SQL function `timerqueue.done` in a transaction of another program's, such
    /// as a command that the handler starts: `SELECT timerqueue.done('…')` is
    /// [`done_in`](Self::done_in) there. Another attempt has another fence.
    #[cfg(feature = "postgres")]
    #[must_use]
    pub fn fence(&self) -> String {
        self.inner.job.held.fence()
    }

    fn asked(&self) -> Asked<'_, ()> {
        let (core, inner) = (&self.inner.core, Arc::clone(&self.inner));
        let read = move |applied| match picked(applied, only!(Applied::Held(held) => held))? {
            true => {
                inner.settled.store(true, Ordering::Release);
                Ok(())
            }
            false => Err(Error::NotHeld),
        };
        Asked { core, op: Ok(core.done(&self.inner)), read: Box::new(read) }
    }
}
