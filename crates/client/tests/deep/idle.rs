//! Leases that nobody uses go back.

use super::{contents, deep_leases};
use crate::common::delayed::{make, mkdir};
use crate::common::{Cell, eventually};
use soda_client::{CacheConfig, Client, ClientConfig, NoKernel};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_short_time_until_a_lease_is_idle_is_kept_to() {
    let cell = Cell::deep();
    let cache = CacheConfig { idle: Duration::from_millis(100), ..CacheConfig::default() };
    let config = ClientConfig { cache, ..cell.client_config() };
    let client = Client::connect(config, Box::new(NoKernel)).await.unwrap();
    let began = Instant::now();
    for round in 0..8 {
        let top = mkdir(&client, client.root(), &format!("top{round}")).await;
        let file = make(&client, top, "file", "x").await;
        assert_eq!(contents(&client, file).await, "x");
        eventually("the leases are given back", || {
            deep_leases(&client).is_empty() && client.leases().is_empty()
        })
        .await;
    }
    // Looked for every ten seconds as leases of ten minutes are, the rounds would take more than a minute.
    assert!(began.elapsed() < Duration::from_secs(60), "TIMED OUT: {:?}", began.elapsed());
    assert!(client.stats().count("leases_released") >= 8);
}
