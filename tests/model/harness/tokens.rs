//! Sources, registrations and guards, on the crate and on the model.

use super::*;

impl Harness {
    pub(super) fn put_source(&self, slot: usize, id: usize, source: CancellationTokenSource) {
        let old = lock(&self.real).sources[slot].replace((id, source));
        if let Some((id, old)) = old {
            lock(&self.model).release(id);
            drop(old);
        }
    }

    pub(super) fn cancel(&self, slot: usize, reason: CancelReason) {
        let Some((id, source)) = self.source(slot) else { return };
        let first = lock(&self.model).begin_cancel_by_hand(id, reason);
        let outcome = catch_unwind(AssertUnwindSafe(|| match reason {
            CancelReason::Timeout => {
                self.same("cancel_after zero", source.try_cancel_after(Duration::ZERO).is_ok(), true);
                first
            }
            _ => source.cancel(),
        }));
        let panicked = {
            let mut model = lock(&self.model);
            let unwinding = model.unwinding > 0;
            if first { model.end_cancel_by_hand(unwinding) } else { Ok(false) }
        };
        if let Some(panicked) = self.ok(panicked) {
            self.same("cancel", outcome.ok(), if panicked { None } else { Some(first) });
        }
    }

    pub(super) fn end_guard(&self, slot: usize, how: GuardEnd) {
        let Some((id, guard)) = lock(&self.real).guards[slot].take() else { return };
        let (first, unwinds) = {
            let mut model = lock(&self.model);
            let first = how != GuardEnd::Disarm && model.begin_cancel_by_hand(id, CancelReason::Cancelled);
            let unwinds = how == GuardEnd::Unwind;
            model.unwinding += usize::from(unwinds);
            (first, unwinds)
        };
        let panicked = catch_unwind(AssertUnwindSafe(|| match how {
            GuardEnd::Drop => drop(guard),
            GuardEnd::Disarm => drop(guard.disarm()),
            GuardEnd::Unwind => {
                let _guard = guard;
                panic_any(Intended);
            }
        }));
        let told = {
            let mut model = lock(&self.model);
            let unwinding = model.unwinding > 0;
            model.unwinding -= usize::from(unwinds);
            let told = if first { model.end_cancel_by_hand(unwinding) } else { Ok(false) };
            model.release(id);
            model.guard_ended(first, how == GuardEnd::Unwind);
            told
        };
        if let Some(told) = self.ok(told) {
            let want = unwinds || told;
            self.same("a panic out of a drop guard", panicked.is_err(), want);
        }
    }

    pub(super) fn register(self: &Arc<Self>, slot: usize, source: usize, script: usize, panics: bool, spiteful: bool) {
        let Some((source_id, source)) = self.source(source) else { return };
        let callback = self.ids.fetch_add(1, Ordering::SeqCst);
        let canary = self.canary('r', callback, spiteful);
        let (registered, panics_at_once) = {
            let mut model = lock(&self.model);
            if panics {
                model.panicking.insert(callback);
            }
            if spiteful {
                model.spiteful.insert(callback);
            }
            let panics_at_once = panics || spiteful && model.unwinding == 0;
            (model.register(source_id, callback), panics_at_once)
        };
        if !registered {
            *lock(&self.on_the_spot) = Some(callback);
        }
        let token = source.token();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            token.register(move || canary.harness.called(canary.id.1, script, panics))
        }));
        if lock(&self.on_the_spot).take_if(|on_the_spot| *on_the_spot == callback).is_some() {
            self.fail("registering with a cancelled source did not call".into());
        }
        match outcome {
            Ok(registration) if registered => {
                let old = lock(&self.real).registrations[slot].replace((source_id, callback, registration));
                if let Some(old) = old {
                    self.take_out(old, 0);
                }
            }
            Ok(registration) => self.same("register", (panics_at_once, registration.unregister()), (false, false)),
            Err(_) => self.same("a panic on registering", panics_at_once && !registered, true),
        }
    }

    pub(super) fn unregister(&self, slot: usize, how: u8) {
        let registration = lock(&self.real).registrations[slot].take();
        if let Some(registration) = registration {
            self.take_out(registration, how);
        }
    }

    fn take_out(&self, (source, callback, registration): (usize, usize, Registration), how: u8) {
        if how == 3 {
            lock(&self.model).release(source);
            return registration.detach();
        }
        let (want, spiteful) = lock(&self.model).unregister(source, callback);
        let panicked = catch_unwind(AssertUnwindSafe(|| match how {
            0 => drop(registration),
            1 => self.same("unregister", registration.unregister(), want),
            _ => self.same("unregister_and_wait", registration.unregister_and_wait(), want),
        }));
        self.same("a panic on unregistering", panicked.is_err(), spiteful);
        lock(&self.model).release(source);
    }
}
