//! Flags of files, as lsattr(1) and chattr(1) ask for them (ioctl_iflags(2), FS_IOC_FSGETXATTR). No file here has any: so
//! much can be said, and what asks for no more than that is done.

use crate::wire::Reply;
use rustix::io::Errno as Raw;
use soda_types::Errno;

// Of `linux/fs.h`.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;

/// Longest answer of these: `struct fsxattr`.
const LONGEST: usize = 28;

/// What a command of ioctl(2) comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// So many bytes of nothing.
    Zeros(usize),
    Refused,
    /// Not for this file system.
    Unknown,
}

fn answer_to(command: u32, data: &[u8], len: usize) -> Answer {
    match command {
        GET_FLAGS | GET_XATTR if len <= LONGEST => Answer::Zeros(len),
        SET_FLAGS | SET_XATTR if data.iter().all(|byte| *byte == 0) => Answer::Zeros(0),
        SET_FLAGS | SET_XATTR => Answer::Refused,
        _ => Answer::Unknown,
    }
}

/// `len`: of the answer.
pub(super) fn ioctl(command: u32, data: &[u8], len: u32, reply: Reply) {
    match answer_to(command, data, len as usize) {
        Answer::Zeros(len) => reply.ioctl(&[0; LONGEST][..len]),
        Answer::Refused => reply.error(Errno::NotSupported),
        Answer::Unknown => reply.raw_error(Raw::NOTTY.raw_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_has_flags_and_none_gets_any() {
        assert_eq!(answer_to(GET_FLAGS, &[], 4), Answer::Zeros(4));
        assert_eq!(answer_to(GET_XATTR, &[], 28), Answer::Zeros(28));
        assert_eq!(answer_to(GET_FLAGS, &[], 29), Answer::Unknown);
        assert_eq!(answer_to(SET_FLAGS, &[0; 4], 0), Answer::Zeros(0));
        assert_eq!(answer_to(SET_FLAGS, &[0x10, 0, 0, 0], 0), Answer::Refused);
        assert_eq!(answer_to(SET_XATTR, &[0; 28], 0), Answer::Zeros(0));
        assert_eq!(answer_to(0x5401, &[], 0), Answer::Unknown);
    }
}
