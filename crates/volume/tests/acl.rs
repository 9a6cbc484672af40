//! Access control lists, permission bits, and who inherits what.

use crate::common::*;
use bytes::Bytes;
use soda_types::{Errno, Fid, SetAttr, mode};
use soda_volume::*;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// A list in the kernel's form.
fn acl(entries: &[(u16, u16, u32)]) -> Bytes {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes.into()
}

const NOBODY: u32 = u32::MAX;

fn extended() -> Bytes {
    acl(&[
        (USER_OBJ, 7, NOBODY),
        (USER, 6, 1001),
        (GROUP_OBJ, 5, NOBODY),
        (GROUP, 4, 1002),
        (MASK, 6, NOBODY),
        (OTHER, 1, NOBODY),
    ])
}

fn set(volume: &Volume, fid: Fid, name: &[u8], value: Bytes) -> soda_types::FsResult<soda_types::Attr> {
    let mut txn = volume.begin(now());
    let attr = txn.set_xattr(fid, name, value, SetXattr::Either, KillPriv::Keep)?;
    txn.commit()?;
    Ok(attr)
}

fn chmod(volume: &Volume, fid: Fid, perm: u16) {
    let mut txn = volume.begin(now());
    txn.set_attr(fid, &SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
    txn.commit().unwrap();
}

// SEMANTICS 31
#[test]
fn an_access_list_and_the_mode_follow_each_other() {
    let volume = in_memory();
    let file = create(&volume, "f");
    let attr = set(&volume, file, ACCESS, extended()).unwrap();
    assert_eq!(attr.perm, 0o761, "the group bits are the mask");
    chmod(&volume, file, 0o4640);
    let expected = acl(&[
        (USER_OBJ, 6, NOBODY),
        (USER, 6, 1001),
        (GROUP_OBJ, 5, NOBODY),
        (GROUP, 4, 1002),
        (MASK, 4, NOBODY),
        (OTHER, 0, NOBODY),
    ]);
    assert_eq!(volume.get_xattr(file, ACCESS).unwrap(), expected);
    assert_eq!(volume.getattr(file).unwrap().perm, 0o4640);
    let attr =
        set(&volume, file, ACCESS, acl(&[(USER_OBJ, 6, NOBODY), (GROUP_OBJ, 4, NOBODY), (OTHER, 4, NOBODY)]))
            .unwrap();
    assert_eq!(attr.perm, 0o4644);
    let error = volume.get_xattr(file, ACCESS).unwrap_err();
    assert_eq!(error.errno, Errno::NoData, "a list that says what the mode says is not kept");
}

// SEMANTICS 32
#[test]
fn default_lists_are_inherited_and_the_umask_is_not_used_then() {
    let volume = in_memory();
    let directory = mkdir(&volume, volume.root(), "d");
    set(&volume, directory, DEFAULT, extended()).unwrap();
    let file = create_in(&volume, directory, "f");
    assert_eq!(volume.getattr(file).unwrap().perm, 0o640, "0644 limited by the list, umask 022 not used");
    let inherited = acl(&[
        (USER_OBJ, 6, NOBODY),
        (USER, 6, 1001),
        (GROUP_OBJ, 5, NOBODY),
        (GROUP, 4, 1002),
        (MASK, 4, NOBODY),
        (OTHER, 0, NOBODY),
    ]);
    assert_eq!(volume.get_xattr(file, ACCESS).unwrap(), inherited);
    assert_eq!(volume.get_xattr(file, DEFAULT).unwrap_err().errno, Errno::NoData);
    let below = mkdir(&volume, directory, "below");
    assert_eq!(volume.get_xattr(below, DEFAULT).unwrap(), extended());
    let mut txn = volume.begin(now());
    let link =
        txn.create(directory, &name("l"), new_node(NewKind::Symlink(Bytes::from_static(b"t")), 0)).unwrap();
    txn.commit().unwrap();
    assert_eq!(link.attr.perm, 0o777);
    assert!(volume.list_xattrs(link.fid).unwrap().is_empty());
    // An empty default list is none.
    set(&volume, directory, DEFAULT, acl(&[])).unwrap();
    let plain = create_in(&volume, directory, "plain");
    assert_eq!(volume.getattr(plain).unwrap().perm, 0o644);
    assert!(volume.list_xattrs(plain).unwrap().is_empty());
}

#[test]
fn lists_that_are_not_valid_are_refused() {
    let volume = in_memory();
    let file = create(&volume, "f");
    let minimal = [(USER_OBJ, 7, NOBODY), (GROUP_OBJ, 5, NOBODY), (OTHER, 1, NOBODY)];
    let bad = [
        Bytes::new(),
        Bytes::from_static(&[2, 0, 0]),
        acl(&[]),
        acl(&minimal[..2]),
        acl(&[minimal[1], minimal[0], minimal[2]]),
        acl(&[minimal[0], minimal[0], minimal[1], minimal[2]]),
        acl(&[minimal[0], (USER, 7, 5), minimal[1], minimal[2]]),
        acl(&[minimal[0], (USER, 7, NOBODY), minimal[1], (MASK, 7, NOBODY), minimal[2]]),
        acl(&[(USER_OBJ, 8, NOBODY), minimal[1], minimal[2]]),
        acl(&[(64, 7, NOBODY), minimal[0], minimal[1], minimal[2]]),
        acl(&minimal).slice(..20),
    ];
    for value in bad {
        assert_eq!(set(&volume, file, ACCESS, value.clone()).unwrap_err().errno, Errno::Invalid, "{value:?}");
    }
    assert_eq!(
        set(&volume, file, ACCESS, Bytes::from_static(&[9, 0, 0, 0])).unwrap_err().errno,
        Errno::NotSupported
    );
    assert_eq!(
        set(&volume, file, DEFAULT, acl(&minimal)).unwrap_err().errno,
        Errno::Access,
        "only directories inherit"
    );
    assert_eq!(volume.getattr(file).unwrap().perm, 0o644);
}

#[test]
fn set_gid_of_a_directory_is_inherited() {
    let volume = in_memory();
    let directory = mkdir(&volume, volume.root(), "d");
    let mut txn = volume.begin(now());
    txn.set_attr(directory, &SetAttr { gid: Some(777), perm: Some(0o2775), ..SetAttr::default() }).unwrap();
    txn.commit().unwrap();
    let file = volume.getattr(create_in(&volume, directory, "f")).unwrap();
    assert_eq!((file.uid, file.gid, file.perm & mode::SET_GID), (1000, 777, 0));
    let below = volume.getattr(mkdir(&volume, directory, "below")).unwrap();
    assert_eq!((below.gid, below.perm), (777, 0o2755));
}

#[test]
fn privileges_go_where_the_kernel_says_so() {
    let volume = in_memory();
    let file = create(&volume, "f");
    let write = |privileges| {
        chmod(&volume, file, 0o6775);
        let staged = volume.stage_write(file, Bytes::from_static(b"x")).unwrap();
        let mut txn = volume.begin(now());
        let attr = txn.write(file, WriteAt::End, staged, privileges).unwrap().attr;
        txn.commit().unwrap();
        attr.perm
    };
    assert_eq!(write(KillPriv::Keep), 0o6775);
    assert_eq!(write(KillPriv::Kill), 0o0775);
    chmod(&volume, file, 0o6765);
    let mut txn = volume.begin(now());
    let change = SetAttr { size: Some(0), kill_suid_sgid: true, ..SetAttr::default() };
    // Set-gid without group execution is mandatory locking, not a privilege.
    assert_eq!(txn.set_attr(file, &change).unwrap().perm, 0o2765);
    let change = SetAttr { uid: Some(5), ..SetAttr::default() };
    assert_eq!(txn.set_attr(file, &change).unwrap().perm, 0o2765, "chown alone takes nothing away");
    txn.commit().unwrap();
}
