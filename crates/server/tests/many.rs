//! A thousand sessions at once.

use crate::common::*;
use soda_protocol::{Answer, Call};
use std::time::Instant;

const SESSIONS: usize = 1000;

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sessions_share_a_directory_and_give_it_up() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        let client = Client::connect(&server).await;
        let reply = client.ask(Call::GetAttr { fid: client.root }).await;
        assert_eq!(reply.grants.len(), 1);
        clients.push(client);
    }
    let writer = Client::connect(&server).await;
    let asked = Instant::now();
    writer.create(writer.root, "file").await.unwrap();
    println!("{SESSIONS} readers gave up a directory in {:?}", asked.elapsed());
    for client in &clients {
        assert_eq!(client.next_recall().await.fid, client.root);
        assert!(client.lookup(client.root, "file").await.unwrap().is_some());
    }
    for client in &clients {
        assert_eq!(client.ask(Call::Goodbye).await.result, Ok(Answer::Done));
    }
}
