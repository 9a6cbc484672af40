use super::*;

fn fid(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

fn open(dir: &Path, limit: u64) -> Arc<DiskCache> {
    Arc::new(DiskCache::open(dir, fid(1), Timestamp::new(5, 6), limit).unwrap())
}

fn keep(cache: &Arc<DiskCache>, ino: u64, version: u64, offset: u64, bytes: &'static [u8]) {
    cache.keep(fid(ino), Version(version), offset, Bytes::from_static(bytes)).unwrap()();
}

fn read(cache: &DiskCache, ino: u64, version: u64, at: u64) -> Option<Bytes> {
    cache.find(fid(ino), Version(version), at).and_then(|extent| cache.read(&extent))
}

#[test]
fn short_pieces_cut_no_request_in_two() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 1 << 20);
    keep(&cache, 2, 7, 10, b"short");
    keep(&cache, 2, 7, 1000, &[1; WORTH_A_REQUEST as usize]);
    keep(&cache, 2, 8, 500_000, &[1; WORTH_A_REQUEST as usize]);
    let first = |range| cache.first_in(fid(2), Version(7), &range).map(|extent| extent.range());
    assert_eq!(first(12..20_000), Some(10..15), "at the beginning");
    assert_eq!(first(0..15), Some(10..15), "at the end");
    let long = 1000..1000 + u64::from(WORTH_A_REQUEST);
    assert_eq!((first(0..2000), first(0..1000)), (Some(long), None), "a long one in the middle");
    assert_eq!(first(400_000..600_000), None, "another version");
}

#[test]
fn survives_a_restart_and_goes_by_version() {
    let dir = tempfile::tempdir().unwrap();
    keep(&open(dir.path(), 20 * BLOCK), 2, 7, 10, b"hello");
    let cache = open(dir.path(), 20 * BLOCK);
    assert_eq!(read(&cache, 2, 7, 12).unwrap(), "hello");
    assert_eq!(read(&cache, 2, 8, 12), None);
    assert_eq!(read(&cache, 2, 7, 15), None);
    keep(&cache, 2, 8, 12, b"new");
    assert_eq!(read(&cache, 2, 7, 10), None, "an overlapping newer extent replaces it");
    assert_eq!((read(&cache, 2, 8, 14).unwrap(), cache.bytes()), (Bytes::from_static(b"new"), BLOCK));
    let other = DiskCache::open(dir.path(), fid(1), Timestamp::new(5, 7), 20 * BLOCK).unwrap();
    assert_eq!(other.bytes(), 0, "another volume");
}

#[test]
fn what_is_forgotten_is_gone_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 20 * BLOCK);
    for (ino, offset) in [(2, 0), (2, 100), (3, 0)] {
        keep(&cache, ino, 7, offset, b"hello");
    }
    cache.forget(&BTreeSet::from([fid(2), fid(9)]));
    assert_eq!((read(&cache, 2, 7, 0), read(&cache, 2, 7, 100)), (None, None));
    drop(cache);
    let cache = open(dir.path(), 20 * BLOCK);
    assert_eq!((read(&cache, 2, 7, 0), cache.bytes()), (None, BLOCK));
    assert_eq!(read(&cache, 3, 7, 0).unwrap(), "hello");
}

#[test]
fn damaged_and_foreign_files_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 20 * BLOCK);
    keep(&cache, 2, 7, 0, b"hello");
    keep(&cache, 3, 7, 0, b"world");
    let file = |ino: u64| cache.dir.join(format!("1-{ino:x}-0-7-0-5"));
    let mut bytes = fs::read(file(2)).unwrap();
    bytes[HEADER] ^= 1;
    fs::write(file(2), &bytes).unwrap();
    assert_eq!(read(&cache, 2, 7, 0), None);
    assert!(!file(2).exists());
    fs::copy(file(3), file(4)).unwrap();
    fs::write(cache.dir.join("junk"), b"x").unwrap();
    fs::write(cache.dir.join("1-5-0-7-0-5"), b"short").unwrap();
    drop(cache);
    let cache = open(dir.path(), 20 * BLOCK);
    assert!(!cache.dir.join("junk").exists());
    assert!(!cache.dir.join("1-5-0-7-0-5").exists());
    assert_eq!(read(&cache, 4, 7, 0), None, "another file's data under its name");
    assert_eq!(read(&cache, 3, 7, 0).unwrap(), "world");
}

#[test]
fn is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 3 * BLOCK - 1);
    for ino in 2..5 {
        keep(&cache, ino, 1, 0, b"hello");
    }
    assert_eq!(cache.bytes(), 2 * BLOCK);
    assert_eq!(fs::read_dir(&cache.dir).unwrap().count(), 3, "two extents and the lock");
    assert_eq!(read(&cache, 2, 1, 0), None);
    drop(cache);
    assert_eq!(open(dir.path(), BLOCK).bytes(), BLOCK);
}

#[test]
fn the_longest_extent_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 8 << 20);
    let longest = Bytes::from(vec![7; MOST_BYTES as usize - 1]);
    cache.keep(fid(2), Version(1), 0, longest.clone()).unwrap()();
    assert_eq!(read(&cache, 2, 1, 9), Some(longest));
    let longer = Bytes::from(vec![7; MOST_BYTES as usize]);
    assert!(cache.keep(fid(3), Version(1), 0, longer).is_none());
}

/// The time of a file is when it was used last, to a minute.
#[test]
fn a_use_is_noted_once_a_minute() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 20 * BLOCK);
    keep(&cache, 2, 7, 0, b"hello");
    let file = fs::File::open(cache.dir.join("1-2-0-7-0-5")).unwrap();
    let began = file.metadata().unwrap().modified().unwrap();
    let after = |now: SystemTime| {
        note_use(&file, &file.metadata().unwrap(), now);
        file.metadata().unwrap().modified().unwrap()
    };
    let second = Duration::from_secs(1);
    assert_eq!(after(began + USE_NOTED - second), began);
    assert_eq!(after(began + USE_NOTED), began + USE_NOTED);
    assert_eq!(after(began + USE_NOTED + second), began + USE_NOTED);
    assert_eq!(after(began), began, "the clock was set back");
    file.set_modified(began - 2 * USE_NOTED).unwrap();
    assert_eq!(read(&cache, 2, 7, 0).unwrap(), "hello");
    assert!(file.metadata().unwrap().modified().unwrap() >= began, "a read is a use");
}

#[test]
fn what_is_read_in_order_may_pass_once() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 8 << 20);
    cache.keep(fid(2), Version(7), 0, vec![7; UNIT as usize].into()).unwrap()();
    keep(&cache, 3, 7, 0, b"hello");
    let extent = |ino| cache.find(fid(ino), Version(7), 0).unwrap();
    assert!(cache.may_pass(&extent(2)));
    assert!(!cache.may_pass(&extent(2)), "whoever comes again");
    assert!(!cache.may_pass(&extent(3)), "a short one");
}

#[test]
fn two_clients_do_not_share_files() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (open(dir.path(), 20 * BLOCK), open(dir.path(), 20 * BLOCK));
    assert_ne!(first.dir, second.dir);
    keep(&first, 2, 7, 0, b"hello");
    assert_eq!(read(&second, 2, 7, 0), None);
    let first_dir = first.dir.clone();
    drop(first);
    assert_eq!(open(dir.path(), 20 * BLOCK).dir, first_dir);
}

/// What lies in the directory was written by anybody: names and contents of every kind are refused without harm.
#[test]
fn garbage_is_never_believed() {
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let good = Extent { fid: fid(2), version: Version(7), offset: 10, len: 5 };
    let check = |extent: &Extent, file: &[u8]| {
        let parts = file.split_at_checked(HEADER);
        parts.is_some_and(|(header, bytes)| header == header_of(extent, bytes))
    };
    let name = name_of(&good);
    assert_eq!(parse_name(&name), Some(good));
    let mut file = header_of(&good, b"hello");
    file.extend_from_slice(b"hello");
    assert!(check(&good, &file));
    for _ in 0..20_000 {
        let mut bad = name.clone().into_bytes();
        let at = random() as usize % bad.len();
        bad[at] = b"0123456789abcdefABC-+. "[random() as usize % 23];
        if let Some(extent) = std::str::from_utf8(&bad).ok().and_then(parse_name) {
            assert_eq!(name_of(&extent).into_bytes(), bad);
            assert!(extent == good || !check(&extent, &file), "another name has the same contents");
        }
        let mut damaged = file.clone();
        let at = random() as usize % damaged.len();
        damaged[at] ^= 1 << (random() % 8);
        assert!(!check(&good, &damaged));
        damaged.truncate(random() as usize % damaged.len());
        assert!(!check(&good, &damaged));
    }
    for name in ["", "-----", "1-2-3-4-5", "1-2-3-4-ffffffffffffffff-5", "1-2-3-4-5-0", "01-2-0-7-a-5"] {
        assert_eq!(parse_name(name), None, "{name}");
    }
}

#[test]
fn a_disk_that_fails_only_ends_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path(), 20 * BLOCK);
    fs::remove_dir_all(&cache.dir).unwrap();
    keep(&cache, 2, 1, 0, b"hello");
    assert!(!cache.has_room());
    assert!(cache.keep(fid(2), Version(1), 0, Bytes::from_static(b"x")).is_none());
    assert_eq!(read(&cache, 2, 1, 0), None);
}
