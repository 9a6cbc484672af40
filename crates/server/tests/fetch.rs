//! Attributes and a small file's data in one answer.

use crate::common::*;
use bytes::Bytes;
use soda_protocol::{Answer, Call, FromHolder, MAX_IO, WriteAt};
use soda_types::{Fid, Mode, Version};

fn fetch(fid: Fid, most: u32, known: Option<Version>) -> Call {
    Call::Fetch { fid, most, known, holder: FromHolder::Lease }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_file_comes_with_its_attributes_and_the_lease() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let writer = Client::connect(&server).await;
    let file = writer.create(writer.root, "file").await.unwrap().fid;
    writer.write(file, WriteAt::Offset(0), b"five!").await.unwrap();
    writer.ask(Call::Goodbye).await.result.unwrap();
    let reader = Client::connect(&server).await;
    let ask = async |call| {
        let (reply, data) = reader.connection().call(None, call, Bytes::new()).await.unwrap();
        assert_eq!(mode_on(&reply.grants, file), Some(Mode::Read), "{reply:?}");
        (reply.result.unwrap(), data)
    };
    let (answer, data) = ask(fetch(file, 5, None)).await;
    let Answer::Fetched(node) = answer else { panic!("{answer:?}") };
    assert_eq!((node.fid, node.attr.size, &data[..]), (file, 5, &b"five!"[..]));
    let version = node.attr.data_version;
    for (most, known) in [(4, None), (0, None), (MAX_IO, Some(version))] {
        let answer = ask(fetch(file, most, known)).await;
        assert_eq!(answer, (Answer::Node(node), Bytes::new()), "{most} {known:?}");
    }
    let other = Some(Version(version.0 - 1));
    assert_eq!(ask(fetch(file, u32::MAX, other)).await, (Answer::Fetched(node), data));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_data_is_answered_with_its_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let client = Client::connect(&server).await;
    let empty = client.create(client.root, "empty").await.unwrap().fid;
    for fid in [empty, client.root] {
        let (reply, data) =
            client.connection().call(None, fetch(fid, MAX_IO, None), Bytes::new()).await.unwrap();
        assert!(matches!(reply.result, Ok(Answer::Node(node)) if node.fid == fid), "{reply:?}");
        assert!(data.is_empty());
    }
}
