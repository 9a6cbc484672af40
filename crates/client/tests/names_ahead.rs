//! Who looks up several names of a directory has the others brought: far from the server that saves a round trip for each. What
//! was brought is as good as what is asked for.

use crate::common::delayed::{make, mkdir};
use crate::common::far::Far;
use crate::common::*;
use soda_client::{Client, ClientConfig, Consistency, NoKernel};
use soda_types::{Fid, ObjectTerm};
use std::sync::Arc;
use std::time::Duration;

const FILES: usize = 200;
const TRIP: Duration = Duration::from_millis(20);

fn text(number: usize) -> String {
    format!("{number:04}")
}

/// Directories of files, by a client that is gone. Returns them.
async fn filled(cell: &Cell, dirs: usize, files: usize) -> Vec<Fid> {
    let client = cell.client().await;
    let mut all = Vec::new();
    for dir in 0..dirs {
        let dir = mkdir(&client, client.root(), &format!("dir{dir}")).await;
        for number in 0..files {
            make(&client, dir, &text(number), "x").await;
        }
        all.push(dir);
    }
    client.shutdown().await;
    all
}

async fn far_client(cell: &Cell, far: &Far) -> Arc<Client> {
    let config = ClientConfig { server: far.addr.to_string(), ..cell.client_config() };
    Client::connect(config, Box::new(NoKernel)).await.unwrap()
}

async fn has(client: &Arc<Client>, dir: Fid, name_of: &str) -> bool {
    let entry = client.lookup(dir, &name(name_of)).await.unwrap();
    if let Some(node) = entry.node {
        assert_eq!(client.stat(node.fid).await.unwrap().value.size, 1);
    }
    entry.node.is_some()
}

fn listings(client: &Client) -> (u64, u64) {
    let stats = client.stats();
    (stats.count("directories_ahead"), stats.count("msg_readdir"))
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_looked_up_one_by_one_do_not_take_a_round_trip_each() {
    let cell = Cell::with_term(Duration::from_secs(60));
    let dir = filled(&cell, 1, FILES).await[0];
    let far = Far::before(cell.addr, TRIP).await;
    let client = far_client(&cell, &far).await;
    let before = far.trips();
    for number in 0..FILES {
        // By turns what is there, in no order, and what is not.
        assert!(has(&client, dir, &text(number * 77 % FILES)).await);
        assert!(!has(&client, dir, &format!("{number}.absent")).await);
    }
    let trips = far.trips() - before;
    assert!(trips <= 10, "{trips} round trips for {} names", 2 * FILES);
    assert_eq!(listings(&client), (1, 1), "{:?}", client.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn absent_names_that_are_looked_up_at_once_count_as_others_do() {
    let cell = Cell::with_term(Duration::from_secs(60));
    let dir = filled(&cell, 1, FILES).await[0];
    let far = Far::before(cell.addr, TRIP).await;
    let client = far_client(&cell, &far).await;
    client.getattr(dir).await.unwrap();
    let before = far.trips();
    for round in 0..20 {
        let together = (0..8).map(|number| {
            let client = Arc::clone(&client);
            tokio::spawn(async move { has(&client, dir, &format!("{round}.{number}")).await })
        });
        for one in together.collect::<Vec<_>>() {
            assert!(!one.await.unwrap());
        }
    }
    let trips = far.trips() - before;
    assert!(trips <= 4, "{trips} round trips for 20 times 8 names");
    assert_eq!(listings(&client), (1, 1), "{:?}", client.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_through_a_tree_does_not_begin_anew_in_each_directory() {
    const DIRS: usize = 20;
    let cell = Cell::with_term(Duration::from_secs(60));
    let dirs = filled(&cell, DIRS, 12).await;
    let far = Far::before(cell.addr, TRIP).await;
    let client = far_client(&cell, &far).await;
    let before = far.trips();
    for (number, made) in dirs.iter().enumerate() {
        let found = client.lookup(client.root(), &name(&format!("dir{number}"))).await.unwrap();
        let dir = found.node.unwrap().fid;
        assert_eq!(dir, *made);
        for file in 0..12 {
            assert!(has(&client, dir, &text(file)).await);
        }
    }
    let trips = far.trips() - before;
    // Each directory one for its first name, and in the first ones, of the root too, for some more.
    assert!(trips <= 3 * DIRS as u64 + 16, "{trips} round trips for {DIRS} directories of 12 names");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_names_are_brought_than_those_asked_for_are_worth() {
    let cell = Cell::start();
    let dir = filled(&cell, 1, 1500).await[0];
    let client = cell.client().await;
    for number in 0..5 {
        assert!(has(&client, dir, &text(number)).await);
    }
    assert_eq!(listings(&client), (0, 0), "{:?}", client.stats());
    for number in 5..10 {
        assert!(has(&client, dir, &text(number)).await);
    }
    assert_eq!(listings(&client).0, 1, "{:?}", client.stats());
    let few = cell.client().await;
    for _ in 0..3 {
        assert!(
            has(&few, dir, "0000").await && has(&few, dir, "0001").await && !has(&few, dir, "none").await
        );
    }
    assert_eq!(listings(&few), (0, 0), "what is known is asked for once: {:?}", few.stats());
}

/// A name is looked up; if that has a listing made, until that is here.
async fn looked_up(client: &Arc<Client>, dir: Fid, name_of: &str) {
    let before = listings(client).0;
    assert!(has(client, dir, name_of).await);
    if listings(client).0 > before {
        wait_until("the listing", || async { client.whole(dir).valid.until().is_some() }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_others_change_names_all_the_time_few_listings_are_made() {
    const ROUNDS: usize = 40;
    let cell = Cell::with_term(Duration::from_secs(60));
    let dirs = filled(&cell, 2, FILES).await;
    let (a, b) = (cell.client().await, cell.client().await);
    // Who has found much in listings begins early elsewhere.
    for number in 0..FILES {
        looked_up(&a, dirs[1], &text(number)).await;
    }
    let before = listings(&a);
    for round in 0..ROUNDS {
        for number in 0..5 {
            looked_up(&a, dirs[0], &text(round * 5 % FILES + number)).await;
        }
        make(&b, dirs[0], &format!("new {round}"), "x").await;
    }
    let made = listings(&a).0 - before.0;
    assert!((1..=2).contains(&made), "{made} listings in {ROUNDS} rounds: {:?}", a.stats());
    // When they leave it alone it is listed after some more names.
    for number in 0..FILES {
        looked_up(&a, dirs[0], &text(number)).await;
    }
    assert_eq!(listings(&a).0 - before.0, made + 1, "{:?}", a.stats());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_lease_has_nothing_brought() {
    let cell = Cell::start();
    let dir = filled(&cell, 1, 50).await[0];
    let default = cell.client_config();
    for config in [
        ClientConfig { lease_term: Some(ObjectTerm::None), ..default.clone() },
        ClientConfig { consistency: Consistency::Verify, ..default.clone() },
        ClientConfig { consistency: Consistency::Ttl(Duration::from_secs(60)), ..default },
    ] {
        let mode = format!("{:?} {:?}", config.consistency, config.lease_term);
        let client = Client::connect(config, Box::new(NoKernel)).await.unwrap();
        for number in 0..50 {
            assert!(has(&client, dir, &text(number)).await, "{mode}");
        }
        assert_eq!(listings(&client), (0, 0), "{mode}");
    }
}

// SEMANTICS 4
#[tokio::test(flavor = "multi_thread")]
async fn names_that_another_machine_makes_and_removes_are_seen_however_they_came() {
    let cell = Cell::start();
    let dir = filled(&cell, 1, 50).await[0];
    let (a, b) = (cell.client().await, cell.client().await);
    for round in 0..20 {
        for number in 0..6 {
            assert!(has(&a, dir, &text(20 + number)).await);
            assert!(!has(&a, dir, &format!("new {round} {number}")).await);
        }
        // While the names are on their way, as a rule; once when they have long been here.
        if round == 0 {
            wait_until("names", || async {
                !has(&a, dir, "none").await && a.whole(dir).valid.until().is_some()
            })
            .await;
        }
        make(&b, dir, &format!("new {round} 0"), "x").await;
        assert!(has(&a, dir, &format!("new {round} 0")).await, "round {round}");
        b.unlink(dir, &name(&format!("new {round} 0"))).await.unwrap();
        assert!(!has(&a, dir, &format!("new {round} 0")).await, "round {round}");
        b.unlink(dir, &name(&text(49 - round % 2))).await.unwrap();
        assert!(!has(&a, dir, &text(49 - round % 2)).await, "round {round}");
        make(&b, dir, &text(49 - round % 2), "x").await;
    }
    assert!(listings(&a).0 > 0, "{:?}", a.stats());
}
