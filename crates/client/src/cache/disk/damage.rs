//! Whatever happens to the files of a cache directory: it gives the right bytes or none, and goes on.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

const LIMIT: u64 = 16 * BLOCK;
/// Small, so that extents meet: inodes, versions and the bytes of a file.
const INODES: Range<u64> = 2..5;
const VERSIONS: Range<u64> = 1..3;
const FILE: Range<u64> = 0..64;

/// A file of the directory, or a file that was one.
type Which = prop::sample::Index;

#[derive(Clone, Debug)]
enum Damage {
    Flip(Which, Which, u8),
    CutTo(Which, Which),
    Append(Which, Vec<u8>),
    Patch(Which, Which, Vec<u8>),
    Contents(Which, Vec<u8>),
    CopyOver(Which, Which),
    Swap(Which, Which),
    RenameTo(Which, String),
    CopyTo(Which, String),
    Remove(Which),
    Directory(Which),
    SymbolicLink(Which, Which),
    Fifo(Which),
    LastUsed(Which, u32),
    New(String, Vec<u8>),
    NewFifo(String),
}

/// When it happens to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    WhileOpen,
    Between,
}

/// An extent that is kept.
#[derive(Clone, Debug)]
struct Kept {
    ino: u64,
    version: u64,
    range: Range<u64>,
}

fn kept() -> impl Strategy<Value = Kept> {
    let range = (FILE, 1..20u64).prop_map(|(start, len)| start..(start + len).min(FILE.end));
    (INODES, VERSIONS, range).prop_map(|(ino, version, range)| Kept { ino, version, range })
}

/// What the server has there.
fn right(ino: u64, version: u64, range: Range<u64>) -> Bytes {
    let byte =
        |at: u64| (ino << 32 | version << 16 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
    range.map(byte).collect()
}

/// Names that look like those of extents, some of them on purpose almost the same.
fn name() -> impl Strategy<Value = String> {
    let number = prop_oneof![0..6u64, 0..70u64, any::<u64>()];
    let like_ours = vec(number, 6)
        .prop_map(|numbers| numbers.iter().map(|number| format!("{number:x}")).collect::<Vec<_>>().join("-"));
    let near = (INODES, VERSIONS, FILE, 1..20u64, prop_oneof![Just(""), Just(".new")]).prop_map(
        |(ino, version, offset, len, end)| format!("1-{ino:x}-0-{version:x}-{offset:x}-{len:x}{end}"),
    );
    prop_oneof![
        like_ours,
        near,
        "[0-9a-f-]{1,20}",
        "[^/\0]{1,20}".prop_filter("a file's name", |name| name != "." && name != "..")
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    let which = any::<Which>;
    let junk = || vec(any::<u8>(), 0..80);
    prop_oneof![
        (which(), which(), 1..=255u8).prop_map(|(file, at, bits)| Damage::Flip(file, at, bits)),
        (which(), which()).prop_map(|(file, len)| Damage::CutTo(file, len)),
        (which(), junk()).prop_map(|(file, bytes)| Damage::Append(file, bytes)),
        (which(), which(), junk()).prop_map(|(file, at, bytes)| Damage::Patch(file, at, bytes)),
        (which(), junk()).prop_map(|(file, bytes)| Damage::Contents(file, bytes)),
        (which(), which()).prop_map(|(from, to)| Damage::CopyOver(from, to)),
        (which(), which()).prop_map(|(one, other)| Damage::Swap(one, other)),
        (which(), name()).prop_map(|(file, name)| Damage::RenameTo(file, name)),
        (which(), name()).prop_map(|(file, name)| Damage::CopyTo(file, name)),
        which().prop_map(Damage::Remove),
        which().prop_map(Damage::Directory),
        (which(), which()).prop_map(|(file, to)| Damage::SymbolicLink(file, to)),
        which().prop_map(Damage::Fifo),
        (which(), any::<u32>()).prop_map(|(file, secs)| Damage::LastUsed(file, secs)),
        (name(), junk()).prop_map(|(name, bytes)| Damage::New(name, bytes)),
        name().prop_map(Damage::NewFifo),
    ]
}

/// Some do not work after others, such as cutting what is a directory by now; then nothing happens.
fn inflict(dir: &Path, files: &[PathBuf], damage: &Damage) -> io::Result<()> {
    let file = |which: &Which| &files[which.index(files.len())];
    let change = |which: &Which, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = read_regular(file(which))?;
        change(&mut bytes);
        fs::write(file(which), bytes)
    };
    match damage {
        Damage::Flip(which, at, bits) => change(which, &|bytes| {
            let at = at.index(bytes.len().max(1));
            bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= bits);
        }),
        Damage::CutTo(which, len) => change(which, &|bytes| bytes.truncate(len.index(bytes.len() + 1))),
        Damage::Append(which, more) => change(which, &|bytes| bytes.extend_from_slice(more)),
        Damage::Patch(which, at, patch) => change(which, &|bytes| {
            let at = at.index(bytes.len() + 1);
            bytes.iter_mut().skip(at).zip(patch).for_each(|(byte, new)| *byte = *new);
        }),
        Damage::Contents(which, contents) => change(which, &|bytes| bytes.clone_from(contents)),
        Damage::CopyOver(from, to) => change(to, &|bytes| {
            bytes.clone_from(&read_regular(file(from)).unwrap_or_default());
        }),
        Damage::Swap(one, other) => {
            let between = dir.join("between");
            fs::rename(file(one), &between)?;
            let _ = fs::rename(file(other), file(one));
            fs::rename(between, file(other))
        }
        Damage::RenameTo(which, name) => fs::rename(file(which), dir.join(name)),
        Damage::CopyTo(which, name) => {
            let bytes = read_regular(file(which))?;
            let _ = fs::remove_file(dir.join(name));
            fs::write(dir.join(name), bytes)
        }
        Damage::Remove(which) => fs::remove_file(file(which)),
        Damage::Directory(which) => {
            fs::remove_file(file(which))?;
            fs::create_dir(file(which))
        }
        Damage::SymbolicLink(which, to) => {
            fs::remove_file(file(which))?;
            symlink(file(to), file(which))
        }
        Damage::Fifo(which) => {
            fs::remove_file(file(which))?;
            make_fifo(file(which))
        }
        Damage::LastUsed(which, secs) => {
            read_regular(file(which))?;
            let used = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(*secs));
            fs::File::open(file(which))?.set_modified(used)
        }
        Damage::New(name, bytes) => {
            // What is there may be a FIFO by now.
            let _ = fs::remove_file(dir.join(name));
            fs::write(dir.join(name), bytes)
        }
        Damage::NewFifo(name) => make_fifo(&dir.join(name)),
    }
}

fn make_fifo(path: &Path) -> io::Result<()> {
    Ok(mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
}

fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    match fs::symlink_metadata(path)?.is_file() {
        true => fs::read(path),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn fid(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

fn open(dir: &Path) -> Arc<DiskCache> {
    Arc::new(DiskCache::open(dir, fid(1), Timestamp::new(5, 6), LIMIT).unwrap())
}

fn keep(cache: &Arc<DiskCache>, Kept { ino, version, range }: &Kept) {
    let bytes = right(*ino, *version, range.clone());
    if let Some(write) = cache.keep(fid(*ino), Version(*version), range.start, bytes) {
        write();
    }
}

/// Asks for every byte of every version. Returns how many extents were given.
fn read_everything(cache: &DiskCache) -> usize {
    let mut given = 0;
    for (ino, version) in INODES.flat_map(|ino| VERSIONS.map(move |version| (ino, version))) {
        for at in FILE {
            let Some(extent) = cache.find(fid(ino), Version(version), at) else { continue };
            assert!(extent.range().contains(&at) && extent.version() == Version(version));
            if let Some(bytes) = cache.read(&extent) {
                assert_eq!(bytes, right(ino, version, extent.range()), "{extent:?}");
                given += 1;
            }
        }
    }
    given
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_files_give_right_bytes_or_none(
        before in vec(kept(), 1..12),
        damages in vec(damage(), 1..12),
        after in vec(kept(), 0..4),
        moment in prop_oneof![Just(Moment::WhileOpen), Just(Moment::Between)],
    ) {
        let parent = tempfile::tempdir().unwrap();
        let cache = open(parent.path());
        before.iter().for_each(|kept| keep(&cache, kept));
        prop_assert!(read_everything(&cache) > 0);
        let dir = cache.dir.clone();
        let entries = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = entries.filter(|path| !path.ends_with(LOCK)).collect();
        files.sort();
        let inflict_all = || damages.iter().for_each(|damage| drop(inflict(&dir, &files, damage)));
        let cache = match moment {
            Moment::WhileOpen => {
                inflict_all();
                cache
            }
            Moment::Between => {
                drop(cache);
                inflict_all();
                open(parent.path())
            }
        };
        read_everything(&cache);
        after.iter().for_each(|kept| keep(&cache, kept));
        read_everything(&cache);
        prop_assert!(cache.bytes() <= LIMIT);
    }
}
