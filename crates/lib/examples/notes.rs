//! Two machines keep notes in one volume: delayed writes, a file that both append to, a lock, and how it ends.
//!
//! `cargo run -p soda-lib --example notes -- HOST:PORT [VOLUME]`, with a `soda serve` there.

use libsoda::{LockMode, OpenOptions, Options, Volume, Writes};
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().ok_or("usage: notes HOST:PORT [VOLUME]")?;
    let volume = arguments.next().unwrap_or_else(|| "main".into());
    for line in run(&server, &volume).await? {
        println!("{line}");
    }
    Ok(())
}

/// Returns what there is to tell.
pub(crate) async fn run(server: &str, volume: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut told = Vec::new();
    // Each is a machine of its own: as if they were two programs, anywhere.
    let here = Volume::connect(Options::new(server, volume).name("here").writes(Writes::Delayed)).await?;
    let there = Volume::connect(Options::new(server, volume).name("there")).await?;

    // The server hears of this within a second, or at once if somebody looks.
    here.create_dir_all("notes/2026").await?;
    for day in 1..=20 {
        here.write(format!("notes/2026/{day}"), format!("day {day}")).await?;
    }
    told.push(format!("{} notes there", there.read_dir("notes/2026").await?.collect().await?.len()));

    let append = OpenOptions::new().read(true).append(true).create(true);
    let (mine, theirs) = (here.open("notes/log", append).await?, there.open("notes/log", append).await?);
    mine.append("from here\n").await?;
    theirs.append("from there\n").await?;
    told.push(format!("log: {:?}", mine.read_at(0, 1000).await?));

    mine.lock(LockMode::Exclusive).await?;
    told.push(format!("locked for others: {}", !theirs.try_lock(LockMode::Shared).await?));
    mine.unlock().await?;

    // What is answered may still be lost with this machine; what is synced may not.
    mine.sync().await?;
    mine.close().await?;
    theirs.close().await?;

    match there.read("notes/none").await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => told.push(error.to_string()),
        other => return Err(format!("{other:?}").into()),
    }
    here.remove_dir_all("notes").await?;
    told.push(format!("gone there: {}", !there.exists("notes").await?));
    here.shutdown().await?;
    there.shutdown().await?;
    Ok(told)
}
