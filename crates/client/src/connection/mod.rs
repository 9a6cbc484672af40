//! Connections to the server: bytes to frames, requests to replies.
//!
//! A session has one *control* connection, strictly ordered, and some *data* connections for reads and writes of bulk
//! data. [`Link`](link::Link) knows every request that has no reply yet, so that a new connection can carry on where the old one
//! broke. Requests are written by the thread that asks, straight into the socket; [`writer`] only takes over what
//! the socket does not.

pub(crate) mod link;
mod reader;
mod slots;
mod transport;
mod writer;

pub(crate) use link::{ConnId, Route};
pub(crate) use reader::{FrameReader, ReadError};
pub(crate) use slots::{Generation, SlotGuard, Slots};
pub use transport::{Stream, TcpTransport, Transport};
pub(crate) use writer::Writer;
