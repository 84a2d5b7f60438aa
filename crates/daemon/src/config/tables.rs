//! The brackets of a run file: `[[share]]`, `[[attach]]` and `[[connect]]` may occur several times, `[service]` once.

use super::{AttachWords, ConnectWords, ServiceWords};
use broker::ShareWords;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

pub(super) fn share<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ShareWords>, D::Error> {
    from.deserialize_any(Several("share", PhantomData))
}

pub(super) fn attach<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<AttachWords>, D::Error> {
    from.deserialize_any(Several("attach", PhantomData))
}

pub(super) fn connect<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ConnectWords>, D::Error> {
    from.deserialize_any(Several("connect", PhantomData))
}

pub(super) fn service<'de, D: Deserializer<'de>>(from: D) -> Result<ServiceWords, D::Error> {
    from.deserialize_any(One)
}

/// Entries of one kind, with its name.
struct Several<T>(&'static str, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Several<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entries with two brackets: `[[{}]]`", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, entries: A) -> Result<Vec<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(entries))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Vec<T>, A::Error> {
        let name = self.0;
        Err(A::Error::custom(format!(
            "`[{name}]` may occur several times: write `[[{name}]]`, with two brackets"
        )))
    }
}

/// The table `[service]`.
struct One;

impl<'de> Visitor<'de> for One {
    type Value = ServiceWords;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table with one pair of brackets: `[service]`")
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<ServiceWords, A::Error> {
        ServiceWords::deserialize(MapAccessDeserializer::new(table))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<ServiceWords, A::Error> {
        Err(A::Error::custom("there is one service: write `[service]`, with one pair of brackets"))
    }
}
