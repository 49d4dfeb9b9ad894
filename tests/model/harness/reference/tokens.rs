//! The rules of cancellation.

use super::*;

impl Model {
    pub(crate) fn source(&mut self, runtime: usize) -> usize {
        self.sources.push(Source { runtime, handles: 1, ..Source::default() });
        self.sources.len() - 1
    }

    pub(crate) fn linked(&mut self, parents: &[usize]) -> usize {
        let source = self.source(self.sources[parents[0]].runtime);
        if let Some(root) = parents.iter().find_map(|&parent| self.sources[parent].root) {
            // Born cancelled: it is linked to no parent, and keeps none alive.
            self.sources[source].reason = Some(CancelReason::Parent);
            self.sources[source].root = Some(root);
            return source;
        }
        self.sources[source].parents = parents.to_vec();
        for &parent in parents {
            self.sources[parent].children.insert(source);
        }
        source
    }

    pub(crate) fn reason(&self, source: usize) -> Option<CancelReason> {
        self.sources[source].reason
    }

    pub(crate) fn root_reason(&self, source: usize) -> Option<CancelReason> {
        self.sources[source].root
    }

    pub(super) fn with_descendants(&self, source: usize) -> Vec<usize> {
        let mut all = vec![source];
        let mut at = 0;
        while at < all.len() {
            for &child in &self.sources[all[at]].children {
                if self.sources[child].reason.is_none() && !all.contains(&child) {
                    all.push(child);
                }
            }
            at += 1;
        }
        all
    }

    pub(super) fn begin_cancel(&mut self, root: usize, reason: CancelReason, driven: Option<usize>) {
        let sources = self.with_descendants(root);
        for &source in &sources {
            let s = &mut self.sources[source];
            s.reason = Some(if source == root { reason } else { CancelReason::Parent });
            s.root = Some(reason);
            if let Some(timer) = s.timer.take() {
                self.dispose(timer);
            }
        }
        self.saw("a tree was cancelled", sources.len() > 2);
        self.telling.push(Telling { root, sources, driven, panicked: false });
    }

    /// Whether this event had to come next from the innermost cancellation.
    pub(super) fn told(&mut self, event: Event) -> bool {
        let entry = match event {
            Event::Called { callback } => Entry::Callback(callback),
            Event::Woken { future, waker } => Entry::Waker(future, waker),
            Event::Tick { .. } | Event::WallTick { .. } => return false,
        };
        let Some(telling) = self.telling.last_mut() else { return false };
        for &source in &telling.sources {
            // Waiting tasks are woken first, in any order; then callbacks, the last first.
            let stack = &mut self.sources[source].stack;
            let at = match entry {
                Entry::Waker(..) => stack.iter().position(|other| *other == entry),
                Entry::Callback(_) if stack.iter().any(|other| matches!(other, Entry::Waker(..))) => None,
                Entry::Callback(_) => stack.len().checked_sub(1).filter(|&last| stack[last] == entry),
            };
            if let Some(at) = at {
                stack.remove(at);
                let (panics, spiteful) = match entry {
                    Entry::Callback(callback) => {
                        let spiteful = self.unwinding == 0 && self.spiteful.contains(&callback);
                        (spiteful || self.panicking.contains(&callback), spiteful)
                    }
                    Entry::Waker(_, waker) => (waker == PANICKING, false),
                };
                // The first panic surfaces at the end; the runtime is told of the others.
                let again = panics && telling.panicked;
                telling.panicked |= panics;
                self.runtimes[self.sources[source].runtime].panics += u64::from(again);
                let (panicked, driven) = (telling.panicked, telling.driven.is_some());
                self.saw("a second panic in a cancel", again);
                self.saw("what a callback owned panicked in a cancel", spiteful);
                self.saw("a waker panicked in a cancel", matches!(entry, Entry::Waker(_, PANICKING)));
                self.saw("a panic in a timed cancel", panicked && driven);
                self.saw("a panic in a cancel by hand", panicked && !driven);
                self.saw("a cancel woke", matches!(entry, Entry::Waker(..)));
                return true;
            }
            if source == telling.root && !self.sources[source].stack.is_empty() {
                return false; // the root's own callbacks come first
            }
        }
        false
    }

    /// Whether callbacks of a tree are being called now: the order among its sources is not
    /// promised.
    pub(crate) fn is_telling_a_tree(&self) -> bool {
        self.telling.iter().any(|telling| telling.sources.len() > 1)
    }

    /// Ends the innermost cancellation if all its callbacks and wakers have been called.
    pub(super) fn end_telling(&mut self) {
        let Some(telling) = self.telling.last() else { return };
        if telling.sources.iter().any(|&source| !self.sources[source].stack.is_empty()) {
            return;
        }
        if telling.driven.is_some() && telling.panicked {
            self.runtimes[self.sources[telling.root].runtime].panics += 1;
        }
        let telling = self.telling.pop().expect("looked at above");
        telling.sources.into_iter().for_each(|source| self.free(source));
    }

    /// Begins a cancellation by `cancel`, or by a zero time. Returns whether this is the first.
    pub(crate) fn begin_cancel_by_hand(&mut self, source: usize, reason: CancelReason) -> bool {
        let first = self.sources[source].reason.is_none();
        if first {
            self.begin_cancel(source, reason, None);
        }
        first
    }

    /// Ends a first cancellation by `cancel`. Returns whether a callback has panicked, or as an
    /// error the missing event. `unwinding`: the thread panics already, and the runtime is told
    /// instead.
    pub(crate) fn end_cancel_by_hand(&mut self, unwinding: bool) -> Result<bool, String> {
        let telling = self.telling.pop().expect("begun");
        let left: Vec<_> = telling.sources.iter().flat_map(|&source| &self.sources[source].stack).collect();
        if !left.is_empty() {
            return Err(format!("not told: {left:?}"));
        }
        let told = telling.panicked && unwinding;
        self.runtimes[self.sources[telling.root].runtime].panics += u64::from(told);
        telling.sources.into_iter().for_each(|source| self.free(source));
        Ok(telling.panicked && !unwinding)
    }

    pub(crate) fn guard_ended(&mut self, cancelled: bool, unwound: bool) {
        self.saw("a drop guard cancelled", cancelled);
        self.saw("a drop guard cancelled while its scope unwound", cancelled && unwound);
    }

    /// Sets the timed cancel; `after` is not zero, which cancels at once. Returns whether the crate
    /// must return `Ok`.
    pub(crate) fn cancel_after(&mut self, source: usize, after: Duration) -> bool {
        let s = &self.sources[source];
        let (runtime, timer) = (s.runtime, s.timer);
        if s.reason.is_some() {
            return true;
        }
        // Also where the clock ends before that.
        let never = instant(self.now_of(runtime), after) == NEVER;
        if !self.runtimes[runtime].open {
            self.saw("a timed cancel on a runtime that had ended", !never);
            self.sources[source].armed = false;
            return never;
        }
        match timer {
            Some(timer) => {
                let _ = self.change(timer, after, Duration::ZERO);
            }
            None if never => return true,
            None => {
                let due = instant(self.now_of(runtime), after);
                let what = What::Source(source);
                let timer = self.new_node(runtime, what, Kind::Overlapping, MissedTicks::Skip, due, NEVER);
                self.sources[source].timer = Some(timer);
            }
        }
        self.sources[source].armed = !never;
        true
    }

    pub(crate) fn try_reset(&mut self, source: usize) -> bool {
        if let Some(timer) = self.sources[source].timer.filter(|_| self.sources[source].armed) {
            // A timer of an ended runtime never comes.
            let open = self.runtimes[self.sources[source].runtime].open;
            if open && !self.change(timer, Duration::MAX, Duration::ZERO).was_waiting() {
                return false;
            }
            self.saw("a reset of a timed cancel on a runtime that had ended", !open);
            self.sources[source].armed = false;
        }
        if self.sources[source].reason.is_some() {
            return false;
        }
        self.seen.insert("a reset");
        let stack = &mut self.sources[source].stack;
        let owned =
            stack.iter().filter(|entry| self.spiteful.iter().any(|&spiteful| **entry == Entry::Callback(spiteful)));
        let spiteful = owned.count();
        stack.retain(|entry| matches!(entry, Entry::Waker(..)));
        if self.unwinding == 0 {
            self.runtimes[self.sources[source].runtime].panics += spiteful as u64;
        }
        self.saw("what a callback owned panicked in a reset", spiteful > 0 && self.unwinding == 0);
        true
    }

    /// A callback is registered; false: the source is cancelled and it is called at once.
    pub(crate) fn register(&mut self, source: usize, callback: usize) -> bool {
        if self.sources[source].reason.is_some() {
            return false;
        }
        self.sources[source].handles += 1;
        self.sources[source].stack.push(Entry::Callback(callback));
        true
    }

    /// Returns whether the call was in time, and whether the drop of the payload panics to the
    /// caller.
    pub(crate) fn unregister(&mut self, source: usize, callback: usize) -> (bool, bool) {
        let stack = &mut self.sources[source].stack;
        let at = stack.iter().position(|&entry| entry == Entry::Callback(callback));
        let in_time = at.map(|at| stack.remove(at)).is_some();
        self.saw("unregistered in time", in_time);
        self.saw("unregistered too late", !in_time);
        let spiteful = in_time && self.unwinding == 0 && self.spiteful.contains(&callback);
        self.saw("what a callback owned panicked when it was unregistered", spiteful);
        (in_time, spiteful)
    }

    /// A handle of a source is made.
    pub(crate) fn retain(&mut self, source: usize) {
        self.sources[source].handles += 1;
    }

    /// A handle of a source is dropped.
    pub(crate) fn release(&mut self, source: usize) {
        self.sources[source].handles -= 1;
        self.free(source);
    }

    fn free(&mut self, source: usize) {
        let s = &mut self.sources[source];
        let told = self.telling.iter().any(|telling| telling.sources.contains(&source));
        if s.handles > 0 || !s.children.is_empty() || s.gone || told {
            return; // a source whose callbacks are still to be called is kept until then
        }
        s.gone = true;
        let owned =
            s.stack.iter().filter(|entry| self.spiteful.iter().any(|&spiteful| **entry == Entry::Callback(spiteful)));
        let spiteful = if self.unwinding == 0 { owned.count() } else { 0 };
        s.stack.clear();
        let (timer, parents) = (s.timer.take(), std::mem::take(&mut s.parents));
        self.runtimes[self.sources[source].runtime].panics += spiteful as u64;
        self.saw("what a callback owned panicked at the end of its source", spiteful > 0);
        if let Some(timer) = timer {
            self.dispose(timer);
        }
        for parent in parents {
            self.sources[parent].children.remove(&source);
            self.free(parent);
        }
    }

    pub(crate) fn registered(&self) -> impl Iterator<Item = usize> {
        let entries = self.sources.iter().flat_map(|source| &source.stack);
        entries.filter_map(|entry| match entry {
            Entry::Callback(callback) => Some(*callback),
            Entry::Waker(..) => None,
        })
    }
}
