//! Access lists in a log that is kept.

use super::*;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Owner, a user, group, mask, others; `None`: nobody but these three.
fn list(user: Option<u32>) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, perm: u16, id: u32| {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&perm.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    };
    entry(0x01, 6, u32::MAX);
    user.into_iter().for_each(|user| entry(0x02, 4, user));
    entry(0x04, 0, u32::MAX);
    user.into_iter().for_each(|_| entry(0x10, 4, u32::MAX));
    entry(0x20, 0, u32::MAX);
    bytes
}

async fn set(client: &Arc<Client>, text: &str, listed: &[u8], list: &[u8]) {
    let fid = find(client, &[text]).await.unwrap();
    client.setxattr(fid, listed, list, SetXattr::Either, KillPriv::Keep).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn access_lists_are_shown_and_applied() {
    let cell = Cell::with_term(Duration::from_secs(1));
    let victim = Victim::start(&cell).await;
    victim
        .run(|client| async move {
            for text in ["named", "plain", "bare"] {
                make(&client, client.root(), text, "before").await;
            }
            set(&client, "bare", ACCESS, &list(Some(7))).await;
            client.sync_all().await.unwrap();
            let before = client.stats().count("msg_setxattr");
            set(&client, "named", ACCESS, &list(Some(8))).await;
            set(&client, "plain", ACCESS, &list(None)).await;
            let bare = find(&client, &["bare"]).await.unwrap();
            client.removexattr(bare, ACCESS).await.unwrap();
            mkdir(&client, client.root(), "d").await;
            set(&client, "d", DEFAULT, &list(Some(9))).await;
            assert_eq!(client.stats().count("msg_setxattr"), before, "{:?}", client.stats());
        })
        .await;
    let cache = victim.kill();
    let other = cell.client().await;
    let bare = find(&other, &["bare"]).await.unwrap();
    assert_eq!(other.getxattr(bare, ACCESS).await.unwrap(), list(Some(7)));
    let next = Client::connect(caching(&cell, cell.addr, cache.path()), Box::new(NoKernel)).await.unwrap();
    next.shutdown().await;
    let [log] = &recover::list(cache.path()).unwrap()[..] else { panic!() };
    let shown = log.show().unwrap();
    let operations: Vec<&str> = shown.iter().map(|record| record.operation.as_str()).collect();
    assert_eq!(operations, ["setxattr", "setxattr", "removexattr", "mkdir", "setxattr"]);
    assert_eq!(shown[4].detail, format!("system.posix_acl_default, {} bytes", list(Some(9)).len()));
    // As if this machine had crashed before it could note what was done.
    let again = tempfile::tempdir().unwrap();
    copy_dir(cache.path(), again.path());
    let report = log.apply(&other, |_| ()).await.unwrap();
    assert!(report.iter().all(|applied| applied.outcome == Outcome::Done), "{report:#?}");
    let value = async |text: &str, listed: &[u8]| {
        let fid = find(&other, &[text]).await.unwrap();
        other.getxattr(fid, listed).await.map(|list| list.to_vec()).map_err(|error| error.errno)
    };
    assert_eq!(value("named", ACCESS).await, Ok(list(Some(8))));
    assert_eq!(value("plain", ACCESS).await, Err(Errno::NoData));
    assert_eq!(value("bare", ACCESS).await, Err(Errno::NoData));
    assert_eq!(value("d", DEFAULT).await, Ok(list(Some(9))));
    assert_eq!((perm(&other, "named").await, perm(&other, "plain").await), (0o640, 0o600));
    let [log] = &recover::list(again.path()).unwrap()[..] else { panic!() };
    let report = log.apply(&other, |_| ()).await.unwrap();
    let outcomes: Vec<_> = report.iter().take(3).map(|applied| &applied.outcome).collect();
    assert_eq!(outcomes, [&Outcome::Already; 3], "a list that is not kept shows in the permission bits");
}
