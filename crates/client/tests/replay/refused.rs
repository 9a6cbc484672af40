//! A server that does not let anybody in for a while.

use super::*;
use soda_client::ConnectError;
use tokio::net::TcpStream;

// SEMANTICS 50
#[tokio::test(flavor = "multi_thread")]
async fn a_log_stays_in_its_place_while_the_server_has_its_maximum_of_connections() {
    let mut cell = Cell::start();
    let victim = Victim::start(&cell).await;
    victim.run(|client| async move { work(&client).await }).await;
    let cache = victim.kill();
    let log = only_log(cache.path());
    cell.connections = 1;
    cell.restart();
    let taken = TcpStream::connect(cell.addr).await.unwrap();
    for _ in 0..2 {
        let refused = Client::connect(caching(&cell, cell.addr, cache.path()), Box::new(NoKernel)).await;
        let Err(ConnectError::Refused { reason, .. }) = refused else { panic!("{refused:?}") };
        assert!(reason.contains("maximum of 1 connections"), "{reason}");
        assert!(log.exists() && kept(cache.path()).is_empty(), "for the next one");
    }
    drop(taken);
    cell.connections = 1000;
    cell.restart();
    let a = next(&cell, cache.path()).await;
    assert!(a.stats().count("replayed") > 0, "{:?}", a.stats());
    assert_worked(&cell.client().await).await;
    assert!(kept(cache.path()).is_empty());
}
