//! The feature `tracing`, off: the functions of `trace.rs`, without effect.

use std::any::Any;
use std::convert::Infallible;
use std::io;
use std::time::Duration;

use super::label::{Label, Settings, Slow};
use super::{Engine, EntryRef};
use crate::sync::Arc;

/// There is none.
pub(crate) struct Context(Infallible);

impl Context {
    #[inline(always)]
    pub(super) fn here(_: &Engine) -> Option<Self> {
        None
    }

    pub(super) fn of(self, _: &Settings) -> Self {
        self
    }

    pub(super) fn run(&self, _: *const (), _: Option<Duration>, _: impl FnOnce()) {
        match self.0 {}
    }
}

#[inline(always)]
pub(super) fn was_told(_: *const ()) -> bool {
    false
}

#[inline(always)]
pub(super) fn slow_limit() -> Option<Duration> {
    None
}

#[inline(always)]
pub(super) fn tell_panic(_: &(dyn Any + Send), _: Option<&Label>) {}

#[inline(always)]
pub(super) fn slow(_: &Slow) {}

#[derive(Default)]
pub(super) struct Reports {}

impl Reports {
    #[inline(always)]
    pub(super) fn added(&self, _: &Arc<Engine>) {}

    #[inline(always)]
    pub(super) fn is_own(&self, _: &EntryRef) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn refused(&self, _: &Arc<Engine>, _: &io::Error) {}
}
