//! Primitives that count each access of a shared word, for `tests/process/audit.rs` (`--cfg
//! timerqueue_audit`).
//!
//! Ground rules. A word is known by the place in the source where it was made. A lock counts as two
//! read-modify-writes: one to take it, one to release it. Reference counts of std, and the deques
//! of the pool, are not counted here: `tests/process/audit.md` names them.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{self, Ordering};

/// How often the words made at a place were read, written, and changed by a read-modify-write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Read-modify-writes, successful or not.
    pub updates: u64,
}

/// A place in the source: file and line.
pub type Place = (&'static str, u32);

static COUNTS: std::sync::Mutex<BTreeMap<Place, Accesses>> = std::sync::Mutex::new(BTreeMap::new());

/// The accesses since the start of the process, by the place where the words were made.
#[must_use]
pub fn counts() -> BTreeMap<Place, Accesses> {
    COUNTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}

fn count(made_at: &'static Location<'static>, add: impl FnOnce(&mut Accesses)) {
    let mut counts = COUNTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    add(counts.entry((made_at.file(), made_at.line())).or_default());
}

/// A memory fence.
#[track_caller]
pub(crate) fn fence(order: Ordering) {
    count(Location::caller(), |accesses| accesses.updates += 1);
    atomic::fence(order);
}

macro_rules! counting {
    ($($name:ident($int:ty) { $($more:item)* })*) => {$(
        pub(crate) struct $name {
            word: atomic::$name,
            made_at: &'static Location<'static>,
        }

        #[allow(dead_code)] // the same functions for all
        impl $name {
            #[track_caller]
            pub(crate) const fn new(value: $int) -> Self {
                Self { word: atomic::$name::new(value), made_at: Location::caller() }
            }

            pub(crate) fn load(&self, order: Ordering) -> $int {
                count(self.made_at, |accesses| accesses.loads += 1);
                self.word.load(order)
            }

            pub(crate) fn store(&self, value: $int, order: Ordering) {
                count(self.made_at, |accesses| accesses.stores += 1);
                self.word.store(value, order);
            }

            fn update(&self) -> &atomic::$name {
                count(self.made_at, |accesses| accesses.updates += 1);
                &self.word
            }

            pub(crate) fn swap(&self, value: $int, order: Ordering) -> $int {
                self.update().swap(value, order)
            }

            pub(crate) fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                self.update().fetch_or(value, order)
            }

            pub(crate) fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                self.update().fetch_and(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.update().compare_exchange(current, new, success, failure)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.update().compare_exchange_weak(current, new, success, failure)
            }

            /// Counted as one load and one read-modify-write for each round.
            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut next: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                let mut current = self.load(failure);
                while let Some(new) = next(current) {
                    match self.compare_exchange_weak(current, new, success, failure) {
                        Ok(former) => return Ok(former),
                        Err(present) => current = present,
                    }
                }
                Err(current)
            }

            pub(crate) fn get_mut(&mut self) -> &mut $int {
                self.word.get_mut()
            }

            pub(crate) fn into_inner(self) -> $int {
                self.word.into_inner()
            }

            $($more)*
        }

        impl Default for $name {
            #[track_caller]
            fn default() -> Self {
                Self::new(Default::default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.word.fmt(f)
            }
        }
    )*};
}

macro_rules! counting_integers {
    ($($name:ident($int:ty))*) => {
        counting! {$(
            $name($int) {
                pub(crate) fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                    self.update().fetch_add(value, order)
                }

                pub(crate) fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                    self.update().fetch_sub(value, order)
                }

                pub(crate) fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                    self.update().fetch_max(value, order)
                }
            }
        )*}
    };
}

counting! { AtomicBool(bool) {} }
counting_integers! { AtomicU8(u8) AtomicI64(i64) AtomicU32(u32) AtomicU64(u64) AtomicUsize(usize) }

/// A lock.
pub(crate) struct Mutex<T> {
    lock: parking_lot::Mutex<T>,
    made_at: &'static Location<'static>,
}

pub(crate) use parking_lot::MutexGuard;

#[allow(dead_code)] // the functions of the ordinary lock
impl<T> Mutex<T> {
    #[track_caller]
    pub(crate) const fn new(value: T) -> Self {
        Self { lock: parking_lot::Mutex::new(value), made_at: Location::caller() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        count(self.made_at, |accesses| accesses.updates += 2);
        self.lock.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.lock.try_lock();
        count(self.made_at, |accesses| accesses.updates += 1 + u64::from(guard.is_some()));
        guard
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }

    pub(crate) fn into_inner(self) -> T {
        self.lock.into_inner()
    }
}

impl<T: Default> Default for Mutex<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// A value made once: each look is a load.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    cell: std::sync::OnceLock<T>,
    made_at: &'static Location<'static>,
}

#[allow(dead_code)] // the functions of the ordinary cell
impl<T> OnceLock<T> {
    #[track_caller]
    pub(crate) const fn new() -> Self {
        Self { cell: std::sync::OnceLock::new(), made_at: Location::caller() }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        count(self.made_at, |accesses| accesses.loads += 1);
        self.cell.get()
    }

    pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        count(self.made_at, |accesses| accesses.loads += 1);
        self.cell.get_or_init(init)
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.cell.get_mut()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        count(self.made_at, |accesses| accesses.updates += 1);
        self.cell.set(value)
    }
}

impl<T> Default for OnceLock<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}
