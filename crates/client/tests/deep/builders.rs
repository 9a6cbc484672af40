//! Two machines build in the same directory of one tree, and in sibling directories.

use super::*;
use std::time::Instant;

const UNITS: usize = 100;

/// What a compiler does for each unit: reads the source and some headers, looks whether the object is there, writes it under
/// another name and renames it.
async fn build(client: Arc<Client>, mine: String, source: Fid, target: Fid, units: usize) {
    let headers: Vec<Fid> = {
        let mut all = Vec::new();
        for number in 0..10 {
            all.push(find(&client, source, &format!("h{number}")).await.unwrap());
        }
        all
    };
    for unit in 0..units {
        let unit = format!("{mine}{unit}");
        let code = find(&client, source, &format!("{unit}.c")).await.unwrap();
        assert_eq!(contents(&client, code).await, unit);
        for header in &headers {
            assert_eq!(contents(&client, *header).await, "header");
        }
        let (object, temporary) = (format!("{unit}.o"), format!("{unit}.o.tmp"));
        assert_eq!(find(&client, target, &object).await, None);
        make(&client, target, &temporary, &format!("object of {unit}")).await;
        client.rename(target, &name(&temporary), target, &name(&object), RenameHow::Plain).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_build_in_one_tree_cost_few_messages_and_see_each_others_objects() {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Where {
        Siblings,
        SameDirectory,
    }
    let mut costs = Vec::new();
    for place in [Where::Siblings, Where::SameDirectory] {
        let cell = Cell::deep();
        let (maker, top) = writer(&cell, "top").await;
        let source = mkdir(&maker, top, "src").await;
        for number in 0..10 {
            make(&maker, source, &format!("h{number}"), "header").await;
        }
        for unit in (0..UNITS).flat_map(|unit| [format!("a{unit}"), format!("b{unit}")]) {
            make(&maker, source, &format!("{unit}.c"), &unit).await;
        }
        let targets = match place {
            Where::Siblings => [mkdir(&maker, top, "a").await, mkdir(&maker, top, "b").await],
            Where::SameDirectory => [mkdir(&maker, top, "out").await; 2],
        };
        maker.shutdown().await;
        let behind = || Client::connect(patient(&cell), Box::new(NoKernel));
        let (a, b) = (behind().await.unwrap(), behind().await.unwrap());
        let began = Instant::now();
        let builds = [(&a, "a", targets[0]), (&b, "b", targets[1])].map(|(client, mine, target)| {
            tokio::spawn(build(Arc::clone(client), mine.to_owned(), source, target, UNITS))
        });
        for build in builds {
            build.await.unwrap();
        }
        a.sync_all().await.unwrap();
        b.sync_all().await.unwrap();
        let sent = |client: &Arc<Client>| client.stats().requests() + client.stats().count("recalls");
        let each = (sent(&a) + sent(&b)) as f64 / (2 * UNITS) as f64;
        eprintln!("{place:?}: {each:.2} messages for each unit, {:?}: {:?}", began.elapsed(), a.stats());
        costs.push((place, each));
        // Each sees all that the other one has made.
        for (client, mine, theirs) in [(&a, "b", targets[1]), (&b, "a", targets[0])] {
            for unit in 0..UNITS {
                let object = find(client, theirs, &format!("{mine}{unit}.o")).await.unwrap();
                assert_eq!(contents(client, object).await, format!("object of {mine}{unit}"));
            }
        }
        assert_eq!(a.stats().count("lost_records") + b.stats().count("lost_records"), 0);
    }
    // In a directory of its own: the source, and a part of a digest. In the same one: a look-up, a creation and a rename, each of
    // which may have to be asked back from the other one, who has it listed.
    let bound = |place: Where| if place == Where::Siblings { 4.0 } else { 24.0 };
    assert!(costs.iter().all(|(place, each)| *each < bound(*place)), "{costs:?}");
}
