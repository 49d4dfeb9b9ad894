//! Parameters of statements, with their types on the server.
//!
//! Ground rules. A statement without a name is sent with the types of its parameters, so the server
//! need not be asked for them first.

use tokio_postgres::types::{ToSql, Type};

/// A value with a type on the server.
pub(super) trait Typed: Sync {
    fn kind(&self) -> Type;
    fn value(&self) -> &(dyn ToSql + Sync);
}

pub(super) type Param<'a> = &'a dyn Typed;

/// A parameter of a [`Step`](super::wire::Step), which is sent later.
pub(super) type Owned<'a> = Box<dyn Typed + 'a>;

macro_rules! typed {
    ($($rust:ty => $kind:ident),* $(,)?) => {$(
        impl Typed for $rust {
            fn kind(&self) -> Type {
                Type::$kind
            }

            fn value(&self) -> &(dyn ToSql + Sync) {
                self
            }
        }
    )*};
}

typed! {
    bool => BOOL,
    i64 => INT8,
    Option<i64> => INT8,
    Vec<i64> => INT8_ARRAY,
    &[i64] => INT8_ARRAY,
    Vec<Option<i64>> => INT8_ARRAY,
    &str => TEXT,
    String => TEXT,
    Option<&str> => TEXT,
    Option<String> => TEXT,
    Vec<bool> => BOOL_ARRAY,
    Vec<&str> => TEXT_ARRAY,
    Vec<String> => TEXT_ARRAY,
    Vec<Option<&str>> => TEXT_ARRAY,
}
