//! What passes from the process that serves a mount to the one that goes on with it.
//!
//! ```text
//!   old process                                                  new process
//!   leave: no more requests are read, those under way end
//!          the server is told everything, and let go of
//!          state, /dev/fuse, locks  ───────────────────────────▶  Heir::read, connect: threads, the same session
//!          the guard ends           ◀──────────────── ready ────
//!          ends, unmounts nothing   ──────────────── yours ────▶  begin: serves, and has the kernel drop all that
//!                                                                 it was told before; recalls wait for that
//! ```
//!
//! Until it says *yours* the old process can go on as if nothing had been ([`Leaving`](super::Leaving) dropped). What the kernel
//! asks for meanwhile it keeps: who uses the mount waits, and sees nothing else of it. From *yours* on nobody can go on if the
//! new one does not: so all that can fail comes before *ready*, and [`ReadyHeir::begin`](super::ReadyHeir::begin) cannot.
//!
//! A wait for a lock is answered on the descriptor of /dev/fuse that it was read from ([`crate::wire`]): so all of them pass.
//!
//! Over io_uring the requests are in memory of the old process, so they are part of the state ([`crate::wire::HandedQueues`]): it
//! takes all that the kernel has of its own, writes that down, and the new one answers in its place.

use crate::fs::HandedFiles;
use crate::wire::connection::InheritError;
use crate::wire::device::MAX_WRITE;
use crate::wire::{Agreement, DESCRIPTORS_MAX, HandedQueues};
use serde::{Deserialize, Serialize};
use soda_client::handover::{self, HandedClient, Unreadable};
use std::io;

/// Of what passes. Another number is not understood: it changes with every change of what is handed over.
pub const HANDOVER_FORMAT: u32 = 5;

/// Why what another process handed over cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    #[error("what was handed over cannot be read: {0}")]
    Unreadable(#[from] Unreadable),
    #[error("{expected} descriptors belong to what was handed over, and {found} came with it")]
    Descriptors { expected: usize, found: usize },
    #[error("what was handed over cannot be true: {0}")]
    Impossible(&'static str),
    #[error("the kernel may send {0} bytes in one write, more than this program takes")]
    MaxWrite(u32),
    #[error("cannot start the threads that would serve the mount: {0}")]
    Threads(io::Error),
    #[error(transparent)]
    Connection(#[from] InheritError),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Handed {
    pub(super) agreement: Agreement,
    max_write: u32,
    /// Descriptors of /dev/fuse, the first of those that come with this.
    pub(super) of_device: usize,
    pub(super) client: HandedClient,
    pub(super) files: HandedFiles,
    /// Over io_uring.
    pub(super) queues: Option<HandedQueues>,
}

impl Handed {
    pub(super) fn new(
        agreement: Agreement,
        of_device: usize,
        client: HandedClient,
        files: HandedFiles,
        queues: Option<HandedQueues>,
    ) -> Handed {
        Handed { agreement, max_write: MAX_WRITE, of_device, client, files, queues }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, HandOverError> {
        Ok(handover::encode(self)?)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Handed, HandOverError> {
        let handed: Handed = handover::decode(bytes)?;
        if handed.max_write > MAX_WRITE {
            return Err(HandOverError::MaxWrite(handed.max_write));
        }
        if !(1..=DESCRIPTORS_MAX).contains(&handed.of_device) {
            return Err(HandOverError::Impossible("descriptors of the device that it cannot have"));
        }
        handed.files.check().map_err(HandOverError::Impossible)?;
        let counts = handed.client.can_go_on() && handed.queues.iter().all(HandedQueues::can_go_on);
        match counts {
            true => Ok(handed),
            false => Err(HandOverError::Impossible("counts that nobody comes to")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of the form, and bytes of it: in hexadecimal, and what they say.
    const SAMPLE: (u32, &str) = (5, include_str!("../../testdata/handed-5.txt"));

    fn bytes_of(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.chars().filter_map(|digit| digit.to_digit(16)).map(|it| it as u8).collect();
        digits.chunks_exact(2).map(|byte| byte[0] << 4 | byte[1]).collect()
    }

    /// Without times, which are of the moment when it is read.
    fn said_by(handed: &Handed) -> String {
        let text = format!("{handed:#?}");
        let mut parts = text.split("Instant {");
        let first = parts.next().unwrap().to_owned();
        parts.fold(first, |text, part| text + "Instant" + part.split_once('}').unwrap().1)
    }

    #[test]
    fn another_form_of_what_passes_has_another_number() {
        const WHY: &str =
            "whoever understands another form takes it for something else: HANDOVER_FORMAT has to change";
        let (format, sample) = SAMPLE;
        assert_eq!(HANDOVER_FORMAT, format, "a new format needs a sample of its own");
        let (hex, says) = sample.split_once("\n\n").unwrap();
        let bytes = bytes_of(hex);
        let handed = Handed::decode(&bytes).expect(WHY);
        assert_eq!(said_by(&handed), says.trim_end(), "{WHY}");
        assert_eq!(handed.encode().unwrap(), bytes, "{WHY}");
    }

    /// From *yours* on nobody could refuse it.
    #[test]
    fn what_cannot_be_true_is_refused_before_anything_is_begun() {
        let bytes = bytes_of(SAMPLE.1.split_once("\n\n").unwrap().0);
        let damages: [fn(&mut HandedFiles); 7] = [
            |files| files.files[0].0 = u64::MAX,
            |files| files.files[0].0 = files.next_file,
            |files| files.files.extend_from_within(..1),
            |files| files.next_file = u64::MAX,
            |files| files.next_dir = u64::MAX,
            |files| files.nodes.extend_from_within(..1),
            |files| files.nodes[0].set_lookups(u64::MAX),
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            let mut handed = Handed::decode(&bytes).unwrap();
            damage(&mut handed.files);
            let refused = Handed::decode(&handed.encode().unwrap());
            assert!(matches!(refused, Err(HandOverError::Impossible(_))), "{number}: {refused:?}");
        }
    }

    proptest::proptest! {
        /// What another program says is read or refused.
        #[test]
        fn damage_is_no_panic(
            cut in 0usize..3000,
            damage in proptest::collection::vec((0usize..3000, 1u8..=255), 0..6),
        ) {
            let mut bytes = bytes_of(SAMPLE.1.split_once("\n\n").unwrap().0);
            for (at, with) in damage {
                let at = at % bytes.len();
                bytes[at] ^= with;
            }
            bytes.truncate(cut.max(1));
            if let Ok(handed) = Handed::decode(&bytes) {
                let again = handed.encode().unwrap();
                proptest::prop_assert_eq!(said_by(&Handed::decode(&again).unwrap()), said_by(&handed));
                handed.files.try_out();
            }
        }
    }
}
