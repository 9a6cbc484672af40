//! Extended attributes that are large, and many.

use super::*;
use soda_types::{XATTR_LIST_MAX, XATTR_VALUE_MAX};

async fn set(client: &Arc<Client>, fid: Fid, listed: &str, value: &[u8]) -> Result<(), Errno> {
    let set = client.setxattr(fid, listed.as_bytes(), value, SetXattr::Either, KillPriv::Keep);
    set.await.map_err(|error| error.errno)
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_as_large_as_there_can_be_are_told_later() {
    let cell = Cell::start();
    let (a, b) = (writer(&cell).await, cell.client().await);
    let fid = make(&a, a.root(), "f", "x").await;
    let before = sent(&a);
    let names = ["user.1", "user.2", "user.3"];
    for (fill, listed) in names.iter().enumerate() {
        assert_eq!(set(&a, fid, listed, &vec![fill as u8; XATTR_VALUE_MAX]).await, Ok(()));
    }
    assert_eq!(set(&a, fid, "user.1", &vec![0; XATTR_VALUE_MAX + 1]).await, Err(Errno::TooBig));
    assert_eq!(sent(&a), before, "{:?}", a.stats());
    assert!(a.session().backlog.bytes > 3 * XATTR_VALUE_MAX as u64, "it counts as what waits");
    // Of the next ones the server keeps the accounts.
    for number in 4..17 {
        let large = set(&a, fid, &format!("user.{number}"), &vec![number; XATTR_VALUE_MAX]).await;
        assert_eq!(large, if number < 16 { Ok(()) } else { Err(Errno::NoSpace) }, "{number}");
    }
    assert!(sent(&a) > before);
    assert_eq!(find(&b, &["f"]).await, Some(fid));
    for (fill, listed) in names.iter().enumerate() {
        let value = b.getxattr(fid, listed.as_bytes()).await.unwrap();
        assert!(value == vec![fill as u8; XATTR_VALUE_MAX], "{listed}: {} bytes", value.len());
    }
    a.sync_all().await.unwrap();
    assert_eq!(a.stats().count("lost_records"), 0);
}

/// What would not fit the kernel's list of names is refused when it is asked for, not when the server is told.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_do_not_fit_a_list_are_refused_at_once() {
    let cell = Cell::start();
    let a = writer(&cell).await;
    let fid = make(&a, a.root(), "f", "x").await;
    let mut listed = 0;
    for number in 0.. {
        let text = format!("user.{number:0250}");
        let fits = listed + text.len() < XATTR_LIST_MAX;
        assert_eq!(
            set(&a, fid, &text, b"").await,
            if fits { Ok(()) } else { Err(Errno::NoSpace) },
            "{listed}"
        );
        if !fits {
            break;
        }
        listed += text.len() + 1;
    }
    a.sync_all().await.unwrap();
    assert_eq!(a.listxattr(fid).await.unwrap().iter().map(|name| name.len() + 1).sum::<usize>(), listed);
    assert_eq!(a.stats().count("lost_records"), 0);
}
