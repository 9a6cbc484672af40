//! Sockets: accepting, reading frames, writing frames.

mod backlog;
mod budget;
mod connection;
mod intake;
mod outbox;

pub(crate) use backlog::Backlog;
pub(crate) use budget::Budget;
pub(crate) use connection::{Connection, ReadError};
pub(crate) use intake::{Account, Awaited, Held, Intake, SHORT, Share};
pub(crate) use outbox::Outbox;
