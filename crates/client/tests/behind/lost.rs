//! Operations that go through and wait for changes of the file that are lost meanwhile.

use super::*;
use soda_client::OpenFile;
use soda_protocol::Allocate;

/// More than is copied here: it goes through.
const LARGE: u64 = 300 << 10;

/// A machine that is cut off with a change of `d/f` that it has not told, and another one that has made `e/new`.
struct CutOff {
    proxy: Arc<Proxy>,
    a: Arc<Client>,
    b: Arc<Client>,
    file: Arc<OpenFile>,
    other: Arc<OpenFile>,
    _cell: Cell,
}

async fn cut_off() -> CutOff {
    let cell = Cell::with_term(Duration::from_secs(1));
    let proxy = Proxy::before(cell.addr).await;
    let (a, b) = (writer_at(&cell, proxy.addr).await, cell.client().await);
    let dir = mkdir(&a, a.root(), "d").await;
    let elsewhere = mkdir(&a, a.root(), "e").await;
    let fid = make(&a, dir, "f", "before").await;
    let other = make(&a, a.root(), "other", "").await;
    a.sync_all().await.unwrap();
    make(&b, elsewhere, "new", "good").await;
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    let other = a.open(other, OpenMode::ReadWrite).await.unwrap();
    for piece in 0..3 {
        write(&a, &file, piece * (LARGE / 3), vec![b'x'; LARGE as usize / 3]).await;
    }
    proxy.set(Weather::Cut);
    CutOff { proxy, a, b, file, other, _cell: cell }
}

impl CutOff {
    /// The other machine asks for the file: the session that is cut off ends.
    async fn lose(&self) {
        let waiting = || async { self.a.session().waiting > 0 };
        wait_until("a flush", waiting).await;
        self.lose_after(std::future::ready(())).await;
    }

    /// `meanwhile`: after the end of the session, and before this machine hears of it.
    async fn lose_after(&self, meanwhile: impl Future<Output = ()>) {
        assert!(contents(&self.b, &["d", "f"]).await == "before");
        meanwhile.await;
        self.proxy.set(Weather::Fine);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_file_is_not_replaced_by_one_whose_contents_are_lost() {
    let cut = cut_off().await;
    let renaming = tokio::spawn({
        let a = Arc::clone(&cut.a);
        let (from, to) = (find(&a, &["d"]).await.unwrap(), find(&cut.b, &["e"]).await.unwrap());
        async move { a.rename(from, &name("f"), to, &name("new"), RenameHow::Plain).await }
    });
    cut.lose().await;
    assert_eq!(renaming.await.unwrap().unwrap_err().errno, Errno::Io);
    assert_eq!(contents(&cut.b, &["e", "new"]).await, "good");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_copied_from_what_is_lost() {
    let cut = cut_off().await;
    let copying = tokio::spawn({
        let (a, from, to) = (Arc::clone(&cut.a), Arc::clone(&cut.file), Arc::clone(&cut.other));
        async move { a.copy_range((&from, 0), (&to, 0), LARGE, KillPriv::Keep).await }
    });
    cut.lose().await;
    assert_eq!(copying.await.unwrap().unwrap_err().errno, Errno::Io);
}

#[tokio::test(flavor = "multi_thread")]
async fn space_is_not_set_aside_behind_what_is_lost() {
    let cut = cut_off().await;
    let allocate = |cut: &CutOff| {
        let (a, file) = (Arc::clone(&cut.a), Arc::clone(&cut.file));
        async move { a.fallocate(&file, 0, 192 << 20, Allocate::Extend, KillPriv::Keep).await }
    };
    let allocating = tokio::spawn(allocate(&cut));
    cut.lose().await;
    assert_eq!(allocating.await.unwrap().unwrap_err().errno, Errno::Io);
    allocate(&cut).await.expect("said once");
}

// SEMANTICS 49
/// One thread writes, and another one calls fsync of the same descriptor: that the first one has heard of the loss says nothing
/// to the second.
#[tokio::test(flavor = "multi_thread")]
async fn fsync_of_what_is_lost_as_a_whole_never_says_that_it_is_durable() {
    let cut = cut_off().await;
    let (a, d) = (&cut.a, find(&cut.a, &["d"]).await.unwrap());
    let new = make(a, d, "new", "never told").await;
    let (named, silent) = (open(a, new).await, open(a, new).await);
    let (_, nameless) = a.tmpfile(d, new_node(FileKind::File), OpenMode::ReadWrite).await.unwrap();
    write(a, &nameless, 0, "never told").await;
    cut.lose_after(async {
        cut.b.unlink(cut.b.root(), &name("other")).await.unwrap();
    })
    .await;
    wait_until("loss", || async { a.stats().count("lost_records") > 0 }).await;
    let fsync = async |file: &OpenFile| a.fsync_file(file).await.map_err(|error| error.errno);
    for (what, file) in [("with a name", &named), ("without one", &nameless)] {
        let written = a.write(file, WriteAt::Offset(0), "x".into(), KillPriv::Keep).await;
        assert_eq!(written.unwrap_err().errno, Errno::Io, "{what}");
        assert_eq!(fsync(file).await, Err(Errno::Stale), "{what}");
    }
    assert_eq!(fsync(&silent).await, Err(Errno::Io), "said to each");
    assert_eq!(fsync(&silent).await, Err(Errno::Stale));
    assert_eq!(fsync(&cut.file).await, Err(Errno::Io));
    assert_eq!(fsync(&cut.file).await, Ok(()), "the server has it, as it was before");
    assert_eq!(fsync(&cut.other).await, Ok(()), "removed, and nothing of it was lost");
}

async fn open(client: &Arc<Client>, fid: Fid) -> Arc<OpenFile> {
    client.open(fid, OpenMode::ReadWrite).await.unwrap()
}
