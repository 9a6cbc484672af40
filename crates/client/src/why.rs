//! Why a change is not told to the server later.

use serde::{Deserialize, Serialize};

/// Why an operation has to go through to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Why {
    /// `write=through`, or a mode without leases.
    Policy,
    /// No write lease covers what it touches.
    NoLease,
    /// Another machine has asked for what it touches.
    Recalled,
    /// Another operation on it is on its way to the server.
    Contended,
    /// What the name means, or what the inode is like, is not known here.
    Unknown,
    /// An access control list that is not understood here: the server says what is wrong with it.
    AccessList,
    /// The server has to give out inode numbers or space first.
    Reservation,
    /// So much data goes to the server faster by itself.
    Large,
    /// Only the server does it.
    Kind,
    /// The local disk has no room for the log.
    LocalDisk,
}
