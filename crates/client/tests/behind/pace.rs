//! What sharing costs while writes are delayed: prints figures, asserts nothing.
//! `cargo test --release -p soda-client --test main behind::pace -- --ignored --nocapture --test-threads 1`

use super::*;
use std::time::Instant;

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    println!("{what:44} median {:>7.2} ms, 90 % {:>7.2} ms, most {:>7.2} ms", at(50), at(90), at(100));
}

fn client_config(cell: &Cell, write: WritePolicy) -> ClientConfig {
    ClientConfig { write, ..cell.client_config() }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures"]
async fn pace_of_a_conflict_beside_a_long_log() {
    let cell = Cell::start();
    let a = writer_with(client_config(&cell, WritePolicy::Behind(WriteBehind::default()))).await;
    let b = cell.client().await;
    let mut wanted = a.root();
    for text in ["one", "two", "three"] {
        wanted = mkdir(&a, wanted, text).await;
    }
    let busy = mkdir(&a, a.root(), "busy").await;
    a.sync_all().await.unwrap();
    let (mut waited, mut pending) = (Vec::new(), Vec::new());
    for round in 0..15 {
        let dir = mkdir(&a, busy, &round.to_string()).await;
        for number in 0..5000 {
            make(&a, dir, &number.to_string(), "0123456789").await;
        }
        let text = round.to_string();
        make(&a, wanted, &text, "wanted").await;
        pending.push(a.session().backlog.records);
        let began = Instant::now();
        assert_eq!(contents(&b, &["one", "two", "three", &text]).await, "wanted");
        waited.push(began.elapsed());
    }
    pending.sort_unstable();
    println!("records pending: {} to {}", pending[0], pending[pending.len() - 1]);
    print("a file beside a long log, found and read", waited);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures"]
async fn pace_of_two_who_share_a_file() {
    for (text, write) in
        [("through", WritePolicy::Through), ("behind", WritePolicy::Behind(WriteBehind::default()))]
    {
        let cell = Cell::start();
        let (a, b) = match write {
            WritePolicy::Through => (cell.client().await, cell.client().await),
            WritePolicy::Behind(_) => {
                let one = writer_with(client_config(&cell, write)).await;
                (one, Client::connect(client_config(&cell, write), Box::new(NoKernel)).await.unwrap())
            }
        };
        let fid = make(&a, a.root(), "log", "").await;
        let (mine, theirs) = (a.open(fid, OpenMode::ReadWrite).await.unwrap(), open(&b, "log").await);
        let mut times = Vec::new();
        for _ in 0..300 {
            let began = Instant::now();
            for (client, file) in [(&a, &mine), (&b, &theirs)] {
                client.write(file, WriteAt::End, vec![b'x'; 100].into(), KillPriv::Keep).await.unwrap();
            }
            times.push(began.elapsed());
        }
        print(&format!("{text}: each appends in turn"), times);
        let mut times = Vec::new();
        for round in 0..300u32 {
            let began = Instant::now();
            write_at_start(&a, &mine, round).await;
            let read = b.read(&theirs, 0, 4).await.unwrap().to_bytes();
            assert_eq!(read, round.to_be_bytes().as_slice());
            times.push(began.elapsed());
        }
        print(&format!("{text}: one reads what the other writes"), times);
        let mut times = Vec::new();
        for round in 0..300 {
            let began = Instant::now();
            let text = format!("new {round}");
            make(&a, a.root(), &text, "new").await;
            assert_eq!(contents(&b, &[&text]).await, "new");
            times.push(began.elapsed());
        }
        print(&format!("{text}: one reads what the other creates"), times);
    }
}

async fn write_at_start(client: &Arc<Client>, file: &soda_client::OpenFile, number: u32) {
    write(client, file, 0, number.to_be_bytes().to_vec()).await;
}
