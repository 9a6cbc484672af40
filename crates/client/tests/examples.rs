//! The examples, run against a server.

use crate::common::Cell;

#[path = "../examples/two_machines.rs"]
#[allow(dead_code, reason = "its main reads the command line")]
mod two_machines;

#[tokio::test(flavor = "multi_thread")]
async fn two_machines_share_a_file() {
    let cell = Cell::start();
    let told = two_machines::run(&cell.addr.to_string(), "main").await.unwrap();
    assert_eq!(
        told,
        [
            "the other machine reads: hello",
            "1000 more times: 0 requests",
            "after a write on the first: hello, world",
            "1 name(s) in the root",
            "removed on the first, gone on the second: true",
        ]
    );
}
