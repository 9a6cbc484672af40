//! POSIX access control lists in the form the kernel passes them (`include/uapi/linux/posix_acl_xattr.h`), and what they
//! mean for permission bits (POSIX 1003.1e draft 17, section 23; acl(5)): in one place for the server and for a client that
//! creates, or sets them, under a write lease.

use crate::{Errno, FileKind, FsError, FsResult, XATTR_ACCESS_LIST, XATTR_DEFAULT_LIST, mode};
use bytes::{BufMut, Bytes, BytesMut};

const FORMAT: u32 = 2;
const HEADER_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    perm: u16,
    /// Of a user or group, where the tag names one.
    id: u32,
}

/// A valid access control list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Entry>);

/// What a new inode gets from its parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inherited {
    pub perm: u16,
    /// What is still to be taken off `perm`.
    pub umask: u16,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl Inherited {
    /// Without lists: permissions as they were asked for, and the umask.
    pub fn plain(perm: u16, umask: u16) -> Inherited {
        Inherited { perm, umask, access: None, default: None }
    }

    /// What the default list of the parent, as an extended attribute, makes of the permissions that were asked for.
    ///
    /// # Errors
    /// EINVAL, ENOTSUP: it is none.
    pub fn from_default(list: &[u8], perm: u16, kind: FileKind) -> FsResult<Inherited> {
        let default = Acl::parse(list)?;
        let mut access = default.clone();
        let perm = access.apply_creation_mode(perm);
        Ok(Inherited {
            perm,
            umask: 0,
            access: (!access.is_mode_only()).then_some(access),
            default: (kind == FileKind::Directory).then_some(default),
        })
    }

    /// As extended attributes, in the order of their names.
    pub fn xattrs(&self) -> impl Iterator<Item = (&'static [u8], Bytes)> {
        let list = |name: &'static [u8], acl: &Option<Acl>| acl.as_ref().map(|acl| (name, acl.to_bytes()));
        [list(XATTR_ACCESS_LIST, &self.access), list(XATTR_DEFAULT_LIST, &self.default)].into_iter().flatten()
    }
}

/// An access list that is to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewList<'a> {
    /// [`XATTR_ACCESS_LIST`] or [`XATTR_DEFAULT_LIST`].
    pub name: &'a [u8],
    pub list: &'a [u8],
    /// Whoever sets it is not of the inode's group: with the list that access is checked by, set-group-ID goes (Linux:
    /// `posix_acl_update_mode`).
    pub kill_sgid: bool,
}

/// What an inode is like with a list that was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WithList {
    pub perm: u16,
    pub kept: Kept,
}

/// Whether a list that was set is there then, as an extended attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    Yes,
    /// It says no more than the permission bits do, or nothing: there is none.
    No,
}

/// Sets a list of an inode of this kind with these permissions.
///
/// # Errors
/// EINVAL, ENOTSUP: it is none. ENOTSUP: a symbolic link has none. EACCES: only directories have default ones.
pub fn set_list(kind: FileKind, perm: u16, new: &NewList<'_>) -> FsResult<WithList> {
    let kept = |kept: bool| if kept { Kept::Yes } else { Kept::No };
    if new.name == XATTR_DEFAULT_LIST {
        let acl = Acl::parse_or_empty(new.list)?;
        return match acl {
            Some(_) if kind != FileKind::Directory => Err(Errno::Access.into()),
            acl => Ok(WithList { perm, kept: kept(acl.is_some()) }),
        };
    }
    if kind == FileKind::Symlink {
        return Err(Errno::NotSupported.into());
    }
    let acl = Acl::parse(new.list)?;
    let perm = acl.mode_bits(perm);
    let perm = if new.kill_sgid { perm & !mode::SET_GID } else { perm };
    Ok(WithList { perm, kept: kept(!acl.is_mode_only()) })
}

/// An access list after a change of the permission bits.
///
/// # Errors
/// EINVAL, ENOTSUP: it is none.
pub fn after_chmod(list: &[u8], perm: u16) -> FsResult<Bytes> {
    let mut acl = Acl::parse(list)?;
    acl.set_mode_bits(perm);
    Ok(acl.to_bytes())
}

impl Acl {
    /// Decodes and checks a list with at least the three entries that a mode has.
    ///
    /// # Errors
    /// EINVAL, ENOTSUP: it is none.
    pub fn parse(bytes: &[u8]) -> FsResult<Acl> {
        Acl::parse_or_empty(bytes)?.ok_or_else(|| invalid("it has no entries"))
    }

    /// The same; `None` for a list without entries, which stands for removal.
    ///
    /// # Errors
    /// As [`Acl::parse`].
    pub fn parse_or_empty(bytes: &[u8]) -> FsResult<Option<Acl>> {
        let (header, body) = bytes.split_at_checked(HEADER_LEN).ok_or_else(|| invalid("it is too short"))?;
        if little_u32(header) != FORMAT {
            return Err(FsError::new(Errno::NotSupported, "an access control list of another format"));
        }
        if body.len() % ENTRY_LEN != 0 {
            return Err(invalid("its length is wrong"));
        }
        let entry = |bytes: &[u8]| Entry {
            tag: u16::from_le_bytes([bytes[0], bytes[1]]),
            perm: u16::from_le_bytes([bytes[2], bytes[3]]),
            id: little_u32(&bytes[4..]),
        };
        let entries: Vec<Entry> = body.chunks_exact(ENTRY_LEN).map(entry).collect();
        if entries.is_empty() {
            return Ok(None);
        }
        check(&entries)?;
        Ok(Some(Acl(entries)))
    }

    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEADER_LEN + ENTRY_LEN * self.0.len());
        bytes.put_u32_le(FORMAT);
        for entry in &self.0 {
            bytes.put_u16_le(entry.tag);
            bytes.put_u16_le(entry.perm);
            bytes.put_u32_le(if matches!(entry.tag, USER | GROUP) { entry.id } else { NO_ID });
        }
        bytes.freeze()
    }

    /// Whether it says no more than permission bits do.
    pub fn is_mode_only(&self) -> bool {
        self.0.iter().all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// `perm` with the bits for owner, group and others that the list stands for.
    pub fn mode_bits(&self, perm: u16) -> u16 {
        let owner = self.perm_of(USER_OBJ);
        let group = self.perm_of(self.group_class());
        perm & !0o777 | owner << 6 | group << 3 | self.perm_of(OTHER)
    }

    fn set_mode_bits(&mut self, perm: u16) {
        let group_class = self.group_class();
        for entry in &mut self.0 {
            match entry.tag {
                USER_OBJ => entry.perm = perm >> 6 & 7,
                OTHER => entry.perm = perm & 7,
                tag if tag == group_class => entry.perm = perm >> 3 & 7,
                _ => {}
            }
        }
    }

    /// Limits the list by the permissions asked for at creation, and returns what is left of these.
    fn apply_creation_mode(&mut self, perm: u16) -> u16 {
        let limited = self.mode_bits(0) & perm;
        self.set_mode_bits(limited);
        perm & !0o777 | limited
    }

    /// The entry that the group bits of the mode show.
    fn group_class(&self) -> u16 {
        if self.0.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP_OBJ }
    }

    fn perm_of(&self, tag: u16) -> u16 {
        self.0.iter().find(|entry| entry.tag == tag).map_or(0, |entry| entry.perm & 7)
    }
}

/// The kernel's `posix_acl_valid`: owner, users, group, groups, mask, others in this order; a mask if anybody is named.
fn check(entries: &[Entry]) -> FsResult<()> {
    let rank = |tag: u16| match tag {
        USER_OBJ => Some(0),
        USER => Some(1),
        GROUP_OBJ => Some(2),
        GROUP => Some(3),
        MASK => Some(4),
        OTHER => Some(5),
        _ => None,
    };
    let mut counts = [0usize; 6];
    let mut last = 0;
    for entry in entries {
        let rank = rank(entry.tag).ok_or_else(|| invalid("it has an entry of unknown kind"))?;
        if rank < last {
            return Err(invalid("its entries are out of order"));
        }
        if entry.perm & !7 != 0 {
            return Err(invalid("it has an unknown permission"));
        }
        if matches!(entry.tag, USER | GROUP) && entry.id == NO_ID {
            return Err(invalid("it names nobody"));
        }
        last = rank;
        counts[rank] += 1;
    }
    let needs_mask = counts[1] > 0 || counts[3] > 0;
    let once = counts[0] == 1 && counts[2] == 1 && counts[5] == 1 && counts[4] <= 1;
    if once && (counts[4] == 1 || !needs_mask) {
        Ok(())
    } else {
        Err(invalid("it lacks an entry or has one twice"))
    }
}

/// The bits that `chmod` and lists agree on.
const _: () = assert!(mode::ALL & 0o777 == 0o777);

fn little_u32(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn invalid(problem: &str) -> FsError {
    FsError::new(Errno::Invalid, format!("an access control list that is not valid: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Mostly what a list may have, in mostly any order.
    fn entries() -> impl Strategy<Value = Vec<u8>> {
        let tag = prop_oneof![
            9 => prop::sample::select(vec![USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER]),
            1 => any::<u16>()
        ];
        let perm = prop_oneof![9 => 0u16..8, 1 => any::<u16>()];
        let id = prop_oneof![3 => 0u32..5, 1 => Just(NO_ID), 1 => any::<u32>()];
        let entries = (prop::collection::vec((tag, perm, id), 0..12), any::<bool>());
        entries.prop_map(|(mut entries, in_order)| {
            if in_order {
                entries.sort_unstable();
                entries.dedup_by_key(|entry| entry.0);
            }
            let bytes = entries.iter().map(|(tag, perm, id)| {
                [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
            });
            [FORMAT.to_le_bytes().to_vec()].into_iter().chain(bytes).flatten().collect()
        })
    }

    proptest! {
        /// What is taken for a list means something, goes back to bytes that mean the same, and keeps the modes it is given.
        #[test]
        fn what_is_accepted_makes_sense(bytes in entries(), perm in 0u16..0o10000) {
            let Ok(acl) = Acl::parse(&bytes) else { return Ok(()) };
            prop_assert!(acl.0.len() >= 3 && acl.0.len() * ENTRY_LEN + HEADER_LEN == bytes.len());
            let again = Acl::parse(&acl.to_bytes()).unwrap();
            prop_assert_eq!(again.to_bytes(), acl.to_bytes());
            prop_assert_eq!(again.mode_bits(perm), acl.mode_bits(perm));
            let mut changed = acl.clone();
            changed.set_mode_bits(perm);
            prop_assert_eq!(changed.mode_bits(perm), perm);
            let mut created = acl.clone();
            let left = created.apply_creation_mode(perm);
            prop_assert_eq!(left & !perm, 0, "a list takes rights away from a creation, it gives none");
            prop_assert_eq!(created.mode_bits(left), left);
        }

        /// A list that is set leads to permissions that setting them changes nothing of.
        #[test]
        fn a_list_and_the_permissions_that_it_sets_agree(bytes in entries(), perm in 0u16..0o10000) {
            let new = NewList { name: XATTR_ACCESS_LIST, list: &bytes, kill_sgid: false };
            let Ok(set) = set_list(FileKind::File, perm, &new) else {
                prop_assert!(Acl::parse(&bytes).is_err());
                return Ok(());
            };
            prop_assert_eq!(set.perm & !0o777, perm & !0o777);
            prop_assert_eq!(after_chmod(&bytes, set.perm).unwrap(), Acl::parse(&bytes).unwrap().to_bytes());
            let killed = set_list(FileKind::File, perm, &NewList { kill_sgid: true, ..new }).unwrap();
            prop_assert_eq!(killed, WithList { perm: set.perm & !mode::SET_GID, ..set });
            let default = NewList { name: XATTR_DEFAULT_LIST, ..new };
            let of_directory = set_list(FileKind::Directory, perm, &default).unwrap();
            prop_assert_eq!(of_directory, WithList { perm, kept: Kept::Yes });
            prop_assert!(set_list(FileKind::File, perm, &default).is_err());
        }

        /// A list that lost or won bytes, or some of whose bits flipped, is taken or refused.
        #[test]
        fn damaged_lists_do_no_harm(bytes in entries(), at in any::<prop::sample::Index>(), bits in 1u8..) {
            let at = at.index(bytes.len());
            let _ = Acl::parse(&bytes[..at]);
            let mut flipped = bytes;
            flipped[at] ^= bits;
            if let Ok(acl) = Acl::parse(&flipped) {
                let mut acl = acl.clone();
                acl.set_mode_bits(0o777);
                prop_assert_eq!(acl.mode_bits(0), 0o777);
            }
        }
    }
}
