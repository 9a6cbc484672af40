//! Two clients that fill one small server: what was acknowledged has its room there.

use super::*;
use crate::common::small_disk::on_a_small_disk;
use soda_client::Fsync;
use soda_types::{FsResult, Name};

/// So often in turn there has to be no room before a client believes it.
const ENOUGH: u32 = 40;
const SIZES: [usize; 9] = [0, 60, 700, 4096, 5000, 20_000, 60_000, 250_000, 700_000];

/// A file as it was acknowledged: pieces of one byte each.
struct Written {
    path: [String; 2],
    pieces: Vec<(usize, u8)>,
}

struct Filler {
    client: Arc<Client>,
    chance: u64,
    dir: (String, Fid),
    files: Vec<(Fid, Written)>,
    made: u32,
}

impl Filler {
    async fn start(cell: &Cell, number: u64, age: Duration) -> Filler {
        let behind = WriteBehind { max_age: age, fsync: Fsync::Server, ..WriteBehind::default() };
        let config = ClientConfig { write: WritePolicy::Behind(behind), ..cell.client_config() };
        let client = writer_with(config).await;
        let text = format!("of {number}");
        let dir = (text.clone(), mkdir(&client, client.root(), &text).await);
        Filler { client, chance: number, dir, files: Vec::new(), made: 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.chance >> 33) as usize % bound
    }

    fn new_name(&mut self) -> (String, Name) {
        self.made += 1;
        let long = "n".repeat(self.below(3) * 60);
        let text = format!("{}{long}", self.made);
        let made = name(&text);
        (text, made)
    }

    async fn step(&mut self) -> FsResult<()> {
        let client = Arc::clone(&self.client);
        let (size, byte) = (SIZES[self.below(SIZES.len())], self.below(255) as u8);
        let (text, new) = self.new_name();
        let file = self.below(self.files.len().max(1));
        match self.below(10) {
            0 => drop(client.create(self.dir.1, &new, new_node(FileKind::Directory)).await?),
            1 => {
                let link = NewNode { target: vec![b't'; 300], ..new_node(FileKind::Symlink) };
                client.create(self.dir.1, &new, link).await?;
            }
            2 if !self.files.is_empty() => {
                let fid = self.files[file].0;
                client.setxattr(fid, b"user.x", &vec![b'v'; 2000], SetXattr::Either, KillPriv::Keep).await?;
            }
            3 if !self.files.is_empty() => drop(client.link(self.files[file].0, self.dir.1, &new).await?),
            4 if !self.files.is_empty() => {
                let (fid, written) = &mut self.files[file];
                let opened = client.open(*fid, OpenMode::ReadWrite).await?;
                let (at, data) = (WriteAt::End, vec![byte; size.max(1)]);
                let done = client.write(&opened, at, data.into(), KillPriv::Keep).await?;
                written.pieces.push((done.len as usize, byte));
            }
            _ => {
                let mode = OpenMode::ReadWrite;
                let (_, opened) =
                    client.create_open(self.dir.1, &new, new_node(FileKind::File), mode).await?;
                let path = [self.dir.0.clone(), text];
                self.files.push((opened.fid(), Written { path, pieces: Vec::new() }));
                if size > 0 {
                    let data = vec![byte; size];
                    let done = client.write(&opened, WriteAt::End, data.into(), KillPriv::Keep).await?;
                    self.files.last_mut().unwrap().1.pieces.push((done.len as usize, byte));
                }
            }
        }
        Ok(())
    }

    async fn fill(mut self, other: String) -> Filler {
        let mut full = 0;
        while full < ENOUGH {
            match self.step().await {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.errno, Errno::NoSpace, "{error}");
                    full += 1;
                }
            }
            // What the other one delays is told at once.
            if self.below(200) == 0 {
                find(&self.client, &[&other, "1"]).await;
            }
        }
        self
    }
}

#[test]
fn what_two_clients_were_told_is_done_has_its_room() {
    on_a_small_disk("behind::fillers::two_fillers", "300m", "TMPDIR");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by what_two_clients_were_told_is_done_has_its_room"]
async fn two_fillers() {
    fill_together(&Cell::start()).await;
}

// SEMANTICS 16
#[tokio::test(flavor = "multi_thread")]
async fn what_two_clients_were_told_is_done_has_its_room_in_a_quota() {
    const QUOTA: u64 = 160 << 20;
    let cell = Cell::with_quota(QUOTA);
    let reader = cell.client().await;
    let before = reader.statfs().await.unwrap();
    assert!(before.total_bytes == QUOTA && before.free_bytes <= QUOTA, "{before:?}");
    fill_together(&cell).await;
    let is_free = || async { reader.statfs().await.unwrap().free_bytes > QUOTA / 2 };
    wait_until("the space of what was removed", is_free).await;
}

async fn fill_together(cell: &Cell) {
    let one = Filler::start(cell, 1, Duration::from_secs(1)).await;
    let other = Filler::start(cell, 2, Duration::from_secs(3600)).await;
    let (one, other) = (tokio::spawn(one.fill("of 2".into())), tokio::spawn(other.fill("of 1".into())));
    let fillers = [one.await.unwrap(), other.await.unwrap()];
    for filler in &fillers {
        filler.client.sync_all().await.unwrap();
        let stats = filler.client.stats();
        let (refused, lost) = (stats.count("digests_refused"), stats.count("lost_records"));
        assert_eq!((refused, lost), (0, 0), "{stats:?}");
        assert!(stats.count("here") > 50, "{stats:?}");
    }
    let reader = cell.client().await;
    for (fid, written) in fillers.iter().flat_map(|filler| &filler.files) {
        let path = written.path.each_ref().map(String::as_str);
        assert_eq!(find(&reader, &path).await, Some(*fid), "{path:?}");
        let file = reader.open(*fid, OpenMode::Read).await.unwrap();
        let mut at = 0;
        for (len, byte) in &written.pieces {
            let data = reader.read(&file, at, *len as u32).await.unwrap().to_bytes();
            assert_eq!((data.len(), data.iter().all(|read| read == byte)), (*len, true), "{path:?} at {at}");
            at += *len as u64;
        }
    }
    // Of what fills it everything can be removed, as each likes.
    for filler in &fillers {
        for (_, written) in &filler.files {
            filler.client.unlink(filler.dir.1, &name(&written.path[1])).await.unwrap();
        }
        filler.client.shutdown().await;
    }
}
