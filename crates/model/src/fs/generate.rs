//! Operations by seed: mostly on the same few names, so that they meet.

use super::{
    Access, Disposition, Fallocate, Fill, Follow, Handle, Op, OpenMode, RenameMode, TreePath, Whence,
    XattrMode,
};
use crate::Rng;
use soda_types::{Name, Timestamp};

/// Which operations a generator makes: what the file system under test has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alphabet {
    /// All of them.
    Full,
    /// All that any FUSE pass-through has: no fallocate(2) beyond plain allocation, no mappings, no SEEK_HOLE.
    Passthrough,
    /// Reads, writes and sizes of a few files: the operations of fsx.
    Data,
}

/// Where the data of a file goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Within the first `bytes`.
    Within { bytes: u64 },
    /// Mostly within the first MiB, sometimes beyond 4 GiB.
    Sparse,
}

/// An endless stream of operations, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    alphabet: Alphabet,
    placement: Placement,
    fills: u64,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "name with spaces and ünïcödé"];
const FILES: [&str; 3] = ["a", "b", "c"];
const XATTRS: [&str; 3] = ["user.one", "user.two", "user.three"];
const HANDLES: u64 = 5;
/// Largest read or write, bytes: a few blocks and an odd end.
const MAX_IO: u64 = 70_000;

impl Generator {
    pub fn new(seed: u64, alphabet: Alphabet, placement: Placement) -> Generator {
        Generator { rng: Rng::new(seed), alphabet, placement, fills: seed << 24 }
    }

    fn data_op(&mut self) -> Op {
        let handle = self.handle();
        let path = self.data_path();
        // What not every FUSE pass-through has is left out there.
        let kinds = if self.alphabet == Alphabet::Passthrough { 22 } else { 28 };
        match self.rng.below(kinds) {
            0..=2 | 20..=21 => self.open(path),
            22..=23 => {
                let whence = self.rng.pick(&[Whence::Data, Whence::Hole]);
                Op::Seek { handle, offset: self.offset(), whence }
            }
            24..=25 => Op::MapLoad { handle, offset: self.offset(), len: self.len() },
            26..=27 => Op::MapStore { handle, offset: self.offset(), fill: self.fill() },
            3 => Op::Close { handle },
            4..=9 => Op::Read { handle, offset: self.offset(), len: self.len() },
            10..=14 => Op::Write { handle, offset: self.offset(), fill: self.fill() },
            15 => Op::Ftruncate { handle, size: self.offset() },
            16 => Op::Truncate { path, size: self.offset() },
            17 => Op::Fallocate {
                handle,
                mode: self.fallocate(),
                offset: self.offset(),
                len: self.len().into(),
            },
            18 => Op::Fstat { handle },
            _ => Op::Stat { path, follow: Follow::Target },
        }
    }

    fn name_op(&mut self) -> Op {
        let path = self.path();
        match self.rng.below(21) {
            0..=2 => Op::Mkdir { path, perm: self.perm() },
            3 => Op::Rmdir { path },
            4..=5 => Op::Unlink { path },
            6..=7 => Op::Link { from: path, to: self.path() },
            8 => Op::Symlink { target: self.path(), path },
            9 => Op::Readlink { path },
            10..=13 => {
                let mode = self.rng.pick(&[RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]);
                Op::Rename { from: path, to: self.path(), mode }
            }
            14 => Op::Readdir { path },
            15..=16 => Op::Stat { path, follow: self.rng.pick(&[Follow::LinkItself, Follow::Target]) },
            _ => self.open(path),
        }
    }

    fn attribute_op(&mut self) -> Op {
        let path = self.path();
        let name = self.xattr_name();
        match self.rng.below(9) {
            0 => Op::Chmod { path, perm: self.perm() },
            1 => Op::Utimens { path, mtime: self.time() },
            2..=3 => {
                let mode = self.rng.pick(&[XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
                let len = self.rng.below(200) as u32;
                self.fills += 1;
                Op::SetXattr { path, name, value: Fill { seed: self.fills, len }.bytes(), mode }
            }
            4 => Op::GetXattr { path, name },
            5 => Op::ListXattr { path },
            6 => Op::RemoveXattr { path, name },
            7 => Op::Fsync { handle: self.handle() },
            _ => Op::Stat { path, follow: Follow::LinkItself },
        }
    }

    fn open(&mut self, path: TreePath) -> Op {
        let access = self.rng.pick(&[Access::Read, Access::Write, Access::ReadWrite, Access::ReadWrite]);
        let disposition = match access {
            // O_RDONLY | O_TRUNC is undefined in POSIX.
            Access::Read => {
                self.rng.pick(&[Disposition::MustExist, Disposition::Create, Disposition::CreateNew])
            }
            _ => self.rng.pick(&[
                Disposition::MustExist,
                Disposition::Create,
                Disposition::Create,
                Disposition::CreateNew,
                Disposition::Truncate,
                Disposition::CreateOrTruncate,
            ]),
        };
        let mode = if self.rng.chance(1, 4) { OpenMode::Append } else { OpenMode::AtOffset };
        Op::Open { handle: self.handle(), path, access, disposition, mode, perm: self.perm() }
    }

    fn handle(&mut self) -> Handle {
        Handle(self.rng.below(HANDLES) as u8)
    }

    fn data_path(&mut self) -> TreePath {
        match self.alphabet {
            Alphabet::Data => TreePath::parse(self.rng.pick(&FILES)),
            _ => self.path(),
        }
    }

    fn path(&mut self) -> TreePath {
        let depth = self.rng.pick(&[0, 0, 0, 1, 1, 2]);
        let mut names: Vec<&str> = (0..depth).map(|_| self.rng.pick(&NAMES[..3])).collect();
        names.push(self.rng.pick(&NAMES));
        TreePath::parse(&names.join("/"))
    }

    fn xattr_name(&mut self) -> Name {
        TreePath::parse(self.rng.pick(&XATTRS)).last
    }

    fn perm(&mut self) -> u16 {
        self.rng.pick(&[0o644, 0o600, 0o755, 0o777, 0o400, 0o000, 0o640])
    }

    fn time(&mut self) -> Timestamp {
        Timestamp::new(self.rng.below(2_000_000_000) as i64, self.rng.below(1_000_000_000) as u32)
    }

    fn offset(&mut self) -> u64 {
        let near = |rng: &mut Rng, bound| {
            let offset = rng.below(bound);
            // Edges of pages are where things go wrong.
            if rng.chance(1, 3) { offset / 4096 * 4096 } else { offset }
        };
        match self.placement {
            Placement::Within { bytes } => near(&mut self.rng, bytes),
            Placement::Sparse if self.rng.chance(1, 8) => (4 << 30) - 8192 + near(&mut self.rng, 64 << 10),
            Placement::Sparse => near(&mut self.rng, 1 << 20),
        }
    }

    fn len(&mut self) -> u32 {
        let len = if self.rng.chance(1, 2) { self.rng.below(MAX_IO) } else { self.rng.below(5000) };
        1 + len as u32
    }

    fn fill(&mut self) -> Fill {
        self.fills += 1;
        Fill { seed: self.fills, len: self.len() }
    }

    fn fallocate(&mut self) -> Fallocate {
        match self.alphabet {
            Alphabet::Passthrough => Fallocate::Allocate,
            _ => self.rng.pick(&[
                Fallocate::Allocate,
                Fallocate::AllocateKeepSize,
                Fallocate::PunchHole,
                Fallocate::ZeroRange,
                Fallocate::ZeroRangeKeepSize,
            ]),
        }
    }
}

impl Iterator for Generator {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        Some(match (self.alphabet, self.rng.below(10)) {
            (Alphabet::Data, _) => self.data_op(),
            (_, 0..=4) => self.name_op(),
            (_, 5..=7) => self.data_op(),
            _ => self.attribute_op(),
        })
    }
}
