//! What an inode is like, asked of the session that has changed it and not told the server yet.

use crate::found::Node;
use serde::{Deserialize, Serialize};
use soda_types::Fid;

/// The server asks the holder of a write lease for the attributes. The lease stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inquiry {
    /// Names the question; never used again in this run of the server.
    pub number: u64,
    pub fid: Fid,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InquiryAnswer {
    pub number: u64,
    /// As it was, under the write lease, at a moment after the question had come. All that the holder's own programs may still
    /// be shown is at least as new. `None`: the holder cannot tell, or would rather be asked for the lease.
    pub node: Option<Node>,
}
