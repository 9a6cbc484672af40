//! Sockets: accepting, reading frames, writing frames.

mod connection;
mod outbox;

pub(crate) use connection::{Connection, ReadError};
pub(crate) use outbox::Outbox;
