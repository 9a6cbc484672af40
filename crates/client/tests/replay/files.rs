//! A log of more than one file.

use super::*;
use std::ops::RangeInclusive;

/// Of this size each: more than a file of the log holds, together.
const FILES: usize = 100;
const SIZE: usize = 200 << 10;

fn data(number: usize) -> String {
    format!("{number:04}").repeat(SIZE / 4)
}

/// All of it is in the log, and only there. Returns the files of the log.
pub(crate) async fn log_much(cell: &Cell, top: &str) -> (tempfile::TempDir, Vec<PathBuf>) {
    let victim = Victim::that_only_logs(cell).await;
    let before = victim.client.stats().count("digests");
    victim
        .run({
            let top = top.to_owned();
            |client| async move {
                let dir = mkdir(&client, client.root(), &top).await;
                for number in 0..FILES {
                    make(&client, dir, &number.to_string(), &data(number)).await;
                }
            }
        })
        .await;
    assert_eq!(victim.client.stats().count("digests"), before, "{:?}", victim.client.stats());
    let cache = victim.kill();
    let mut files: Vec<PathBuf> =
        fs::read_dir(only_log(cache.path())).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    assert_eq!(files.len(), 2, "{files:?}");
    (cache, files)
}

/// How many files are there, each whole but for the last one; and no others.
async fn assert_prefix(client: &Arc<Client>, top: &str, expected: RangeInclusive<usize>) {
    let mut there = 0;
    let mut ended = false;
    for number in 0..FILES {
        let path = [top, &number.to_string()];
        let Some(fid) = find(client, &path).await else {
            ended = true;
            continue;
        };
        assert!(!ended, "{top}: {number} is there and one before it is not");
        let size = client.getattr(fid).await.unwrap().value.size;
        ended = size == 0;
        if !ended {
            assert!(contents(client, &path).await == data(number), "{top}: {number}");
            there += 1;
        }
    }
    assert!(expected.contains(&there), "{top}: {there} files");
}

// SEMANTICS 50
#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_several_files_is_told_up_to_where_it_was_cut() {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Cut {
        Nothing,
        InTheLastRecord,
        InTheSecondFile,
        AfterItsHeader,
        TheSecondFile,
        InTheFirstFile,
        AtAnEndInTheFirstFile,
        ZerosInTheFirstFile,
    }
    use Cut::*;
    let mut cell = Cell::start().with_deep_leases();
    let cuts = [
        Nothing,
        InTheLastRecord,
        InTheSecondFile,
        AfterItsHeader,
        TheSecondFile,
        InTheFirstFile,
        AtAnEndInTheFirstFile,
        ZerosInTheFirstFile,
    ];
    for cut in cuts {
        let top = format!("{cut:?}");
        let (cache, files) = log_much(&cell, &top).await;
        let bytes = fs::read(&files[1]).unwrap();
        let bounds = boundaries(&bytes);
        let keep = |file: usize, len: usize| {
            fs::File::options().write(true).open(&files[file]).unwrap().set_len(len as u64).unwrap();
        };
        // 16 MiB are a little more than 80 of them.
        let expected = match cut {
            Nothing => FILES..=FILES,
            InTheLastRecord => {
                keep(1, bytes.len() - 1);
                FILES - 1..=FILES - 1
            }
            InTheSecondFile => {
                keep(1, bounds[bounds.len() / 2] + 5);
                81..=FILES - 2
            }
            AfterItsHeader => {
                keep(1, bounds[1]);
                75..=90
            }
            TheSecondFile => {
                fs::remove_file(&files[1]).unwrap();
                75..=90
            }
            // Not the end of the log: what comes after it is no continuation.
            InTheFirstFile => {
                keep(0, 8 << 20);
                0..=0
            }
            AtAnEndInTheFirstFile => {
                let bounds = boundaries(&fs::read(&files[0]).unwrap());
                keep(0, bounds[bounds.len() / 2]);
                0..=0
            }
            ZerosInTheFirstFile => {
                let len = fs::metadata(&files[0]).unwrap().len() as usize;
                keep(0, 8 << 20);
                keep(0, len);
                0..=0
            }
        };
        // In between the server may have been started anew.
        if cut == InTheSecondFile {
            cell.restart();
        }
        let a = next(&cell, cache.path()).await;
        let why = kept(cache.path()).pop().map(|log| fs::read_to_string(log.join("why")).unwrap());
        let is_damaged = [InTheFirstFile, AtAnEndInTheFirstFile, ZerosInTheFirstFile].contains(&cut);
        assert_eq!(why.is_some_and(|why| why.contains("damaged")), is_damaged, "{cut:?}");
        assert_prefix(&a, &top, expected).await;
        a.shutdown().await;
        assert!(logs(cache.path()).is_empty(), "{cut:?}");
    }
}
