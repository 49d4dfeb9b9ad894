//! The questions to a store that wait for the thread which reads, and lists that are read in parts.
//!
//! Ground rules. A list takes its turns: after each part the other questions come first, so that
//! none waits for a list of a million jobs. A question whose caller waits no longer is dropped. The
//! questions of callers are bounded; those of the engine are few, and always taken.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::{Fault, JobInfo, Query, Reply, Scan, Scanned};
use crate::Error;
use crate::unwind::quietly;

/// The rows that are read at a time.
pub(super) const SECTION: usize = 512;

/// The most questions of callers that wait. Each one is a caller that waits for its answer.
const MOST: usize = 10_000;

/// A list, as far as it has been read.
pub(super) struct Listing {
    query: Query,
    found: Vec<JobInfo>,
}

impl Listing {
    pub(super) fn new(query: Query) -> Self {
        Self { query, found: Vec::new() }
    }

    /// What is left to be read, and how many jobs of that next. Zero: nothing.
    pub(super) fn rest(&self) -> (&Query, usize) {
        let left = self.query.limit.map_or(usize::MAX, |limit| limit - self.found.len());
        (&self.query, left.min(SECTION))
    }

    /// Takes in the next jobs. True: these were the last ones.
    pub(super) fn take_in(&mut self, jobs: Vec<JobInfo>) -> bool {
        let is_whole = jobs.len() == self.rest().1;
        self.found.extend(jobs);
        match self.found.last() {
            Some(last) if is_whole && self.rest().1 > 0 => self.query = std::mem::take(&mut self.query).after_job(last),
            _ => return true,
        }
        false
    }

    /// Reads the list to its end.
    pub(super) fn read<E>(
        mut self,
        mut next: impl FnMut(&Query, usize) -> Result<Vec<JobInfo>, E>,
    ) -> Result<Vec<JobInfo>, E> {
        while self.rest().1 > 0 {
            let (query, most) = self.rest();
            let jobs = next(query, most)?;
            if self.take_in(jobs) {
                break;
            }
        }
        Ok(self.found)
    }
}

pub(super) enum Asked {
    List(Listing),
    Scan(Scan),
}

pub(super) struct Question {
    pub(super) asked: Asked,
    pub(super) reply: Reply<Scanned>,
}

impl Question {
    /// Takes in the next jobs of a list. Gives the question back if there are more.
    fn take_in(mut self, jobs: Vec<JobInfo>) -> Option<Self> {
        if let Asked::List(listing) = &mut self.asked {
            if !listing.take_in(jobs) {
                return Some(self);
            }
            let found = std::mem::take(&mut listing.found);
            self.reply.send(Ok(Scanned::Jobs(found)));
        }
        None
    }
}

#[derive(Default)]
struct Waiting {
    questions: VecDeque<Question>,
    is_closed: bool,
}

#[derive(Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// The queue between the callers and the thread that reads. Clones are the same queue.
#[derive(Clone, Default)]
pub(super) struct Questions {
    inner: Arc<Inner>,
}

impl Questions {
    pub(super) fn ask(&self, scan: Scan, reply: Reply<Scanned>) {
        let asked = match scan {
            Scan::List(query) => Asked::List(Listing::new(query)),
            scan => Asked::Scan(scan),
        };
        // Replies are dropped, and answered, with no lock held.
        let (refused, is_closed, _abandoned) = {
            let mut waiting = self.inner.waiting.lock();
            let mut abandoned = VecDeque::new();
            if waiting.questions.len() >= MOST {
                let all = std::mem::take(&mut waiting.questions);
                (waiting.questions, abandoned) = all.into_iter().partition(|one| one.reply.is_awaited());
            }
            let is_full = waiting.questions.len() >= MOST && reply.is_callers();
            match waiting.is_closed || is_full {
                true => (Some(reply), waiting.is_closed, abandoned),
                false => {
                    waiting.questions.push_back(Question { asked, reply });
                    (None, false, abandoned)
                }
            }
        };
        match refused {
            Some(reply) if !is_closed => {
                let reason = format!("{MOST} questions wait for their answers");
                reply.send(Err(Error::Store { fault: Fault::Busy, reason: reason.into() }));
            }
            Some(closed) => drop(closed),
            None => _ = self.inner.changed.notify_one(),
        }
    }

    /// Answers a question. A list that has more to be read comes behind the others.
    pub(super) fn answer(&self, question: Question, scanned: Result<Scanned, Error>) {
        match (scanned, &question.asked) {
            (Ok(Scanned::Jobs(jobs)), Asked::List(_)) => {
                quietly(|| question.take_in(jobs).into_iter().for_each(|rest| self.go_on(rest)));
            }
            (scanned, _) => quietly(|| question.reply.send(scanned)),
        }
    }

    /// Puts a list behind the others, if it has more to be read.
    fn go_on(&self, question: Question) {
        let mut waiting = self.inner.waiting.lock();
        if !waiting.is_closed {
            return waiting.questions.push_back(question);
        }
        drop(waiting);
        drop(question); // its caller is told that the store is closed
    }

    /// The next question whose caller waits. `None`: the queue is closed, and empty.
    pub(super) fn next(&self) -> Option<Question> {
        loop {
            let question = {
                let mut waiting = self.inner.waiting.lock();
                loop {
                    match waiting.questions.pop_front() {
                        Some(question) => break question,
                        None if waiting.is_closed => return None,
                        None => self.inner.changed.wait(&mut waiting),
                    }
                }
            };
            if question.reply.is_awaited() {
                return Some(question);
            }
        }
    }

    /// No further question is taken.
    pub(super) fn close(&self) {
        self.inner.waiting.lock().is_closed = true;
        self.inner.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn reply(answers: &mpsc::Sender<bool>, waits: &Arc<AtomicBool>) -> Reply<Scanned> {
        let (answers, waits) = (answers.clone(), Arc::clone(waits));
        let busy = |answer: Result<Scanned, Error>| matches!(answer, Err(Error::Store { fault: Fault::Busy, .. }));
        Reply::new(move |answer| _ = answers.send(busy(answer))).awaited_while(move || waits.load(Ordering::Relaxed))
    }

    #[test]
    fn the_queue_is_bounded_and_forgets_whom_nobody_waits_for() {
        let (send, answers) = mpsc::channel();
        let (waits, other) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
        let questions = Questions::default();
        for _ in 0..MOST {
            questions.ask(Scan::Counts, reply(&send, &waits));
        }
        assert!(answers.try_recv().is_err());
        questions.ask(Scan::Counts, reply(&send, &other));
        assert_eq!(answers.try_recv(), Ok(true), "refused, and at once");
        questions.ask(Scan::Counts, Reply::new(|_| {}));
        assert_eq!(questions.inner.waiting.lock().questions.len(), MOST + 1, "the engine's own is taken");
        waits.store(false, Ordering::Relaxed);
        questions.ask(Scan::Counts, reply(&send, &other));
        assert_eq!(questions.inner.waiting.lock().questions.len(), 2);
        assert_eq!(answers.try_iter().count(), MOST, "each is answered");
        questions.close();
        assert!(questions.next().is_some() && questions.next().is_some() && questions.next().is_none());
    }

    #[test]
    fn a_list_is_read_in_parts_and_lets_others_pass() {
        let (send, answers) = mpsc::channel();
        let waits = Arc::new(AtomicBool::new(true));
        let questions = Questions::default();
        questions.ask(Scan::List(Query::new()), reply(&send, &waits));
        questions.ask(Scan::Counts, reply(&send, &waits));
        let list = questions.next().unwrap();
        questions.go_on(list);
        assert!(matches!(questions.next().unwrap().asked, Asked::Scan(Scan::Counts)));
        let list = questions.next().unwrap();
        assert!(list.take_in(Vec::new()).is_none(), "nothing is left");
        assert_eq!(answers.try_iter().count(), 2);
    }
}
