//! Which operation comes next: by lot.

use super::actor::Actor;
use super::layout::{
    ATTRIBUTE_FILES, ATTRIBUTES, BLOCKS, DATA_FILES, DIRECTORIES, LEAVES, LINKED_FILES, LOCKS, LOG_RECORDS,
    LOGS, NAMES, PAGES, PARENTS, RANGE_FILES, WHOLE, whole_number,
};
use super::{Pieces, Role, Syncs};
use crate::linear::PARTS;
use crate::linear::object::{Attribute, Object, Operation, RangeMode};

impl Actor {
    pub(super) fn choose(&mut self) -> (Object, Operation) {
        let objects = if self.role == Role::Reader { 86 } else { 100 };
        match self.rng.below(objects) {
            0..=23 => {
                let object = Object::Block { file: self.below(DATA_FILES), block: self.below(BLOCKS) };
                let operation = self.choose_sync().unwrap_or_else(|| self.write_or_read());
                (object, operation)
            }
            24..=29 => self.choose_whole(),
            30..=49 => self.choose_name(),
            50..=57 => {
                let operation = self.choose_in_directories();
                (Object::Directories { parent: self.below(PARENTS) }, operation)
            }
            58..=73 => {
                let (file, which) = (self.below(ATTRIBUTE_FILES), self.rng.pick(&ATTRIBUTES));
                let operation = match (self.write_or_read(), which) {
                    (Operation::Write(value), Attribute::Permissions) => Operation::Write(value & 0o777),
                    // Now and then it is taken away.
                    (Operation::Write(_), Attribute::Extended) if self.rng.chance(1, 4) => {
                        Operation::Write(0)
                    }
                    (operation, _) => operation,
                };
                (Object::Attribute { file, which }, operation)
            }
            74..=77 => {
                let operation = match self.write_or_read() {
                    Operation::Read => Operation::Read,
                    _ if self.links.is_empty() || self.rng.chance(1, 2) => Operation::Link,
                    _ => Operation::Unlink,
                };
                (Object::Links { file: self.below(LINKED_FILES) }, operation)
            }
            78..=85 => {
                let append = self.may_change() && self.log_len < LOG_RECORDS && self.rng.chance(1, 2);
                let operation = match self.choose_sync() {
                    Some(sync) => sync,
                    None if append => Operation::Append(self.unique()),
                    None => Operation::ReadLog,
                };
                (Object::Log { file: self.below(LOGS) }, operation)
            }
            86..=92 => {
                let file = self.below(LOCKS);
                let operation =
                    if self.locked.contains_key(&file) { Operation::Unlock } else { Operation::TryLock };
                (Object::Lock { file }, operation)
            }
            _ => {
                let operation = self.choose_range();
                (Object::Ranges { file: self.below(RANGE_FILES) }, operation)
            }
        }
    }

    fn choose_whole(&mut self) -> (Object, Operation) {
        let file = self.below(WHOLE.len() as u16);
        if let Some(sync) = self.choose_sync() {
            return (Object::Whole { file }, sync);
        }
        match self.write_or_read() {
            Operation::Read if self.pieces == Pieces::Calls && self.rng.chance(1, 2) => {
                let block = self.rng.pick(&PAGES);
                (Object::Block { file: whole_number(file), block }, Operation::Read)
            }
            Operation::Write(_) if self.rng.chance(1, 4) => (Object::Whole { file }, Operation::Truncate),
            operation => (Object::Whole { file }, operation),
        }
    }

    /// In one directory everybody renames; in the others, where names are exchanged as well, only the last mount does:
    /// what Linux answers if another machine exchanges the same names meanwhile is no order of anything, as it looks
    /// them up one after the other and finds nothing to do if both lead to one inode (SEMANTICS 9).
    fn choose_name(&mut self) -> (Object, Operation) {
        let directory = self.below(DIRECTORIES);
        let may_rename = directory == 0 || self.is_on_last_mount;
        let (name, to) = (self.below(NAMES.into()) as u8, self.below(NAMES.into()) as u8);
        let what = if self.may_change() { self.rng.below(20) } else { 10 + self.rng.below(10) };
        let operation = match what {
            0..=3 => Operation::Create { name, id: self.unique() },
            4..=5 => Operation::Remove { name },
            6..=7 if name != to && may_rename => Operation::Rename { from: name, to },
            8 if name != to && may_rename => Operation::RenameNew { from: name, to },
            9 if name != to && may_rename && directory > 0 => Operation::Exchange { one: name, other: to },
            10..=11 => Operation::List,
            _ => Operation::Lookup { name },
        };
        (Object::Names { directory }, operation)
    }

    fn choose_in_directories(&mut self) -> Operation {
        let (name, leaf) = (self.below(NAMES.into()) as u8, self.below(LEAVES.into()) as u8);
        let what = if self.may_change() { self.rng.below(10) } else { 7 + self.rng.below(3) };
        match what {
            4..=6 if self.syncs == Syncs::AgainstLoss => Operation::ListLeaves { name },
            0..=1 => Operation::MakeDirectory { name },
            2..=3 => Operation::RemoveDirectory { name },
            4 => Operation::CreateLeaf { name, leaf },
            5..=6 => Operation::RemoveLeaf { name, leaf },
            7 => Operation::List,
            _ => Operation::ListLeaves { name },
        }
    }

    fn choose_range(&mut self) -> Operation {
        let from = self.below(PARTS.into()) as u8;
        let to = from + 1 + self.below((PARTS - from).into()) as u8;
        let owner = self.owner();
        if !self.ranges.is_empty() && self.rng.chance(1, 2) {
            return Operation::UnlockRange { owner, from, to };
        }
        let mode = self.rng.pick(&[RangeMode::Shared, RangeMode::Exclusive]);
        Operation::TryRange { owner, from, to, mode }
    }

    fn write_or_read(&mut self) -> Operation {
        let write = self.may_change() && self.rng.chance(1, 3);
        if write { Operation::Write(self.unique()) } else { Operation::Read }
    }

    fn choose_sync(&mut self) -> Option<Operation> {
        let may = self.syncs != Syncs::Never && self.may_change();
        (may && self.rng.chance(1, 15)).then_some(Operation::Sync)
    }

    fn may_change(&self) -> bool {
        self.role == Role::Everything
    }

    fn below(&mut self, bound: u16) -> u16 {
        self.rng.below(bound.into()) as u16
    }

    /// A number that no other thread writes.
    fn unique(&mut self) -> u64 {
        self.written += 1;
        self.written * 64 + u64::from(self.client)
    }
}
