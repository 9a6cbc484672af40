//! Stories with the answers that POSIX and Linux give, and properties that hold for any sequence of operations.
//! Whether the reference agrees with a real file system is tested where there is one: `crates/system-tests`.

use soda_model::{
    Access, Alphabet, Disposition, Fallocate, Fill, Follow, Generator, Handle, Op, OpenMode, Outcome,
    Placement, ReferenceFs, RenameMode, TreePath, XattrMode,
};
use soda_types::{Errno, FileKind, Timestamp};

fn path(text: &str) -> TreePath {
    TreePath::parse(text)
}

fn mkdir(text: &str) -> Op {
    Op::Mkdir { path: path(text), perm: 0o755 }
}

fn open(handle: u8, text: &str, disposition: Disposition) -> Op {
    open_as(handle, text, disposition, Access::ReadWrite, OpenMode::AtOffset)
}

fn open_as(handle: u8, text: &str, disposition: Disposition, access: Access, mode: OpenMode) -> Op {
    Op::Open { handle: Handle(handle), path: path(text), access, disposition, mode, perm: 0o644 }
}

fn write(handle: u8, offset: u64, len: u32) -> Op {
    Op::Write { handle: Handle(handle), offset, fill: Fill { seed: 1, len } }
}

fn rename(from: &str, to: &str, mode: RenameMode) -> Op {
    Op::Rename { from: path(from), to: path(to), mode }
}

fn symlink(target: &str, text: &str) -> Op {
    Op::Symlink { target: path(target), path: path(text) }
}

fn unlink(text: &str) -> Op {
    Op::Unlink { path: path(text) }
}

/// Applies each and checks what it answers.
fn story(fs: &mut ReferenceFs, steps: &[(Op, Outcome)]) {
    for (number, (op, expected)) in steps.iter().enumerate() {
        assert_eq!(&fs.apply(op), expected, "step {number}: {op:?}");
    }
}

fn nlink(fs: &mut ReferenceFs, text: &str) -> u32 {
    match fs.apply(&Op::Stat { path: path(text), follow: Follow::LinkItself }) {
        Outcome::Stat(seen) => seen.nlink,
        other => panic!("{text}: {other:?}"),
    }
}

use Outcome::{Done, Failed};

#[test]
fn names_come_and_go() {
    let mut fs = ReferenceFs::new();
    story(
        &mut fs,
        &[
            (mkdir("d"), Done),
            (mkdir("d"), Failed(Errno::Exists)),
            (mkdir("x/y"), Failed(Errno::NoEntry)),
            (open(0, "d/f", Disposition::CreateNew), Done),
            (open(1, "d/f", Disposition::CreateNew), Failed(Errno::Exists)),
            (mkdir("d/f/g"), Failed(Errno::NotDirectory)),
            (Op::Rmdir { path: path("d") }, Failed(Errno::NotEmpty)),
            (Op::Rmdir { path: path("d/f") }, Failed(Errno::NotDirectory)),
            (unlink("d"), Failed(Errno::IsDirectory)),
            (unlink("d/f"), Done),
            (unlink("d/f"), Failed(Errno::NoEntry)),
            (Op::Rmdir { path: path("d") }, Done),
        ],
    );
    assert!(fs.paths().is_empty());
}

#[test]
fn a_file_without_a_name_lives_until_it_is_closed() {
    let mut fs = ReferenceFs::new();
    story(&mut fs, &[(open(0, "f", Disposition::CreateNew), Done), (write(0, 0, 10), Outcome::Count(10))]);
    let Outcome::Stat(seen) = fs.apply(&Op::Fstat { handle: Handle(0) }) else { panic!("no stat") };
    story(&mut fs, &[(unlink("f"), Done)]);
    assert!(fs.is_alive(seen.ino));
    let Outcome::Stat(orphan) = fs.apply(&Op::Fstat { handle: Handle(0) }) else { panic!("no stat") };
    assert_eq!((orphan.nlink, orphan.size), (0, 10));
    story(
        &mut fs,
        &[
            (Op::Close { handle: Handle(0) }, Done),
            (Op::Close { handle: Handle(0) }, Failed(Errno::BadHandle)),
        ],
    );
    assert!(!fs.is_alive(seen.ino));
}

#[test]
fn links_count() {
    let mut fs = ReferenceFs::new();
    let link = |from: &str, to: &str| Op::Link { from: path(from), to: path(to) };
    story(
        &mut fs,
        &[
            (open(0, "f", Disposition::CreateNew), Done),
            (link("f", "g"), Done),
            (link("f", "g"), Failed(Errno::Exists)),
            (mkdir("d"), Done),
            (link("d", "e"), Failed(Errno::Perm)),
            (link("missing", "e"), Failed(Errno::NoEntry)),
            (mkdir("d/s"), Done),
            // Two names of one file: rename does nothing at all.
            (rename("f", "g", RenameMode::Replace), Done),
        ],
    );
    assert_eq!((nlink(&mut fs, "f"), nlink(&mut fs, "g"), nlink(&mut fs, "d")), (2, 2, 3));
    story(&mut fs, &[(unlink("f"), Done)]);
    assert_eq!(nlink(&mut fs, "g"), 1);
}

#[test]
fn renames() {
    let mut fs = ReferenceFs::new();
    story(
        &mut fs,
        &[
            (mkdir("d"), Done),
            (mkdir("d/in"), Done),
            (open(0, "f", Disposition::CreateNew), Done),
            (open(1, "g", Disposition::CreateNew), Done),
            (rename("f", "g", RenameMode::NoReplace), Failed(Errno::Exists)),
            (rename("f", "h", RenameMode::Exchange), Failed(Errno::NoEntry)),
            (rename("f", "d", RenameMode::Replace), Failed(Errno::IsDirectory)),
            (rename("d", "f", RenameMode::Replace), Failed(Errno::NotDirectory)),
            (rename("d", "d/in/x", RenameMode::Replace), Failed(Errno::Invalid)),
            (rename("d/in", "d", RenameMode::Replace), Failed(Errno::NotEmpty)),
            (rename("d/in", "d", RenameMode::Exchange), Failed(Errno::Invalid)),
            (rename("f", "d", RenameMode::Exchange), Done),
            (
                Op::Readdir { path: path("f") },
                Outcome::Names(vec![(path("in").last, Some(FileKind::Directory))]),
            ),
            (rename("f", "e", RenameMode::NoReplace), Done),
            (mkdir("other"), Done),
            (rename("other", "e", RenameMode::Replace), Failed(Errno::NotEmpty)),
            (rename("e", "other", RenameMode::Replace), Done),
            (rename("d", "g", RenameMode::Replace), Done),
        ],
    );
    assert_eq!(format!("{:?}", fs.paths()), "[g, other, other/in]");
    assert_eq!(nlink(&mut fs, "other"), 3);
}

#[test]
fn symbolic_links_are_followed_where_linux_follows() {
    let mut fs = ReferenceFs::new();
    story(
        &mut fs,
        &[
            (mkdir("d"), Done),
            (symlink("d", "l"), Done),
            (symlink("nowhere", "dangling"), Done),
            (symlink("loop", "loop"), Done),
            (mkdir("l/in"), Done),
            (mkdir("dangling"), Failed(Errno::Exists)),
            (open(0, "dangling", Disposition::CreateNew), Failed(Errno::Exists)),
            (open(0, "dangling", Disposition::MustExist), Failed(Errno::NoEntry)),
            (open(0, "dangling", Disposition::Create), Done),
            (open(0, "loop", Disposition::Create), Failed(Errno::Loop)),
            (mkdir("loop/x"), Failed(Errno::Loop)),
            (Op::Rmdir { path: path("l") }, Failed(Errno::NotDirectory)),
            (Op::Readlink { path: path("l") }, Outcome::Bytes(b"d".to_vec())),
            (Op::Readlink { path: path("d") }, Failed(Errno::Invalid)),
            (unlink("l"), Done),
        ],
    );
    assert_eq!(format!("{:?}", fs.paths()), "[d, dangling, loop, nowhere, d/in]");
}

#[test]
fn data_and_sizes() {
    let mut fs = ReferenceFs::new();
    let read = |handle, offset, len| Op::Read { handle: Handle(handle), offset, len };
    let pattern = Fill { seed: 1, len: 4 }.bytes();
    let hole = |mode| Op::Fallocate { handle: Handle(0), mode, offset: 1, len: 2 };
    story(
        &mut fs,
        &[
            (open(0, "f", Disposition::CreateNew), Done),
            (open_as(1, "f", Disposition::MustExist, Access::Read, OpenMode::AtOffset), Done),
            (open_as(2, "f", Disposition::MustExist, Access::Write, OpenMode::Append), Done),
            (write(1, 0, 4), Failed(Errno::BadHandle)),
            (read(2, 0, 4), Failed(Errno::BadHandle)),
            (Op::Ftruncate { handle: Handle(1), size: 0 }, Failed(Errno::Invalid)),
            (write(0, 0, 4), Outcome::Count(4)),
            (write(2, 0, 4), Outcome::Count(4)),
            (read(1, 0, 100), Outcome::Bytes([&pattern[..], &pattern].concat())),
            (hole(Fallocate::PunchHole), Done),
            (read(1, 0, 4), Outcome::Bytes(vec![pattern[0], 0, 0, pattern[3]])),
            (Op::Truncate { path: path("f"), size: 2 }, Done),
            (hole(Fallocate::AllocateKeepSize), Done),
            (read(1, 0, 100), Outcome::Bytes(vec![pattern[0], 0])),
            (hole(Fallocate::Allocate), Done),
            (read(1, 0, 100), Outcome::Bytes(vec![pattern[0], 0, 0])),
            (open(0, "f", Disposition::Truncate), Done),
            (read(1, 0, 100), Outcome::Bytes(vec![])),
        ],
    );
}

#[test]
fn extended_attributes() {
    let mut fs = ReferenceFs::new();
    let name = || path("user.one").last;
    let set = |mode| Op::SetXattr { path: path("f"), name: name(), value: b"v".to_vec(), mode };
    let get = Op::GetXattr { path: path("f"), name: name() };
    story(
        &mut fs,
        &[
            (open(0, "f", Disposition::CreateNew), Done),
            (get.clone(), Failed(Errno::NoData)),
            (set(XattrMode::Replace), Failed(Errno::NoData)),
            (set(XattrMode::Create), Done),
            (set(XattrMode::Create), Failed(Errno::Exists)),
            (get, Outcome::Bytes(b"v".to_vec())),
            (Op::ListXattr { path: path("f") }, Outcome::Names(vec![(name(), None)])),
            (Op::RemoveXattr { path: path("f"), name: name() }, Done),
            (Op::RemoveXattr { path: path("f"), name: name() }, Failed(Errno::NoData)),
        ],
    );
}

#[test]
fn a_time_that_was_set_is_known_until_the_file_changes() {
    let mut fs = ReferenceFs::new();
    let mtime = Timestamp::new(5, 7);
    story(
        &mut fs,
        &[(open(0, "f", Disposition::CreateNew), Done), (Op::Utimens { path: path("f"), mtime }, Done)],
    );
    let seen = |fs: &mut ReferenceFs| match fs.apply(&Op::Fstat { handle: Handle(0) }) {
        Outcome::Stat(seen) => seen.mtime,
        other => panic!("{other:?}"),
    };
    assert_eq!(seen(&mut fs), Some(mtime));
    story(&mut fs, &[(Op::Chmod { path: path("f"), perm: 0o600 }, Done)]);
    assert_eq!(seen(&mut fs), Some(mtime));
    story(&mut fs, &[(write(0, 0, 1), Outcome::Count(1))]);
    assert_eq!(seen(&mut fs), None);
}

#[test]
fn the_same_seed_makes_the_same_operations() {
    let ops = |seed| Generator::new(seed, Alphabet::Full, Placement::Sparse).take(500).collect::<Vec<_>>();
    assert_eq!(ops(3), ops(3));
    assert_ne!(ops(3), ops(4));
}

/// Operations meet often enough to mean something, and the tree stays sound: counted links are the links there are.
#[test]
fn random_operations_keep_the_tree_sound() {
    for seed in 0..20 {
        let mut fs = ReferenceFs::new();
        let mut succeeded = 0;
        for op in Generator::new(seed, Alphabet::Full, Placement::Within { bytes: 100_000 }).take(2000) {
            if !matches!(fs.apply(&op), Failed(_)) {
                succeeded += 1;
            }
        }
        assert!(succeeded > 400, "seed {seed}: only {succeeded} of 2000 succeeded");
        let mut names_of = std::collections::BTreeMap::new();
        for path in fs.paths() {
            let Outcome::Stat(seen) = fs.apply(&Op::Stat { path, follow: Follow::LinkItself }) else {
                panic!("gone")
            };
            if seen.kind != FileKind::Directory {
                names_of.entry(seen.ino).or_insert((seen.nlink, 0)).1 += 1;
            }
        }
        assert!(names_of.values().all(|(nlink, found)| nlink == found), "seed {seed}: {names_of:?}");
        for op in fs.inspection() {
            let outcome = fs.apply(&op);
            assert!(!matches!(outcome, Failed(_)), "seed {seed}: {op:?}: {outcome:?}");
        }
    }
}
