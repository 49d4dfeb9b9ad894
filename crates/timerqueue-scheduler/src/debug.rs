//! `Debug` of types that hold code of users, connections or locks, which have none.

/// `Debug` that shows some parts of a type, and tells that there are others: `debug_of!(Run, |run|
/// key: run.key())`, and for a type with a parameter `debug_of!(Reply<T> of T)`.
macro_rules! debug_of {
    ($name:ident $(<$given:tt>)? $(of $parameter:ident)? $(, |$this:ident| $($part:ident: $value:expr),+)?) => {
        impl$(<$parameter>)? std::fmt::Debug for $name$(<$given>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $(let $this = self;)?
                f.debug_struct(stringify!($name))$($(.field(stringify!($part), &$value))+)?.finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use debug_of;
