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

use crate::fs::HandedFiles;
use crate::wire::Agreement;
use crate::wire::device::MAX_WRITE;
use serde::{Deserialize, Serialize};
use soda_client::handover::{self, HandedClient, Unreadable};
use std::io;

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
    #[error("cannot start the threads that would serve the mount: {0}")]
    Threads(io::Error),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of the form, and bytes of it: in hexadecimal, and what they say.
    const SAMPLE: (u32, &str) = (1, include_str!("../../testdata/handed-1.txt"));

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
        const WHY: &str = "whoever understands another form takes it for something else: HANDOVER_FORMAT has to change";
        let (format, sample) = SAMPLE;
        assert_eq!(HANDOVER_FORMAT, format, "a new format needs a sample of its own");
        let (hex, says) = sample.split_once("\n\n").unwrap();
        let bytes = bytes_of(hex);
        let handed = Handed::decode(&bytes).expect(WHY);
        assert_eq!(said_by(&handed), says.trim_end(), "{WHY}");
        assert_eq!(handed.encode().unwrap(), bytes, "{WHY}");
    }

    #[test]
    fn print_sample() {
        use crate::nodes::Nodes;
        use soda_types::*;
        let fid = |ino| Fid::new(VolumeId(1), Ino(ino));
        let nodes = Nodes::new(fid(1));
        let time = |secs| Timestamp { secs, nanos: 7 };
        let attr = Attr {
            ino: Ino(70), kind: FileKind::Directory, perm: 0o755, nlink: 2, uid: 1000, gid: 100, rdev: 0, size: 30,
            allocated: 512, atime: time(1), mtime: time(2), ctime: time(3), btime: time(4),
            version: Version(300), data_version: Version(200),
        };
        let dir = fid(70);
        nodes.remember(dir);
        nodes.tell_attr(dir);
        nodes.keep_directory(dir, &attr);
        nodes.tell_place(dir, fid(1), b"dir");
        nodes.tell_removed(dir);
        nodes.listing(dir, |kept| kept.opened(4, None, std::time::Instant::now()));
        nodes.tell_subdirectory(dir, b"below", crate::nodes::TakenIn::AtAnyTime);
        let file = fid(71);
        nodes.remember(file);
        nodes.remember(file);
        nodes.announce(file, Version(9), 40);
        nodes.fill_pages(file, Version(9));
        nodes.size_shown(file, Version(9), 4096);
        let lock = Lock { family: LockFamily::Record, owner: LockOwner(8), pid: 31, start: 5, end: u64::MAX, mode: LockMode::Exclusive };
        let client = (
            ClientId([3; 16]),
            (17u64, [4u8; 16]),
            (501u64, 502u64, 503u64),
            (2u64, vec![(file, (1u64, 1u8))]),
            (vec![(file, lock)], vec![(fid(72), 6u64)]),
            (Some(b"/cache".to_vec()), Some(b"/log".to_vec())),
        );
        let files = (
            nodes.hand_over(),
            vec![(11u64, (file, 2u8, 5u64, 1u64, 1u8), 1u8, 1u8)],
            12u64,
            vec![(21u64, (dir, (b"onetwo".to_vec(), vec![3u32, 6]), Some(fid(1))))],
            22u64,
            vec![(file, 8u64, 11u64)],
            vec![(dir, 21u64)],
            vec![((99u64, 71u64, 1000u32, 100u32, 31u32), (11u64, 8u64, (0u64, 10u64, 1u32, 31u32), true))],
            12345u64,
        );
        let bytes = handover::encode(&((45u32, 0x8_0001u64, 0x9_0001u64), MAX_WRITE, client, files)).unwrap();
        let handed = Handed::decode(&bytes).unwrap();
        assert_eq!(handed.encode().unwrap(), bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let lines: Vec<&str> = hex.as_bytes().chunks(100).map(|line| std::str::from_utf8(line).unwrap()).collect();
        std::fs::write("/tmp/handed-1.txt", format!("{}\n\n{}\n", lines.join("\n"), said_by(&handed))).unwrap();
    }
}
