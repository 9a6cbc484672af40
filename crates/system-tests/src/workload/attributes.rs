//! Operations on attributes, extended ones and the number of links included.

use super::actor::Actor;
use super::files::TORN;
use super::layout::{EXTENDED, attribute_name, linked_name};
use crate::linear::object::{Answer, Attribute, Operation};
use rustix::fs::{self, AtFlags, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;

impl Actor {
    pub(super) fn attribute(&mut self, file: u16, which: Attribute, operation: &Operation) -> Result<Answer> {
        let name = attribute_name(file, which);
        match (operation, which) {
            (Operation::Write(value), Attribute::Extended) => {
                self.with_file(name, OFlags::WRONLY, |file| set_extended(file, *value))?;
            }
            (_, Attribute::Extended) => {
                return self.with_file(name, OFlags::RDONLY, extended).map(Answer::Value);
            }
            (Operation::Write(value), Attribute::Permissions) => {
                let mode = Mode::from_raw_mode(*value as u32);
                fs::chmodat(self.root()?, name, mode, AtFlags::empty())?;
            }
            (Operation::Write(value), Attribute::Size) => {
                self.with_file(name, OFlags::WRONLY, |file| fs::ftruncate(file, *value))?;
            }
            (Operation::Write(value), Attribute::Mtime) => {
                let time = Timespec {
                    tv_sec: (value / 1_000_000_000) as i64,
                    tv_nsec: (value % 1_000_000_000) as i64,
                };
                let times = Timestamps { last_access: time, last_modification: time };
                fs::utimensat(self.root()?, name, &times, AtFlags::empty())?;
            }
            (_, Attribute::Permissions) => return self.stat(name, |stat| u64::from(stat.st_mode & 0o777)),
            (_, Attribute::Size) => return self.stat(name, |stat| stat.st_size as u64),
            (_, Attribute::Mtime) => {
                return self.stat(name, |stat| stat.st_mtime as u64 * 1_000_000_000 + stat.st_mtime_nsec);
            }
        }
        Ok(Answer::Done)
    }

    /// Each thread links under names of its own: none of these calls can fail, and each takes effect once.
    pub(super) fn linked(&mut self, file: u16, operation: &Operation) -> Result<Answer> {
        let name = linked_name(file);
        match operation {
            Operation::Link => {
                self.written += 1;
                let (number, link) = (self.written, self.own(&format!("link{}", self.written)));
                fs::linkat(self.root()?, name, self.root()?, link, AtFlags::empty())?;
                self.links.push(number);
            }
            Operation::Unlink => {
                let Some(number) = self.links.pop() else { return Err(Errno::INVAL) };
                fs::unlinkat(self.root()?, self.own(&format!("link{number}")), AtFlags::empty())?;
            }
            // Not 64 bits wide everywhere.
            #[allow(clippy::unnecessary_cast)]
            _ => return self.stat(name, |stat| stat.st_nlink as u64 - 1),
        }
        Ok(Answer::Done)
    }

    /// By name or by descriptor.
    fn stat(&mut self, name: String, value: impl FnOnce(Stat) -> u64) -> Result<Answer> {
        let stat = if self.rng.chance(1, 2) {
            fs::statat(self.root()?, name, AtFlags::empty())?
        } else {
            self.with_file(name, OFlags::RDONLY, |file| fs::fstat(file))?
        };
        Ok(Answer::Value(value(stat)))
    }
}

fn set_extended(file: &OwnedFd, value: u64) -> Result<()> {
    if value != 0 {
        return fs::fsetxattr(file, EXTENDED, &value.to_le_bytes(), XattrFlags::empty());
    }
    match fs::fremovexattr(file, EXTENDED) {
        // As it should be.
        Err(Errno::NODATA) => Ok(()),
        result => result,
    }
}

fn extended(file: &OwnedFd) -> Result<u64> {
    let mut bytes = [0; 8];
    match fs::fgetxattr(file, EXTENDED, &mut bytes[..]) {
        Ok(8) => Ok(u64::from_le_bytes(bytes)),
        Ok(_) => Ok(TORN),
        Err(Errno::NODATA) => Ok(0),
        Err(errno) => Err(errno),
    }
}
