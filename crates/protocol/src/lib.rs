//! The wire between a client and a server: frames over a byte stream, messages inside. `docs/PROTOCOL.md` tells the story.
//!
//! [`frame`] is the envelope (lengths, tag, check sums), [`data`] what it carries beside a message, [`message`] what is inside,
//! [`session`] how a session begins and goes on, [`found`] what answers are made of, [`change`] what changes are made of,
//! [`digest`] what a client did on its own, [`inquiry`] what it is asked about that, [`admin`] what tools ask, [`kind`] the kinds
//! of calls, for who counts them. Bodies are postcard-encoded serde enums; file data travels as the frame's raw payload, inside a
//! body only where a digest has little. Enums are only ever appended to, so that a peer of another minor version fails on single
//! messages it does not know, not on the connection.

pub mod admin;
pub mod change;
pub mod data;
pub mod digest;
pub mod found;
pub mod frame;
pub mod inquiry;
pub mod kind;
pub mod locks;
pub mod message;
pub mod session;

pub use admin::*;
pub use change::*;
pub use data::Data;
pub use digest::{
    Change, DigestSlots, Fate, Lsn, Moved, Object, Place, Record, Touch, space_for, space_for_lists,
    space_through,
};
pub use found::*;
pub use frame::{Frame, FrameError, FrameHeader, FrameKind, HEADER_LEN, MAX_BODY, MAX_PAYLOAD};
pub use inquiry::*;
pub use kind::{CallKind, Purpose};
pub use locks::*;
pub use message::*;
pub use session::*;

/// The protocol spoken by this build. A server answers [`Hello`] with the highest version both sides know.
pub const PROTOCOL_VERSION: u16 = 16;
/// The oldest version this build still speaks.
pub const PROTOCOL_VERSION_MIN: u16 = 16;
/// Where a server listens unless told otherwise.
pub const DEFAULT_PORT: u16 = 7632;
/// Most bytes of file data in one request or reply.
pub const MAX_IO: u32 = 1 << 20;

/// Most directories that one [`Call::ReadDir`] names as likely to be next, and most names of those in its answer.
pub const MAX_NEXT: usize = 256;
/// See [`MAX_NEXT`].
pub const MAX_NEXT_ENTRIES: usize = 4096;
/// Most extents that one [`Call::Layout`] looks at (and goes on to the end of the stretch that it has come to): its answer
/// takes less than 100 KiB.
pub const MAX_LAYOUT: u32 = 4096;
