//! What passes from the process that serves a mount to the one that goes on with it.
//!
//! ```text
//!   old process                                                  new process
//!   leave: no more requests are read, those under way end
//!          the server is told everything, and let go of
//!          state, /dev/fuse, locks  ───────────────────────────▶  Heir::read, connect: the same session
//!          the guard ends           ◀──────────────── ready ────
//!          ends, unmounts nothing   ──────────────── yours ────▶  begin: serves, and has the kernel drop all that
//!                                                                 it was told before; recalls wait for that
//! ```
//!
//! Until it says *yours* the old process can go on as if nothing had been ([`Leaving`](super::Leaving) dropped). What the kernel
//! asks for meanwhile it keeps: who uses the mount waits, and sees nothing else of it.

use crate::fs::HandedFiles;
use crate::wire::Agreement;
use crate::wire::device::MAX_WRITE;
use serde::{Deserialize, Serialize};
use soda_client::handover::{self, HandedClient, Unreadable};

/// Of what passes. Another number is not understood: it changes with every change of what is handed over.
pub const HANDOVER_FORMAT: u32 = 1;

/// Why what another process handed over cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    #[error("what was handed over cannot be read: {0}")]
    Unreadable(#[from] Unreadable),
    #[error("{expected} descriptors belong to what was handed over, and {found} came with it")]
    Descriptors { expected: usize, found: usize },
    #[error("the kernel may send {0} bytes in one write, more than this program takes")]
    MaxWrite(u32),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Handed {
    pub(super) agreement: Agreement,
    max_write: u32,
    pub(super) client: HandedClient,
    pub(super) files: HandedFiles,
}

impl Handed {
    pub(super) fn new(agreement: Agreement, client: HandedClient, files: HandedFiles) -> Handed {
        Handed { agreement, max_write: MAX_WRITE, client, files }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, HandOverError> {
        Ok(handover::encode(self)?)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Handed, HandOverError> {
        let handed: Handed = handover::decode(bytes)?;
        match handed.max_write > MAX_WRITE {
            true => Err(HandOverError::MaxWrite(handed.max_write)),
            false => Ok(handed),
        }
    }
}
