//! What sharing costs while writes are delayed, counted: what is told for a conflict, messages of those who share a file.

use super::*;
use soda_client::StatsSnapshot;

/// Nothing is told before somebody asks, however much waits.
fn very_patient(cell: &Cell) -> ClientConfig {
    let hour = Duration::from_secs(3600);
    let behind = WriteBehind { max_age: hour, digest_bytes: 64 << 20, ..WriteBehind::default() };
    ClientConfig { write: WritePolicy::Behind(behind), ..cell.client_config() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_in_a_tree_of_which_nothing_is_told_tells_what_it_needs() {
    const WANTED: u64 = 10;
    for cell in [Cell::start(), Cell::deep()] {
        let a = writer_with(very_patient(&cell)).await;
        let b = cell.client().await;
        let held = mkdir(&a, a.root(), "held").await;
        for number in 0..WANTED {
            let mut dir = held;
            for text in [number.to_string().as_str(), "one", "two"] {
                dir = mkdir(&a, dir, text).await;
            }
            make(&a, dir, "file", &format!("wanted {number}")).await;
        }
        for directory in 0..52 {
            let dir = mkdir(&a, held, &format!("busy{directory}")).await;
            for file in 0..100 {
                make(&a, dir, &file.to_string(), "0123456789").await;
            }
        }
        let untold = |a: &Client| a.session().backlog.records;
        assert!(untold(&a) > 10_000, "{}", untold(&a));
        for number in 0..WANTED {
            let before = untold(&a);
            let path = ["held", &number.to_string(), "one", "two", "file"];
            assert_eq!(contents(&b, &path).await, format!("wanted {number}"));
            let told = before - untold(&a);
            // First all names in the directory that all have in common, then those on the way to the file, and the file.
            let most = if number == 0 { 100 } else { 8 };
            assert!((1..=most).contains(&told), "{told} changes told for conflict {number}");
        }
        assert!(untold(&a) >= 10_000, "{} left", untold(&a));
    }
}

/// Messages of both clients for each round of two who append to one file in turn, of one that reads what the other
/// writes, and of one that reads what the other makes.
async fn messages_of_sharing(cell: &Cell, write: WritePolicy) -> [u64; 3] {
    const ROUNDS: u64 = 100;
    let config = ClientConfig { write, ..cell.client_config() };
    let a = match write {
        WritePolicy::Through => Client::connect(config.clone(), Box::new(NoKernel)).await.unwrap(),
        WritePolicy::Behind(_) => writer_with(config.clone()).await,
    };
    let b = Client::connect(config, Box::new(NoKernel)).await.unwrap();
    let fid = make(&a, a.root(), "log", "").await;
    let (mine, theirs) = (a.open(fid, OpenMode::ReadWrite).await.unwrap(), open(&b, "log").await);
    let mut counts = [0; 3];
    for (kind, count) in counts.iter_mut().enumerate() {
        let sent = || asked(&a.stats()) + asked(&b.stats());
        let before = sent();
        for round in 0..ROUNDS {
            let text = format!("{round:04}");
            match kind {
                0 => {
                    for (client, file) in [(&a, &mine), (&b, &theirs)] {
                        let bytes = text.clone().into();
                        client.write_all(file, WriteAt::End, bytes, KillPriv::Keep).await.unwrap();
                    }
                }
                1 => {
                    write_at_start(&a, &mine, &text).await;
                    assert_eq!(b.read(&theirs, 0, 4).await.unwrap().to_bytes(), text.as_bytes());
                }
                _ => {
                    make(&a, a.root(), &text, "new").await;
                    assert_eq!(contents(&b, &[&text]).await, "new");
                }
            }
        }
        *count = (sent() - before).div_ceil(ROUNDS);
    }
    counts
}

/// Without those that time brings.
fn asked(stats: &StatsSnapshot) -> u64 {
    stats.requests() - stats.count("msg_renew") - stats.count("msg_sync")
}

async fn write_at_start(client: &Arc<Client>, file: &soda_client::OpenFile, text: &str) {
    write(client, file, 0, text.to_owned()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_who_share_a_file_send_no_more_messages_with_delayed_writes() {
    let through = messages_of_sharing(&Cell::start(), WritePolicy::Through).await;
    let behind = messages_of_sharing(&Cell::start(), WritePolicy::Behind(WriteBehind::default())).await;
    // Who makes a file that is read at once is asked for its directory and for it, and tells both by itself.
    for (kind, most) in [through[0] + 1, through[1] + 1, through[2] * 2].into_iter().enumerate() {
        assert!(behind[kind] <= most, "{behind:?}, with write=through {through:?}");
    }
}
