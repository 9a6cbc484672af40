use super::super::directory::FORMAT_VERSION;
use super::table::Gap;
use super::*;
use crate::MetaRead;
use fjall::config::{CompressionPolicy, PartitioningPolicy};
use fjall::{CompressionType, Database, KeyspaceCreateOptions, PersistMode};
use std::collections::BTreeSet;

type Records = BTreeMap<(Table, Bytes), Bytes>;

/// A tree each, and three that share one.
const TABLES: [Table; 6] =
    [Table::Inode, Table::Dirent, Table::Extent, Table::Reply, Table::Meta, Table::Session];

const KEYS: u64 = 300;

fn key(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes())
}

/// A directory whose trees have several tables each, with newer and older of the same keys, and a journal. What is in it.
fn directory() -> (tempfile::TempDir, Records) {
    let directory = tempfile::tempdir().unwrap();
    let open = || DataDirectory::open(directory.path(), StoreOptions::default()).unwrap();
    let mut store = open();
    store.meta.complete().unwrap();
    let mut records = Records::new();
    for round in 0..7u64 {
        let mut batch = Batch::new();
        for table in TABLES {
            for number in 0..KEYS {
                match (number * 7 + round * 3) % 5 {
                    0 if round > 0 => {
                        batch.delete(table, key(number));
                        records.remove(&(table, key(number)));
                    }
                    1 | 2 if round > 0 => {}
                    _ => {
                        let value = Bytes::from(vec![round as u8 + 1; 40 + (number % 50) as usize]);
                        batch.put(table, key(number), value.clone());
                        records.insert((table, key(number)), value);
                    }
                }
            }
        }
        store.meta.commit(batch).unwrap();
        store.meta.sync().unwrap();
        if round < 6 {
            store.meta.checkpoint().unwrap();
        }
        // The last round is in the journal, and nothing else.
        if round == 5 {
            drop(store);
            store = open();
        }
    }
    (directory, records)
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push(path),
        }
    }
    all.sort();
    all
}

/// Turns bits of a byte over, looks, and puts it right again.
fn with_damage<T>(places: &[(&Path, u64)], look: impl FnOnce() -> T) -> T {
    let good: Vec<_> = places.iter().map(|(path, _)| (*path, fs::read(path).unwrap())).collect();
    for (path, at) in places {
        let mut bytes = fs::read(path).unwrap();
        bytes[*at as usize] ^= 0xa5;
        fs::write(path, bytes).unwrap();
    }
    let result = look();
    good.into_iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    result
}

/// What is kept is what was there, or is named; what is missing is where something is said to be lost.
#[track_caller]
fn assert_told(damaged: &DamagedMetadata, records: &Records, what: &str) -> (usize, Salvaged) {
    let mut found = Records::new();
    let salvaged = damaged.each(|table, key, value| {
        assert!(found.insert((table, key), value).is_none(), "{what}: a key twice");
        Ok(())
    });
    let salvaged = salvaged.unwrap();
    let old: BTreeSet<_> = salvaged.old.iter().map(|old| (old.table, old.key.clone())).collect();
    let is_lost = |table: Table, key: &Bytes| {
        salvaged.lost.iter().any(|range| {
            let is_before_end = range.last.as_ref().is_none_or(|last| key <= last);
            range.table == table && range.first <= *key && is_before_end
        })
    };
    for ((table, key), value) in &found {
        let is_newest = records.get(&(*table, key.clone())) == Some(value);
        assert!(is_newest || old.contains(&(*table, key.clone())), "{what}: {table:?} {key:?} is old");
    }
    let missing: Vec<_> = records.keys().filter(|place| !found.contains_key(*place)).collect();
    for (table, key) in &missing {
        assert!(is_lost(*table, key), "{what}: {table:?} {key:?} is lost in silence");
    }
    (missing.len(), salvaged)
}

#[test]
fn what_is_whole_is_not_taken_for_damaged() {
    let (directory, _) = directory();
    assert!(DataDirectory::damaged_metadata(directory.path()).unwrap().is_none());
}

/// Any byte of any file of the trees: all that is not named is there, and as it was.
#[test]
fn whatever_byte_is_wrong_all_else_is_there() {
    let (directory, records) = directory();
    let opened = || {
        let shadow = tempfile::tempdir().unwrap();
        DataDirectory::open_to_look(directory.path(), shadow.path(), StoreOptions::default())
    };
    let (mut damaged, mut blocks, mut lost_most) = (0, 0, 0);
    for (number, path) in files(&directory.path().join("meta/keyspaces")).iter().enumerate() {
        let len = fs::metadata(path).unwrap().len();
        let step = (len / 25).max(1);
        for at in (number as u64 % step..len).step_by(step as usize) {
            let what = format!("{} at {at} of {len}", path.display());
            with_damage(&[(path, at)], || match DataDirectory::damaged_metadata(directory.path()).unwrap() {
                Some(found) => {
                    let (lost, salvaged) = assert_told(&found, &records, &what);
                    damaged += 1;
                    blocks += usize::from(!salvaged.lost.is_empty());
                    lost_most = lost_most.max(lost);
                    assert_eq!(salvaged.lost.is_empty(), found.has_all_records(), "{what}");
                    assert!(salvaged.lost.len() + salvaged.damaged.len() > 0, "{what}: nothing is said");
                    // The filters tell what a damaged block had from all else in its range.
                    let in_doubt = salvaged.old.iter().filter(|old| old.table != Table::Inode).count();
                    assert_eq!(in_doubt, 0, "{what}");
                }
                // Something that nobody reads.
                None => drop(opened().unwrap_or_else(|error| panic!("{what}: {error}"))),
            });
        }
    }
    assert!(damaged > 150 && blocks > 50, "{damaged} {blocks}");
    assert!(lost_most > 5 && lost_most < records.len() / 10, "{lost_most} of {}", records.len());
}

#[test]
fn several_damaged_places_at_once() {
    let (directory, records) = directory();
    let files = files(&directory.path().join("meta/keyspaces"));
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..80 {
        let mut places = BTreeMap::new();
        for _ in 0..2 + random(4) {
            let path = &*files[random(files.len() as u64) as usize];
            places.insert(path, random(fs::metadata(path).unwrap().len()));
        }
        let places: Vec<_> = places.into_iter().collect();
        with_damage(&places, || {
            if let Some(found) = DataDirectory::damaged_metadata(directory.path()).unwrap() {
                assert_told(&found, &records, &format!("{places:?}"));
            }
        });
    }
}

#[test]
fn a_table_that_is_cut_off_or_gone_loses_no_more_than_it_had() {
    let (directory, records) = directory();
    for path in files(&directory.path().join("meta/keyspaces")) {
        let good = fs::read(&path).unwrap();
        for len in [0, 20, good.len() / 3, good.len() - 1] {
            fs::write(&path, &good[..len]).unwrap();
            let found = DataDirectory::damaged_metadata(directory.path()).unwrap();
            found.iter().for_each(|found| drop(assert_told(found, &records, &path.display().to_string())));
        }
        fs::remove_file(&path).unwrap();
        let found = DataDirectory::damaged_metadata(directory.path()).unwrap();
        found.iter().for_each(|found| drop(assert_told(found, &records, &path.display().to_string())));
        fs::write(&path, good).unwrap();
    }
}

/// A table of the tree of names whose first records are nowhere else.
fn table_that_is_missed(directory: &Path, records: &Records) -> PathBuf {
    let tables = files(&directory.join("meta/keyspaces/2/tables")).into_iter();
    let is_missed = |table: &PathBuf| {
        with_damage(&[(table, 100)], || {
            let damaged = DataDirectory::damaged_metadata(directory).unwrap().unwrap();
            assert_told(&damaged, records, "the first block").0 > 0
        })
    };
    tables.into_iter().find(is_missed).unwrap()
}

#[test]
fn new_metadata_take_the_place_of_damaged_ones_which_are_kept() {
    let (directory, records) = directory();
    let path = directory.path();
    let table = table_that_is_missed(path, &records);
    let mut bytes = fs::read(&table).unwrap();
    bytes[100] ^= 1;
    fs::write(&table, &bytes).unwrap();
    // As an attempt leaves it that was cut short.
    fs::create_dir_all(path.join("meta.new/keyspaces/1/tables")).unwrap();
    fs::write(path.join("meta.new/1.jnl"), b"half of it").unwrap();
    let salvaged = || {
        let damaged = DataDirectory::damaged_metadata(path).unwrap().unwrap();
        damaged.salvage(&StoreOptions::default()).unwrap()
    };
    drop(salvaged());
    let salvage = salvaged();
    assert!(!salvage.found.lost.is_empty());
    let kept = salvage.install("2026-11-26").unwrap();
    assert_eq!(kept, path.canonicalize().unwrap().join("meta.damaged-2026-11-26"));
    assert_eq!(fs::read(kept.join(table.strip_prefix(path.join("meta")).unwrap())).unwrap(), bytes);
    assert!(!path.join(META_NEW).exists());
    assert!(DataDirectory::damaged_metadata(path).unwrap().is_none());
    let store = DataDirectory::open(path, StoreOptions::default()).unwrap();
    let mut lost = 0;
    for ((table, key), value) in &records {
        match store.meta.get(*table, key).unwrap() {
            Some(found) if *table != Table::Inode => assert_eq!(found, value),
            Some(_) => {}
            None => lost += 1,
        }
    }
    assert!(lost > 0 && lost < records.len() / 10, "{lost}");
    // The next one does not take its place.
    assert_eq!(free_name(path, "2026-11-26"), path.join("meta.damaged-2026-11-26-2"));
}

/// The engine takes a tree without it for one that it has not made to the end, and removes it.
#[test]
fn a_tree_without_its_list_of_tables_is_not_removed() {
    let (directory, _) = directory();
    let current = directory.path().join("meta/keyspaces/2/current");
    let good = fs::read(&current).unwrap();
    fs::remove_file(&current).unwrap();
    let error = DataDirectory::open(directory.path(), StoreOptions::default()).unwrap_err();
    assert!(matches!(error, StorageError::DamagedMetadata { .. }), "{error}");
    fs::write(&current, good).unwrap();
    assert!(DataDirectory::open(directory.path(), StoreOptions::default()).is_ok());
}

/// Large stores have compressed blocks, and indexes and filters in parts.
#[test]
fn tables_of_all_kinds_are_read() {
    for (compression, is_parted) in
        [(CompressionType::None, true), (CompressionType::Lz4, false), (CompressionType::Lz4, true)]
    {
        let directory = tempfile::tempdir().unwrap();
        let database = Database::builder(directory.path()).open().unwrap();
        let options = || {
            KeyspaceCreateOptions::default()
                .data_block_compression_policy(CompressionPolicy::all(compression))
                .index_block_partitioning_policy(PartitioningPolicy::all(is_parted))
                .filter_block_partitioning_policy(PartitioningPolicy::all(is_parted))
        };
        let tree = database.keyspace("tree", options).unwrap();
        let value = |number: u64| vec![number as u8; 200 + number as usize % 100];
        for number in 0..2000u64 {
            tree.insert(number.to_be_bytes(), value(number)).unwrap();
        }
        database.persist(PersistMode::SyncAll).unwrap();
        tree.rotate_memtable_and_wait().unwrap();
        let path = directory.path().join("keyspaces/1");
        let read = |tree: &Tree| {
            let mut found = Vec::new();
            let each = tree.each(&Journalled::new(), |record| {
                found.push((record.key, record.value.unwrap()));
                Ok::<(), ()>(())
            });
            each.unwrap();
            found
        };
        let sound = Tree::open(&path).unwrap();
        assert!(sound.is_sound(), "{compression:?} {is_parted}: {sound:?}");
        let expected: Vec<(Bytes, Bytes)> = (0..2000u64)
            .map(|number| (Bytes::copy_from_slice(&number.to_be_bytes()), value(number).into()))
            .collect();
        assert_eq!(read(&sound), expected);
        let table = files(&path.join("tables"))[0].clone();
        let len = fs::metadata(&table).unwrap().len();
        for at in (0..len).step_by(4999) {
            with_damage(&[(&table, at)], || {
                let damaged = Tree::open(&path).unwrap();
                let found: BTreeSet<_> = read(&damaged).into_iter().collect();
                let gaps: Vec<Gap> = damaged.gaps().map(|(_, gap)| gap).collect();
                let missing = expected.iter().filter(|record| !found.contains(*record));
                let mut missing = missing.inspect(|(key, _)| assert!(gaps.iter().any(|gap| gap.has(key))));
                assert!(missing.by_ref().count() < 100, "{at} of {len}");
            });
        }
    }
}

#[test]
fn a_directory_that_is_none_is_not_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let error = DataDirectory::damaged_metadata(directory.path()).unwrap_err();
    assert!(matches!(error, StorageError::NoDataDirectory { .. }), "{error}");
    fs::write(directory.path().join("FORMAT"), format!("soda data directory\nversion {FORMAT_VERSION}\n"))
        .unwrap();
    let error = DataDirectory::damaged_metadata(directory.path()).unwrap_err();
    assert!(matches!(error, StorageError::NoMetadata { .. }), "{error}");
}
