//! Sockets: accepting, reading frames, writing frames.

mod backlog;
mod connection;
mod outbox;

pub(crate) use backlog::Backlog;
pub(crate) use connection::{Connection, ReadError};
pub(crate) use outbox::Outbox;
