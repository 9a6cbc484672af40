//! What is done of a digest before its turn.

use super::*;
use soda_protocol::Reply;
use soda_server::RunningServer;
use soda_storage::DataStore;
use tokio::sync::oneshot;

const LEN: usize = 300_000;

/// A session's digest that waits for the medium, and another one that has arrived behind it, each with so much data.
struct InLine {
    data: Arc<GatedData>,
    teller: Teller,
    file: Fid,
    answers: [oneshot::Receiver<(Reply, Bytes)>; 2],
    _server: RunningServer,
}

/// What the first of them writes to.
#[derive(PartialEq, Eq)]
enum First {
    SameFile,
    NotHeld,
}

impl InLine {
    async fn new(to: First) -> InLine {
        let (_meta, data, stores) = gated();
        let slow = ServerConfig { sync_interval: Duration::from_secs(3600), ..config(Path::new("unused")) };
        let server = Server::start_on(stores, slow).unwrap();
        let other = Client::connect(&server).await;
        let theirs = other.mkdir(other.root, "theirs").await.unwrap().fid;
        other.ask(Call::Goodbye).await.result.unwrap();
        let mut teller = Teller::connect(&server).await;
        let (file, records) = teller.file("file", b"told");
        digested(&teller.tell(records).await);
        let room = Call::Reserve { inodes: 0, bytes: 16 << 20 };
        assert!(matches!(
            teller.client.ask(room).await.result,
            Ok(Answer::Reserved { bytes: 0x100_0000, .. })
        ));
        data.syncs.close();
        let mut write = |fid, at: usize, byte| {
            let (offset, data) = ((at * LEN) as u64, vec![byte; LEN].into());
            teller.record(Change::Write { fid, offset, data, kill_suid_sgid: false })
        };
        let first = write(if to == First::SameFile { file } else { theirs }, 0, 1);
        let second = write(file, 1, 2);
        let first = teller.next_behind(None, vec![first]);
        let second = teller.next_behind(Some(&first), vec![second]);
        let answers = [first.begin(&teller.client).await, second.begin(&teller.client).await];
        until("the first waits for the medium", async || data.syncs.waiting() > 0).await;
        InLine { data, teller, file, answers, _server: server }
    }

    /// Bytes on the medium.
    fn stored(&self) -> usize {
        let segments = self.data.chunks.segments().unwrap();
        segments.iter().map(|segment| segment.stored as usize).sum()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_in_line_is_stored_before_its_turn() {
    let mut line = InLine::new(First::SameFile).await;
    until("both are stored", async || line.stored() >= 2 * LEN).await;
    assert!(line.answers.iter_mut().all(|answer| answer.try_recv().is_err()));
    assert_eq!(line.teller.client.read(line.file, 0, 10).await.unwrap(), b"told"[..], "no more than that");
    line.data.syncs.open();
    for answer in line.answers {
        digested(&tokio::time::timeout(PATIENCE, answer).await.expect(TIMED_OUT).unwrap().0);
    }
    let read = line.teller.client.read(line.file, 0, 2 * LEN as u32).await.unwrap();
    assert_eq!(read, [vec![1; LEN], vec![2; LEN]].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_of_a_digest_that_is_not_carried_out_is_given_back() {
    let line = InLine::new(First::NotHeld).await;
    until("both are stored", async || line.stored() >= 2 * LEN).await;
    line.data.syncs.open();
    let [first, second] = line.answers;
    let first = tokio::time::timeout(PATIENCE, first).await.expect(TIMED_OUT).unwrap().0;
    assert_eq!(refused(&first).1, Errno::Stale);
    let second = tokio::time::timeout(PATIENCE, second).await.expect(TIMED_OUT).unwrap().0;
    assert_eq!(second.result, Err(Failure::OutOfTurn));
    let stored = || line.data.chunks.segments().unwrap().iter().map(|segment| segment.stored).sum::<u64>();
    until("nothing of both is left", async || stored() < LEN as u64).await;
}
