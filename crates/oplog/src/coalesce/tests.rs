//! Random histories, applied with and without coalescing.

use super::coalesce;
use crate::world::{fid, history, new, place, record};
use crate::{Change, Fate, Lsn, Moved, Record};
use bytes::Bytes;
use proptest::prelude::*;
use soda_protocol::SetXattr;
use soda_types::{FileKind, SetAttr, XATTR_DEFAULT_LIST};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn the_state_at_the_end_is_the_same(dice in prop::collection::vec(any::<[u8; 5]>(), 1..120)) {
        let (mut tree, records, end) = history(&dice);
        let fewer = coalesce(records.clone());
        for record in &fewer {
            tree.apply(record);
        }
        prop_assert_eq!(tree, end, "{:#?}\nbecame {:#?}", records, fewer);
    }
}

fn create(lsn: u64, directory: u64, number: u8, ino: u64, kind: FileKind) -> Record {
    record(lsn, Change::Create { place: place(fid(directory), number), fid: fid(ino), new: new(kind) })
}

fn unlink(lsn: u64, directory: u64, number: u8, ino: u64) -> Record {
    let place = place(fid(directory), number);
    record(lsn, Change::Unlink { place, fid: fid(ino), then: Fate::Gone })
}

fn write(lsn: u64, ino: u64, offset: u64, data: &'static [u8]) -> Record {
    let data = data.into();
    record(lsn, Change::Write { fid: fid(ino), offset, data, kill_suid_sgid: false })
}

#[test]
fn a_temporary_file_never_travels() {
    let records = vec![create(1, 1, 0, 2, FileKind::File), write(2, 2, 0, b"scratch"), unlink(3, 1, 0, 2)];
    let fewer = coalesce(records);
    // Only the directory's times are left of it.
    assert!(matches!(
        fewer.as_slice(),
        [Record { lsn: Lsn(3), change: Change::SetAttr { set: SetAttr { mtime: Some(_), .. }, .. }, .. }]
    ));
}

#[test]
fn a_tree_that_is_unpacked_and_removed_again_never_travels() {
    let remove = Change::RemoveDirectory { place: place(fid(1), 0), fid: fid(2) };
    let inner = Change::RemoveDirectory { place: place(fid(2), 0), fid: fid(3) };
    let records = vec![
        create(1, 1, 0, 2, FileKind::Directory),
        create(2, 2, 0, 3, FileKind::Directory),
        create(3, 3, 1, 4, FileKind::File),
        write(4, 4, 0, b"x"),
        unlink(5, 3, 1, 4),
        record(6, inner),
        record(7, remove),
    ];
    assert_eq!(coalesce(records).len(), 1);
}

#[test]
fn a_file_that_is_replaced_by_a_rename_is_not_told_of_if_it_was_made_in_the_digest() {
    let rename = |replaced| {
        let (from, to) = (place(fid(1), 1), place(fid(1), 0));
        record(5, Change::Rename { from, to, moved: fid(3), what: Moved::Leaf, replaced })
    };
    let records = vec![
        create(1, 1, 0, 2, FileKind::File),
        write(2, 2, 0, b"old contents"),
        create(3, 1, 1, 3, FileKind::File),
        write(4, 3, 0, b"new"),
        rename(Some((fid(2), Fate::Gone))),
    ];
    let kept = coalesce(records);
    assert_eq!(kept.iter().map(|record| record.lsn.0).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(kept[2], rename(None));
}

#[test]
fn what_was_done_to_an_inode_that_others_may_have_open_is_told_whatever_became_of_it() {
    let from = place(fid(1), 1);
    let replaced = Some((fid(2), Fate::Gone));
    let rename = Change::Rename { from, to: place(fid(1), 0), moved: fid(3), what: Moved::Leaf, replaced };
    let unlink = |then| Change::Unlink { place: place(fid(1), 0), fid: fid(2), then };
    for end in
        [vec![rename], vec![unlink(Fate::Gone)], vec![unlink(Fate::Stays), Change::Release { fid: fid(2) }]]
    {
        let done =
            vec![create(1, 1, 1, 3, FileKind::File), write(2, 2, 0, b"of a file that was there before")];
        let end = end.into_iter().zip(3..).map(|(change, lsn)| record(lsn, change));
        let records: Vec<Record> = done.into_iter().chain(end).collect();
        assert_eq!(coalesce(records.clone()), records);
    }
}

#[test]
fn bytes_that_are_overwritten_travel_once() {
    let fewer = coalesce(vec![write(1, 2, 0, b"aaaa"), write(2, 2, 0, b"bbbb"), write(3, 2, 4, b"cc")]);
    assert_eq!(fewer, [write(3, 2, 0, b"bbbbcc")]);
}

#[test]
fn long_writes_are_joined_where_they_lie_and_short_ones_copied() {
    let joined = |len: usize| {
        let whole = Bytes::from(vec![7; 8 * len]);
        let write = |at: usize| {
            let (offset, data) = ((at * len) as u64, whole.slice(at * len..(at + 1) * len).into());
            record(at as u64 + 1, Change::Write { fid: fid(2), offset, data, kill_suid_sgid: at == 3 })
        };
        let records = coalesce((0..8).map(write).collect());
        let [Record { lsn, change: Change::Write { offset: 0, data, kill_suid_sgid: true, .. }, .. }] =
            &records[..]
        else {
            panic!("{records:?}")
        };
        assert_eq!((lsn.0, data.to_bytes()), (8, whole.clone()));
        let stay =
            data.pieces().iter().filter(|piece| whole.as_ptr_range().contains(&piece.as_ptr())).count();
        (data.pieces().len(), stay)
    };
    assert_eq!((joined(64 << 10), joined(1000)), ((8, 8), (1, 0)));
}

#[test]
fn what_a_truncation_cuts_off_does_not_travel() {
    let truncate = |lsn, size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        record(lsn, Change::SetAttr { fid: fid(2), set })
    };
    let fewer = coalesce(vec![write(1, 2, 0, b"aaaa"), truncate(2, 2)]);
    assert_eq!(fewer, [write(1, 2, 0, b"aa"), truncate(2, 2)]);
}

#[test]
fn what_a_directory_handed_on_before_it_went_is_told() {
    let default = Change::SetXattr {
        fid: fid(2),
        name: XATTR_DEFAULT_LIST.to_vec(),
        value: Bytes::from_static(b"a list"),
        how: SetXattr::Either,
        kill_sgid: false,
    };
    let set = |set| Change::SetAttr { fid: fid(2), set };
    let group = set(SetAttr { perm: Some(0o2775), gid: Some(7), ..SetAttr::default() });
    let owner = set(SetAttr { uid: Some(7), ..SetAttr::default() });
    let moved = Change::Rename {
        from: place(fid(2), 0),
        to: place(fid(1), 1),
        moved: fid(3),
        what: Moved::Leaf,
        replaced: None,
    };
    let records = vec![
        create(1, 1, 0, 2, FileKind::Directory),
        record(2, owner),
        record(3, group),
        record(4, default),
        create(5, 2, 0, 3, FileKind::File),
        record(6, moved),
        record(7, Change::RemoveDirectory { place: place(fid(1), 0), fid: fid(2) }),
    ];
    let told: Vec<u64> = coalesce(records).iter().map(|record| record.lsn.0).collect();
    assert_eq!(told, [1, 3, 4, 5, 6, 7], "all but its owner");
}
