//! Attributes of what another machine has changed and not told: they are asked of that machine, which keeps its lease.

use super::*;
use soda_client::NamesLock;

/// A file of the writer's that the server knows, with `more` that it does not know.
async fn changed(a: &Arc<Client>, text: &str, more: &str) -> Fid {
    let fid = make(a, a.root(), text, "old").await;
    a.sync_all().await.unwrap();
    append(a, fid, more).await;
    fid
}

async fn append(a: &Arc<Client>, fid: Fid, more: &str) {
    let file = a.open(fid, OpenMode::Write).await.unwrap();
    let before = a.stats().count("here");
    a.write_all(&file, WriteAt::End, more.to_owned().into(), KillPriv::Keep).await.unwrap();
    assert_eq!(a.stats().count("here"), before + 1, "it was to be delayed: {:?}", a.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stat_flushes_nothing_and_takes_no_lease() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let fid = changed(&a, "f", "+new").await;
    assert_eq!(find(&b, &["f"]).await, Some(fid));
    let (digests, records) = (a.stats().count("digests"), a.session().backlog.records);
    for size in 8..20 {
        let mine = a.getattr(fid).await.unwrap().value;
        let said = b.stat(fid).await.unwrap();
        assert_eq!((said.value, said.valid.is_untold()), (mine, true));
        assert_eq!(said.value.size, size - 1);
        append(&a, fid, "x").await;
    }
    // As `ls -l` does.
    assert_eq!(b.listxattr(fid).await.unwrap().len(), 0);
    assert!(a.holds_write_lease(fid));
    assert_eq!(a.stats().count("digests"), digests, "{:?}", a.stats());
    assert!(a.session().backlog.records >= records);
    assert!(b.stats().count("described") >= 12, "{:?}", b.stats());
    assert_eq!(a.stats().count("inquiries_declined"), 0);
    // Who opens it and reads has it all the same.
    assert_eq!(contents(&b, &["f"]).await, "old+newxxxxxxxxxxxx");
    assert!(!a.holds_write_lease(fid));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_of_a_name_is_enough() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    changed(&a, "f", "+new").await;
    let entry = b.lookup(b.root(), &name("f")).await.unwrap();
    assert_eq!((entry.node.unwrap().attr.size, entry.attr.is_untold()), (7, true));
    // The name is known by now, and only the attributes are asked for.
    let before = b.stats().count("msg_lookupstat");
    let entry = b.lookup(b.root(), &name("f")).await.unwrap();
    assert_eq!((entry.node.unwrap().attr.size, entry.attr.is_untold()), (7, true));
    assert_eq!(b.stats().count("msg_lookupstat"), before);
    assert_eq!(a.stats().count("recall_records"), 0, "{:?}", a.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_again_and_again_and_does_not_change_is_let_go() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let fid = changed(&a, "f", "+new").await;
    find(&b, &["f"]).await;
    for _ in 0..30 {
        assert_eq!(b.stat(fid).await.unwrap().value.size, 7);
    }
    assert!(!b.stat(fid).await.unwrap().valid.is_untold());
    assert!(!a.holds_write_lease(fid));
    let asked = b.stats().count("msg_stat");
    assert!(asked <= 18, "{asked}");
    assert_eq!(a.session().backlog.records, 0);
}

/// The kernel of the machine that writes may show what was before the write until the system call has returned.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_hears_of_a_change_that_the_own_kernel_does_not_show() {
    let cell = Cell::start();
    let told = Arc::new(Told::default());
    let hooks = Hooks(Arc::clone(&told), NamesLock::None);
    let a = Client::connect(patient(&cell), Box::new(hooks)).await.unwrap();
    let b = cell.client().await;
    let fid = make(&a, a.root(), "f", "old").await;
    a.sync_all().await.unwrap();
    find(&b, &["f"]).await;
    let file = a.open(fid, OpenMode::ReadWrite).await.unwrap();
    write(&a, &file, 0, "older").await;
    wait_until("a write under the lease", || async {
        write(&a, &file, 0, "older").await;
        a.session().backlog.records > 0
    })
    .await;
    // The kernel is given attributes to keep, and then there are newer ones.
    assert!(a.getattr(fid).await.unwrap().valid.until().is_some());
    write(&a, &file, 5, "+new").await;
    let before = told.attrs.lock().unwrap().iter().filter(|told| **told == fid).count();
    assert_eq!(b.stat(fid).await.unwrap().value.size, 9);
    let after = told.attrs.lock().unwrap().iter().filter(|told| **told == fid).count();
    assert_eq!(after, before + 1);
    // It is told once of each change, however often others ask.
    assert_eq!(b.stat(fid).await.unwrap().value.size, 9);
    assert_eq!(told.attrs.lock().unwrap().iter().filter(|told| **told == fid).count(), after);
}

/// Who polls a file and reads it when it has grown asks for its attributes first, for nothing; after the first time no more. Who
/// only polls it has nothing told.
#[tokio::test(flavor = "multi_thread")]
async fn whose_attributes_were_asked_of_the_holder_for_nothing_is_asked_for_the_lease_and_data() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let fid = changed(&a, "f", "0").await;
    let mut size = 4;
    let questions = || {
        let stats = b.stats();
        ["stat", "fetch", "getattr", "read", "opened"].map(|call| stats.count(&format!("msg_{call}")))
    };
    // The answer without a lease, a look that was not for nothing; then all in one.
    for expected in [[1, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0, 1, 0, 0, 0]] {
        let before = questions();
        let said = b.stat(fid).await.unwrap();
        assert_eq!((said.value.size, said.valid.is_untold()), (size, expected[0] == 1));
        let file = b.open(fid, OpenMode::Read).await.unwrap();
        assert_eq!(read(&b, &file).await.len() as u64, size);
        let after = questions();
        let asked = std::array::from_fn::<u64, 5, _>(|at| after[at] - before[at]);
        assert_eq!(asked, expected, "stat, fetch, getattr, read, opened");
        size += append_until_delayed(&a, fid).await;
    }
    // It was read, so it is expected to be once more; then nobody reads it, and nothing is told for that.
    b.stat(fid).await.unwrap();
    size += append_until_delayed(&a, fid).await;
    let digests = a.stats().count("digests");
    let said = b.stat(fid).await.unwrap();
    assert_eq!((said.value.size, said.valid.is_untold()), (size, true));
    assert_eq!(a.stats().count("digests"), digests);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stat_of_what_was_read_before_flushes_nothing_and_takes_no_lease() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let fid = changed(&a, "f", "+new").await;
    let file = b.open(fid, OpenMode::Read).await.unwrap();
    assert_eq!(read(&b, &file).await, "old+new");
    let size = 7 + append_until_delayed(&a, fid).await;
    let digests = a.stats().count("digests");
    let said = b.stat(fid).await.unwrap();
    assert_eq!((said.value.size, said.valid.is_untold()), (size, true));
    assert_eq!((a.stats().count("digests"), b.stats().count("msg_fetch")), (digests, 2));
    assert!(a.holds_write_lease(fid));
}

/// Who was asked for its lease has it again first. Returns how many bytes there are more.
async fn append_until_delayed(a: &Arc<Client>, fid: Fid) -> u64 {
    let file = a.open(fid, OpenMode::Write).await.unwrap();
    for more in 1..2000 {
        let before = a.stats().count("here");
        a.write_all(&file, WriteAt::End, "x".into(), KillPriv::Keep).await.unwrap();
        if a.stats().count("here") > before {
            return more;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{:?}", a.stats());
}

// SEMANTICS 55
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_machine_said_is_forgotten() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let b = cell.client().await;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let cell_config = patient(&cell);
    let fid = runtime
        .spawn(async move {
            let a = writer_with(cell_config).await;
            let fid = changed(&a, "f", "+new").await;
            std::mem::forget(a);
            fid
        })
        .await
        .unwrap();
    assert_eq!(find(&b, &["f"]).await, Some(fid));
    assert_eq!(b.stat(fid).await.unwrap().value.size, 7);
    runtime.shutdown_background();
    // Its term ends; what it had not told is lost, and what others had heard of it does not stand in the way.
    let now = b.stat(fid).await.unwrap();
    assert_eq!((now.value.size, now.valid.is_untold()), (3, false));
    // Not before its own session has been renewed, if that was late.
    let cached = || async {
        let before = b.stats().count("attr_hits");
        assert_eq!(b.stat(fid).await.unwrap().value.size, 3);
        b.stats().count("attr_hits") > before
    };
    wait_until("an answer of the cache", cached).await;
    assert_eq!(contents(&b, &["f"]).await, "old");
    let file = b.open(fid, OpenMode::ReadWrite).await.unwrap();
    write(&b, &file, 3, "!").await;
    assert_eq!(b.stat(fid).await.unwrap().value.size, 4);
}
