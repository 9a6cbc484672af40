//! A log that is cut where the server has heard of more than what is left of it says.

use super::*;

/// Some work that is told, because somebody asks, and some in a directory of its own that is not. Returns how long the log was
/// before that.
async fn told_in_part(victim: &Victim, reader: &Arc<Client>, [shared, own]: [&str; 2]) -> u64 {
    let file = only_log(victim.cache.path()).join("0000000001.log");
    let begin = fs::metadata(&file).unwrap().len();
    let texts = [shared, own].map(str::to_owned);
    let dirs = victim
        .run(|client| async move {
            let dirs = [
                mkdir(&client, client.root(), &texts[0]).await,
                mkdir(&client, client.root(), &texts[1]).await,
            ];
            make(&client, dirs[0], "told", "told").await;
            make(&client, dirs[0], "told, too", "told, too").await;
            dirs
        })
        .await;
    // What is asked for goes to the server, with all that it depends on, and leaves the rest behind.
    assert_eq!(contents(reader, &[shared, "told"]).await, "told");
    assert_eq!(contents(reader, &[shared, "told, too"]).await, "told, too");
    victim
        .run(move |client| async move {
            let through = client.stats().count("msg_create");
            make(&client, dirs[1], "late", "late").await;
            make(&client, dirs[1], "later", "later").await;
            assert_eq!(client.stats().count("msg_create"), through, "{:?}", client.stats());
            assert!(client.session().backlog.records >= 4);
        })
        .await;
    begin
}

async fn names_in(client: &Arc<Client>, top: &str) -> Vec<String> {
    let Some(dir) = find(client, &[top]).await else { return Vec::new() };
    let open = client.open_dir(dir).await.unwrap();
    let entries = client.read_dir(&open, 0, 100).await.unwrap();
    let mut names: Vec<String> =
        entries.iter().map(|entry| String::from_utf8(entry.name.as_bytes().to_vec()).unwrap()).collect();
    names.sort();
    names
}

/// Wherever that is: nothing is applied, nothing of what the server has been told is touched, and what is left is kept. Where
/// the log knows all digests, what came before the cut is told.
// SEMANTICS 50
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_lacks_what_the_server_has_been_told_is_kept_and_changes_nothing() {
    let (mut kept_logs, mut told_logs) = (0, 0);
    for cut in 0.. {
        // Of a directory that others have just used nobody is given the lease at once.
        let cell = Cell::syncing_when_asked();
        let (victim, reader) = (Victim::start(&cell).await, cell.client().await);
        let (top, own) = (format!("round {cut}"), format!("own {cut}"));
        let begin = told_in_part(&victim, &reader, [&top, &own]).await;
        reader.shutdown().await;
        let cache = victim.kill();
        let file = only_log(cache.path()).join("0000000001.log");
        let bytes = fs::read(&file).unwrap();
        let mut bounds = boundaries(&bytes);
        bounds.retain(|bound| *bound as u64 >= begin);
        let Some(bound) = bounds.len().checked_sub(cut + 1) else { break };
        // Now and then inside of an entry.
        let inside = if cut % 2 == 1 && bound > 0 { 3 } else { 0 };
        let whole = knows_all_digests(&file, bounds[bound] - inside);
        let left = segments::read(&only_log(cache.path())).unwrap().unwrap().records().len();

        let a = next(&cell, cache.path()).await;
        let b = cell.client().await;
        let (told, late) = (names_in(&b, &top).await, names_in(&b, &own).await);
        let why = kept(cache.path()).pop().map(|log| fs::read_to_string(log.join("why")).unwrap());
        assert_eq!(told, ["told", "told, too"], "cut {cut}");
        for text in told {
            assert_eq!(contents(&b, &[&top, &text]).await, text, "cut {cut}");
        }
        if whole {
            told_logs += 1;
            assert_eq!(why, None, "cut {cut}");
            assert!(["late", "later"].map(str::to_owned).starts_with(&late), "cut {cut}: {late:?}");
            for (number, text) in late.iter().enumerate() {
                // The last record before the cut may have been a creation.
                let content = contents(&b, &[&own, text]).await;
                assert!(
                    content == *text || (content.is_empty() && number + 1 == late.len()),
                    "cut {cut}: {content}"
                );
            }
        } else {
            kept_logs += 1;
            // An empty one is of no use to anybody.
            assert_eq!(why.is_some(), left > 0, "cut {cut}: {left} records");
            assert!(why.is_none_or(|why| why.contains("lacks its end")), "cut {cut}");
            assert!(late.is_empty(), "cut {cut}: {late:?}");
        }
        // Whoever comes next is not held up, and may do as it likes with all of it.
        let dir = find(&b, &[&top]).await.unwrap();
        b.unlink(dir, &name("told")).await.unwrap();
        make(&a, dir, "told", "anew").await;
        assert_eq!(contents(&b, &[&top, "told"]).await, "anew");
        a.shutdown().await;
        b.shutdown().await;
    }
    assert!(kept_logs >= 3 && told_logs >= 4, "{kept_logs} kept, {told_logs} told");
}

/// Cuts the file, and looks whether what is left says of each digest that it was sent.
fn knows_all_digests(file: &Path, len: usize) -> bool {
    let last = || segments::read(file.parent().unwrap()).unwrap().unwrap().last_digest;
    let before = last();
    fs::File::options().write(true).open(file).unwrap().set_len(len as u64).unwrap();
    last() == before
}
