//! The power goes. The medium keeps what was synced, some part of the journal after that (always its beginning), and any of
//! the data that was not synced. What `Sync` had answered for is there, whole; of the rest a prefix of what the client did;
//! and the client can tell which.

use crate::common::teller::*;
use crate::common::watched::{WatchData, WatchMeta, WatchedData, WatchedMeta};
use crate::common::*;
use soda_protocol::{Answer, Call, Failure, OpId, Reclaim, ReclaimStep, Standing, WriteAt};
use soda_server::{BootId, RunningServer, Server, ServerConfig, Stores};
use soda_storage::{
    Batch, ChunkRef, DataStore, MemoryData, MemoryMeta, MetaRead, MetaStore, StorageResult, Table,
};
use soda_types::{Errno, Fid, FileKind, InUse, Sequence, Version};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Metadata that remembers what a power cut would leave.
#[derive(Debug, Default)]
struct ForgetfulMeta {
    medium: Mutex<Medium>,
}

#[derive(Debug, Default)]
struct Medium {
    durable: MemoryMeta,
    /// Committed since the last sync, in order.
    journal: Vec<Batch>,
}

impl WatchMeta for ForgetfulMeta {
    fn commit(&self, meta: &MemoryMeta, batch: Batch) -> StorageResult<()> {
        // One lock for both, so that the journal has the order of the commits.
        let mut medium = self.medium.lock().unwrap();
        medium.journal.push(batch.clone());
        meta.commit(batch)
    }

    fn sync(&self, _: &MemoryMeta) -> StorageResult<()> {
        let mut medium = self.medium.lock().unwrap();
        let journal = std::mem::take(&mut medium.journal);
        journal.into_iter().try_for_each(|batch| medium.durable.commit(batch))
    }
}

#[derive(Debug, Default)]
struct ForgetfulData {
    unsynced: Mutex<Vec<ChunkRef>>,
}

impl WatchData for ForgetfulData {
    fn append(&self, chunks: &MemoryData, data: &[u8]) -> StorageResult<ChunkRef> {
        let chunk = chunks.append(data)?;
        self.unsynced.lock().unwrap().push(chunk);
        Ok(chunk)
    }

    fn restore(&self, chunks: &MemoryData, chunk: &ChunkRef, data: &[u8]) -> StorageResult<()> {
        chunks.restore(chunk, data)?;
        self.unsynced.lock().unwrap().push(*chunk);
        Ok(())
    }

    fn sync(&self, _: &MemoryData) -> StorageResult<()> {
        self.unsynced.lock().unwrap().clear();
        Ok(())
    }

    fn sync_what_others_wrote(&self, chunks: &MemoryData) -> StorageResult<()> {
        self.sync(chunks)
    }
}

#[derive(Clone, Debug, Default)]
struct Machine {
    meta: Arc<WatchedMeta<ForgetfulMeta>>,
    data: Arc<WatchedData<ForgetfulData>>,
}

impl Machine {
    fn stores(&self) -> Stores {
        Stores { meta: self.meta.clone(), data: self.data.clone(), path: "memory".into() }
    }

    /// Changes that a power cut could take back.
    fn unsynced(&self) -> usize {
        self.meta.medium.lock().unwrap().journal.len()
    }

    /// The machine as it comes up again, with so many of the changes that were not synced.
    fn after_power_cut(&self, kept: usize, numbers: &mut Numbers) -> Machine {
        let medium = self.meta.medium.lock().unwrap();
        let after = Machine::default();
        for batch in
            std::iter::once(everything(&medium.durable)).chain(medium.journal[..kept].iter().cloned())
        {
            after.meta.commit(batch).unwrap();
        }
        after.meta.sync().unwrap();
        let chunks = self.data.chunks.clone();
        for chunk in self.data.unsynced.lock().unwrap().iter() {
            if numbers.below(2) == 0 {
                chunks.release(chunk).unwrap();
            }
        }
        Machine { data: Arc::new(WatchedData { chunks, watch: ForgetfulData::default() }), ..after }
    }
}

fn everything(meta: &MemoryMeta) -> Batch {
    let mut batch = Batch::new();
    for table in Table::ALL {
        meta.scan(*table, &[], &[0xff; 300], &mut |key, value| {
            batch.put(*table, key.to_vec(), value);
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    batch
}

/// The same in every run (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// What was done to one file, by the numbers of the operations.
struct Work {
    name: String,
    created: Sequence,
    written: Sequence,
    data: Vec<u8>,
}

fn power_config() -> ServerConfig {
    let mut config = config(Path::new("unused"));
    // Syncs that nobody asked for come at any moment.
    config.sync_interval = Duration::from_millis(3);
    config
}

// SEMANTICS 18
#[tokio::test(flavor = "multi_thread")]
async fn what_was_synced_is_whole_and_the_rest_is_a_prefix() {
    for seed in 0..60 {
        let mut numbers = Numbers(seed);
        let machine = Machine::default();
        let server = Server::start_on(machine.stores(), power_config()).unwrap();
        let client = Client::connect(&server).await;
        let (mut works, mut synced) = (Vec::new(), Sequence(0));
        for index in 0..numbers.below(40) {
            let name = format!("f{index}");
            let op = client.next_op();
            let made = create(client.root, &name, FileKind::File);
            let made = client.connection().call(Some(op), made, Default::default()).await.unwrap().0;
            let file = node(made).unwrap().fid;
            let written = client.next_op();
            let data = vec![index as u8 + 1; [20, 5_000, 300_000][numbers.below(3)]];
            let write = Call::Write { fid: file, at: WriteAt::Offset(0), kill_suid_sgid: false };
            let done = client.connection().call(Some(written), write, data.clone().into()).await.unwrap().0;
            done.result.unwrap();
            works.push(Work { name, created: op.sequence, written: written.sequence, data });
            if numbers.below(8) == 0 {
                client.sync().await;
                synced = written.sequence;
            }
        }
        let kept = numbers.below(machine.unsynced() + 1);
        let after = machine.after_power_cut(kept, &mut numbers);
        drop(server);
        check(seed, &after, &client, &works, synced).await;
    }
}

/// A digest that counts as stored is there with its data, whatever of the data was synced; the others are done again.
#[tokio::test(flavor = "multi_thread")]
async fn a_digest_is_stored_with_its_data_or_can_be_done_again() {
    for seed in 0..30 {
        let mut numbers = Numbers(seed);
        let machine = Machine::default();
        let config = |boot: &str| ServerConfig {
            boot_id: Some(BootId::new(boot)),
            sync_interval: Duration::from_secs(3600),
            ..power_config()
        };
        let server = Server::start_on(machine.stores(), config("before")).unwrap();
        let mut teller = Teller::connect(&server).await;
        let (grant, _) = root_lease(&teller.client).await.unwrap();
        teller.client.sync().await;
        let mut digests = Vec::new();
        for index in 0..8u8 {
            let name = format!("f{index}");
            let data = vec![index + 1; [20, 5_000, 300_000][numbers.below(3)]];
            let (fid, records) = teller.file(&name, &data);
            let told = teller.next(records);
            digested(&teller.send(&told).await);
            digests.push((told, fid, data));
        }
        let after = machine.after_power_cut(numbers.below(machine.unsynced() + 1), &mut numbers);
        drop(server);

        let server = Server::start_on(after.stores(), config("after")).unwrap();
        teller.client = Client::resume(&server, teller.client.key()).await;
        assert_eq!(teller.client.session.standing, Standing::Reclaim);
        let stored = &teller.client.session.stored;
        let stored = stored.iter().find(|(slot, _)| *slot == DIGESTS).map_or(0, |(_, sequence)| sequence.0);
        // It can do again what is lost, so any version will do.
        let leases = vec![(grant, Version(0))];
        let held = reclaim(&teller.client, leases, vec![], ReclaimStep::Last).await.unwrap();
        assert!(held[0].is_some());
        for (told, fid, data) in &digests {
            let exists = teller.client.exists(*fid).await;
            assert_eq!(exists, told.sequence <= stored, "seed {seed}: {}", told.sequence);
            if !exists {
                digested(&teller.send(told).await);
            }
            assert!(teller.client.read(*fid, 0, 1 << 20).await.unwrap() == *data, "seed {seed}");
        }
    }
}

fn redo_records(machine: &Machine) -> usize {
    let mut found = 0;
    let mut count = |_: &[u8], _| {
        found += 1;
        ControlFlow::Continue(())
    };
    machine.meta.scan(Table::Redo, &[], &[0xff; 17], &mut count).unwrap();
    found
}

/// A power cut takes what the medium did not have of the data of what was fsync'ed; the journal has it.
#[tokio::test(flavor = "multi_thread")]
async fn little_data_is_durable_with_the_journal_and_in_its_place_after_a_while() {
    for seed in 0..10 {
        let mut numbers = Numbers(seed);
        let machine = Machine::default();
        let config = |boot: &str, interval| ServerConfig {
            boot_id: Some(BootId::new(boot)),
            sync_interval: interval,
            ..power_config()
        };
        let never = Duration::from_secs(3600);
        let server = Server::start_on(machine.stores(), config("before", never)).unwrap();
        let mut teller = Teller::connect(&server).await;
        let mut files = Vec::new();
        for index in 0..4u8 {
            let data = vec![index + 1; [5_000, 100_000][usize::from(index) % 2]];
            let (fid, records) = teller.file(&format!("f{index}"), &data);
            digested(&teller.tell(records).await);
            teller.client.sync().await;
            files.push((fid, data));
        }
        assert!(!machine.data.unsynced.lock().unwrap().is_empty(), "the medium was waited for");
        let after = machine.after_power_cut(numbers.below(machine.unsynced() + 1), &mut numbers);
        drop(server);
        let server = Server::start_on(after.stores(), config("after", Duration::from_millis(5))).unwrap();
        let back = back_at(&server, &teller.client).await;
        assert_eq!(back.session.stored_in(DIGESTS), Sequence(teller.sequence), "seed {seed}");
        for (fid, data) in &files {
            assert!(back.read(*fid, 0, 1 << 20).await.unwrap() == *data, "seed {seed}");
        }
        until("it is where it belongs", async || {
            after.data.unsynced.lock().unwrap().is_empty() && redo_records(&after) == 0
        })
        .await;
    }
}

/// Somebody waits for what the digest has told. The medium is not waited for, and a power cut that takes all of the data and
/// nothing of the journal loses nothing, nor does a second one.
#[tokio::test(flavor = "multi_thread")]
async fn data_that_somebody_waits_for_is_safe_in_the_journal() {
    for seed in 0..10 {
        let mut numbers = Numbers(seed);
        let machine = Machine::default();
        let config = |boot: &str| ServerConfig {
            boot_id: Some(BootId::new(boot)),
            sync_interval: Duration::from_secs(3600),
            ..power_config()
        };
        let server = Server::start_on(machine.stores(), config("before")).unwrap();
        let mut teller = Teller::with(Client::connect_keeping_recalls(&server).await).await;
        teller.client.sync().await;
        // Not waited for: the medium has it before it is answered.
        let (_, records) = teller.file("before", &[1; 300_000]);
        digested(&teller.tell(records).await);
        assert!(machine.data.unsynced.lock().unwrap().is_empty());

        let other = Client::connect(&server).await;
        let (_, waits) =
            other.connection().send(None, Call::GetAttr { fid: other.root }, Default::default()).await;
        let recall = teller.client.next_recall().await;
        let mut files = Vec::new();
        for index in 0..4u8 {
            let data = vec![index + 1; [5_000, 300_000][usize::from(index) % 2]];
            let (fid, records) = teller.file(&format!("f{index}"), &data);
            digested(&teller.tell(records).await);
            files.push((fid, data));
        }
        assert!(!machine.data.unsynced.lock().unwrap().is_empty(), "the medium was waited for");
        teller.client.answer_recall(&recall, InUse::No).await;
        tokio::time::timeout(PATIENCE, waits).await.expect(TIMED_OUT).unwrap().0.result.unwrap();
        // Nobody waits for it after the restart.
        other.ask(Call::Goodbye).await.result.unwrap();

        let mut after = machine.after_power_cut(machine.unsynced(), &mut numbers);
        drop(server);
        for boot in ["after", "again"] {
            let server = Server::start_on(after.stores(), config(boot)).unwrap();
            let back = back_at(&server, &teller.client).await;
            assert_eq!(back.session.stored_in(DIGESTS), Sequence(teller.sequence), "seed {seed}, {boot}");
            for (fid, data) in &files {
                assert!(back.read(*fid, 0, 1 << 20).await.unwrap() == *data, "seed {seed}, {boot}");
            }
            drop(back);
            after = after.after_power_cut(after.unsynced(), &mut numbers);
            drop(server);
        }
    }
}

/// The journal takes little of a digest's data, and not without end, however long somebody waits.
#[tokio::test(flavor = "multi_thread")]
async fn the_medium_is_waited_for_where_the_journal_would_have_too_much() {
    const LITTLE: usize = 2 << 20;
    let machine = Machine::default();
    let server = Server::start_on(
        machine.stores(),
        ServerConfig { sync_interval: Duration::from_secs(3600), ..power_config() },
    )
    .unwrap();
    let mut teller = Teller::with(Client::connect_keeping_recalls(&server).await).await;
    let other = Client::connect(&server).await;
    let (_, waits) =
        other.connection().send(None, Call::GetAttr { fid: other.root }, Default::default()).await;
    let recall = teller.client.next_recall().await;
    // The first is too large; so many digests of 2 MiB as then come are 24 MiB.
    for (number, len) in std::iter::once(LITTLE + 1).chain([LITTLE; 12]).enumerate() {
        let (_, records) = teller.file(&format!("f{number}"), &vec![1; len]);
        digested(&teller.tell(records).await);
        let synced = machine.data.unsynced.lock().unwrap().is_empty();
        assert!(if number == 0 { synced } else { !synced || number >= 4 }, "{number}");
        assert!(redo_records(&machine) * (128 << 10) <= 16 << 20, "{number}");
    }
    until("it is brought to its place before the next sync is due", || async { redo_records(&machine) < 64 })
        .await;
    teller.client.answer_recall(&recall, InUse::No).await;
    tokio::time::timeout(PATIENCE, waits).await.expect(TIMED_OUT).unwrap().0.result.unwrap();
}

// SEMANTICS 19
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_synced_is_durable_after_a_while() {
    let machine = Machine::default();
    let server = Server::start_on(machine.stores(), power_config()).unwrap();
    let client = Client::connect(&server).await;
    let made = client.next_op();
    let call = create(client.root, "file", FileKind::File);
    let file =
        node(client.connection().call(Some(made), call, Default::default()).await.unwrap().0).unwrap().fid;
    let written = client.next_op();
    let write = Call::Write { fid: file, at: WriteAt::Offset(0), kill_suid_sgid: false };
    let data = vec![7; 300_000];
    client.connection().call(Some(written), write, data.clone().into()).await.unwrap().0.result.unwrap();
    until("the server has synced by itself", || async {
        machine.unsynced() == 0 && machine.data.unsynced.lock().unwrap().is_empty()
    })
    .await;
    let after = machine.after_power_cut(0, &mut Numbers(1));
    drop(server);
    let work = Work { name: "file".into(), created: made.sequence, written: written.sequence, data };
    check(0, &after, &client, &[work], written.sequence).await;
}

async fn check(seed: u64, machine: &Machine, before: &Client, works: &[Work], synced: Sequence) {
    let server = Server::start_on(machine.stores(), power_config()).unwrap();
    let client = Client::resume(&server, before.key()).await;
    let kept = match client.session.standing {
        Standing::Reclaim => highest_stored(&client.session),
        // The session itself was lost, and so was all that came after it.
        _ => Sequence(0),
    };
    assert!(kept >= synced, "seed {seed}: synced up to {synced}, kept up to {kept}");
    let nothing = Reclaim { leases: vec![], open: vec![], locks: vec![], step: ReclaimStep::Last };
    client.ask(Call::Reclaim(nothing)).await.result.unwrap();
    for work in works {
        let found = client.lookup(client.root, &work.name).await.unwrap();
        assert_eq!(found.is_some(), work.created <= kept, "seed {seed}: {} with {kept} kept", work.name);
        let Some(file) = found else { continue };
        let read = Call::Read { fid: file.fid, offset: 0, len: 1 << 20 };
        let (reply, data) = client.connection().call(None, read, Default::default()).await.unwrap();
        match reply.result {
            Ok(Answer::Data { .. }) if work.written <= kept => {
                assert!(data == work.data, "seed {seed}: other data in {}", work.name);
            }
            Ok(Answer::Data { .. }) => assert!(data.is_empty(), "seed {seed}: data in {}", work.name),
            // Data that was not synced: lost, and it says so.
            Err(Failure::Fs(error)) => {
                assert_eq!(error.errno, Errno::Io, "seed {seed}");
                assert!(work.written > synced, "seed {seed}: synced data of {} is lost", work.name);
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    client.create(client.root, "goes on").await.unwrap();
}

/// Operations become durable in the order in which they were carried out, which need not be that of their sequences.
#[tokio::test(flavor = "multi_thread")]
async fn the_welcome_tells_of_each_slot_what_it_has_lost() {
    let machine = Machine::default();
    let mut config = power_config();
    config.sync_interval = Duration::from_secs(3600);
    let server = Server::start_on(machine.stores(), config).unwrap();
    let client = Client::connect(&server).await;
    client.sync().await;
    let (earlier, later) = (client.next_op(), client.next_op());
    assert!(earlier.sequence < later.sequence && earlier.slot != later.slot);
    for (op, name) in [(later, "later"), (earlier, "earlier")] {
        let made = create(client.root, name, FileKind::File);
        client.connection().call(Some(op), made, Default::default()).await.unwrap().0.result.unwrap();
    }
    let after = machine.after_power_cut(machine.unsynced() - 1, &mut Numbers(1));
    drop(server);
    let server = Server::start_on(after.stores(), power_config()).unwrap();
    let back = Client::resume(&server, client.key()).await;
    assert_eq!(back.session.standing, Standing::Reclaim);
    assert_eq!(back.session.stored_in(later.slot), later.sequence);
    assert_eq!(back.session.stored_in(earlier.slot), Sequence(0));
}

fn booted(boot: &str) -> ServerConfig {
    ServerConfig { boot_id: Some(BootId::new(boot)), ..power_config() }
}

/// Ten files with a chunk each. The first five are synced.
async fn half_synced(client: &Client) -> Vec<(Fid, OpId)> {
    let mut files = Vec::new();
    for index in 0..10 {
        let file = client.create(client.root, &format!("f{index}")).await.unwrap().fid;
        let op = client.next_op();
        let write = Call::Write { fid: file, at: WriteAt::Offset(0), kill_suid_sgid: false };
        let data = vec![index as u8; 100_000].into();
        client.connection().call(Some(op), write, data).await.unwrap().0.result.unwrap();
        files.push((file, op));
        if index == 4 {
            client.sync().await;
        }
    }
    files
}

/// The client after a restart, with all that it has to say said.
async fn back_at(server: &RunningServer, client: &Client) -> Client {
    let back = Client::resume(server, client.key()).await;
    assert_eq!(back.session.standing, Standing::Reclaim);
    let nothing = Reclaim { leases: vec![], open: vec![], locks: vec![], step: ReclaimStep::Last };
    back.ask(Call::Reclaim(nothing)).await.result.unwrap();
    back
}

async fn is_readable(client: &Client, file: Fid) -> bool {
    let read = Call::Read { fid: file, offset: 0, len: 1 << 20 };
    match client.ask(read).await.result {
        Ok(Answer::Data { .. }) => true,
        Err(Failure::Fs(error)) => {
            assert_eq!(error.errno, Errno::Io);
            false
        }
        other => panic!("{other:?}"),
    }
}

// SEMANTICS 18
#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_data_a_power_cut_took_does_not_count_as_stored() {
    let mut lost = 0;
    for seed in 0..10 {
        let machine = Machine::default();
        let config = ServerConfig { sync_interval: Duration::from_secs(3600), ..booted("before") };
        let server = Server::start_on(machine.stores(), config).unwrap();
        let client = Client::connect(&server).await;
        let files = half_synced(&client).await;
        let after = machine.after_power_cut(machine.unsynced(), &mut Numbers(seed));
        drop(server);
        // A second start, and the syncs of the first, do not make what is lost be there.
        for start in 0..2 {
            let server = Server::start_on(after.stores(), booted("after")).unwrap();
            let back = back_at(&server, &client).await;
            for (index, (file, op)) in files.iter().enumerate() {
                let stored = back.session.stored_in(op.slot) >= op.sequence;
                let readable = is_readable(&back, *file).await;
                assert_eq!(stored, index < 5, "seed {seed}, start {start}: what of file {index} is said");
                assert!(readable || !stored, "seed {seed}, start {start}: file {index} is lost in silence");
                lost += usize::from(!readable);
            }
            back.sync().await;
        }
    }
    assert!(lost > 0, "no data was taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_the_process_puts_nothing_in_doubt() {
    let machine = Machine::default();
    let server = Server::start_on(machine.stores(), booted("same")).unwrap();
    let client = Client::connect(&server).await;
    let files = half_synced(&client).await;
    drop(server);
    let server = Server::start_on(machine.stores(), booted("same")).unwrap();
    let back = back_at(&server, &client).await;
    for (_, op) in &files {
        assert_eq!(back.session.stored_in(op.slot), op.sequence);
    }
    // Whose fsync is answered now is safe from what comes.
    back.sync().await;
    let after = machine.after_power_cut(0, &mut Numbers(1));
    drop(server);
    let server = Server::start_on(after.stores(), booted("other")).unwrap();
    let back = back_at(&server, &client).await;
    for (file, op) in &files {
        assert_eq!(back.session.stored_in(op.slot), op.sequence);
        assert!(is_readable(&back, *file).await);
    }
}
