//! Logs that a disk has damaged, or a power cut of this machine has left with a hole: kept as they are found.

use super::*;
use soda_client::recover;

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_log_is_not_applied_but_kept() {
    let cell = Cell::start();
    let victim = Victim::start(&cell).await;
    victim
        .run(|client| async move {
            let dir = mkdir(&client, client.root(), "d").await;
            for text in ["first", "second", "third"] {
                make(&client, dir, text, &format!("the {text}")).await;
            }
        })
        .await;
    let cache = victim.kill();
    let file = only_log(cache.path()).join("0000000001.log");
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(5).position(|window| window == b"first").unwrap();
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();
    let a = next(&cell, cache.path()).await;
    assert_eq!(find(&a, &["d"]).await, None);
    let [log] = &kept(cache.path())[..] else { panic!() };
    assert!(fs::read_to_string(log.join("why")).unwrap().contains("damaged"));
    assert_eq!(fs::read(log.join("0000000001.log")).unwrap()[at], b'f' ^ 1, "as it was found");
}

/// Many small changes, and so many of them, from the first on, synced to the local disk. Returns the cache directory, the log's
/// file, how many bytes of it were there before, and how many when the sync returned.
async fn log_of(
    cell: &Cell,
    fsync: Fsync,
    [synced, count]: [usize; 2],
) -> (tempfile::TempDir, PathBuf, [usize; 2]) {
    let victim = Victim::with(cell, fsync).await;
    let cache = victim.cache.path().to_owned();
    let lens = victim
        .run(move |client| async move {
            let len = || fs::metadata(only_log(&cache).join("0000000001.log")).unwrap().len() as usize;
            let before = len();
            let dir = mkdir(&client, client.root(), "d").await;
            let mut durable = before;
            for number in 0..count {
                let fid = make(&client, dir, &number.to_string(), &format!("file {number}")).await;
                if fsync == Fsync::Local && number + 1 == synced {
                    client.fsync(fid).await.unwrap();
                    assert_eq!(client.stats().count("fsyncs_local"), 1);
                    durable = len();
                }
            }
            [before, durable]
        })
        .await;
    let cache = victim.kill();
    let file = only_log(cache.path()).join("0000000001.log");
    (cache, file, lens)
}

/// Nothing of it is applied, all of it is kept as it was found, and people are told.
async fn assert_kept(cell: &Cell, cache: &Path, bytes: &[u8], what: &str) -> recover::KeptLog {
    let a = next(cell, cache).await;
    assert_eq!(find(&a, &["d"]).await, None, "{what}");
    assert_eq!(a.stats().count("kept_logs"), 1, "{what}");
    a.shutdown().await;
    assert!(logs(cache).is_empty(), "{what}");
    let [log] = &recover::list(cache).unwrap()[..] else { panic!("{what}") };
    assert!(log.why.contains("damaged") && log.damage.is_some(), "{what}: {log:?}");
    assert!(fs::read(log.dir.join("0000000001.log")).unwrap() == bytes, "{what}: as it was found");
    assert_eq!(fs::read_dir(&log.dir).unwrap().filter(is_log).count(), 1, "{what}: nothing is added");
    log.clone()
}

fn is_log(entry: &std::io::Result<fs::DirEntry>) -> bool {
    entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "log")
}

// SEMANTICS 50, 52
#[tokio::test(flavor = "multi_thread")]
async fn wherever_the_newest_file_is_damaged_all_of_it_is_kept() {
    const COUNT: usize = 360;
    #[derive(Clone, Copy, Debug)]
    enum Harm {
        ALength,
        Garbage,
        Zeros,
    }
    let cell = Cell::start();
    for fsync in [Fsync::Server, Fsync::Local] {
        for harm in [Harm::ALength, Harm::Garbage, Harm::Zeros] {
            let what = format!("{harm:?}, fsync: {fsync:?}");
            let (cache, file, [before, _]) = log_of(&cell, fsync, [COUNT, COUNT]).await;
            let mut bytes = fs::read(&file).unwrap();
            let sector = (before / 4096 + 2) * 4096;
            assert!(bytes.len() > sector + 2 * 4096, "{what}: {} bytes", bytes.len());
            match harm {
                Harm::ALength => {
                    let begin = boundaries(&bytes).into_iter().find(|begin| *begin >= sector).unwrap();
                    bytes[begin + 2] ^= 1;
                }
                Harm::Garbage => bytes[sector..sector + 4096].fill(0xa5),
                Harm::Zeros => bytes[sector..sector + 4096].fill(0),
            }
            fs::write(&file, &bytes).unwrap();
            let log = assert_kept(&cell, cache.path(), &bytes, &what).await;
            // A creation and a write each, of more than 40 bytes; what is lost is in one sector and at its edges.
            let lost = 2 * COUNT + 1 - log.records - log.beyond_damage;
            assert!(log.records > 40 && log.beyond_damage > 40 && lost < 4096 / 40, "{what}: {log:?}");
            log.remove().unwrap();
        }
    }
}

/// Of the pages that were not synced the disk has any. What fsync returned for is told, with a beginning of what came after it;
/// or, if a later page is there and an earlier one is not, it is kept, and applied when somebody says so.
// SEMANTICS 50, 52
#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_that_leaves_any_of_the_unsynced_pages_takes_nothing_of_a_local_fsync() {
    const SYNCED: usize = 40;
    const COUNT: usize = 400;
    const PAGE: usize = 4096;
    let cell = Cell::with_term(Duration::from_secs(1));
    let (mut told_logs, mut kept_logs) = (0, 0);
    // One bit for each page behind the one in which the sync ended: whether the disk has it.
    for there in [0b0000_usize, 0b0001, 0b0011, 0b0010, 0b0101, 0b1100] {
        let what = format!("{there:04b}");
        let (cache, file, [_, durable]) = log_of(&cell, Fsync::Local, [SYNCED, COUNT]).await;
        let mut bytes = fs::read(&file).unwrap();
        let first = durable.next_multiple_of(PAGE);
        assert!(bytes.len() > first + 4 * PAGE, "{what}: {} bytes", bytes.len());
        bytes.truncate(first + (usize::BITS - there.leading_zeros()) as usize * PAGE);
        for page in (0..4).filter(|page| there >> page & 1 == 0) {
            let start = (first + page * PAGE).min(bytes.len());
            let end = (start + PAGE).min(bytes.len());
            bytes[start..end].fill(0);
        }
        fs::write(&file, &bytes).unwrap();
        let is_prefix = there & (there + 1) == 0;
        let reader = if is_prefix {
            told_logs += 1;
            let a = next(&cell, cache.path()).await;
            assert!(kept(cache.path()).is_empty(), "{what}");
            a
        } else {
            kept_logs += 1;
            let log = assert_kept(&cell, cache.path(), &bytes, &what).await;
            let other = cell.client().await;
            let report = log.apply(&other, |_| ()).await.unwrap();
            assert!(report.iter().all(|applied| applied.outcome.is_done()), "{what}: {report:#?}");
            log.remove().unwrap();
            other
        };
        let mut whole = 0;
        for number in 0..COUNT {
            let path = ["d", &number.to_string()];
            if find(&reader, &path).await.is_none() {
                continue;
            }
            assert_eq!(whole, number, "{what}: one before it is not there, or is empty");
            match &contents(&reader, &path).await[..] {
                // The last record may be a creation.
                "" => {}
                text => {
                    assert_eq!(text, format!("file {number}"), "{what}");
                    whole += 1;
                }
            }
        }
        assert!((SYNCED..COUNT).contains(&whole), "{what}: {whole}");
        let root = reader.root();
        reader.rename(root, &name("d"), root, &name(&what), RenameHow::Plain).await.unwrap();
        reader.shutdown().await;
    }
    assert_eq!((told_logs, kept_logs), (3, 3));
}
