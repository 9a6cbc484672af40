//! Two clients of one volume, as two machines would be: what one writes the other reads, and what nobody changes costs no
//! message.
//!
//! `cargo run -p soda-client --example two_machines -- HOST:PORT [VOLUME]`, with a `soda serve` there.

use soda_client::{Client, ClientConfig, IfExists, KillPriv, NewNode, NoKernel, OpenMode, WriteAt};
use soda_types::{Creds, FileKind, InUse, Name};
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().ok_or("usage: two_machines HOST:PORT [VOLUME]")?;
    let volume = arguments.next().unwrap_or_else(|| "main".into());
    for line in run(&server, &volume).await? {
        println!("{line}");
    }
    Ok(())
}

/// Returns what there is to tell.
pub(crate) async fn run(server: &str, volume: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut told = Vec::new();
    let one = Client::connect(ClientConfig::new(server, volume), Box::new(NoKernel)).await?;
    let two = Client::connect(ClientConfig::new(server, volume), Box::new(NoKernel)).await?;

    // Names are looked up in directories, which go by their fid; so does everything else.
    let name = Name::try_from("two-machines")?;
    let new = NewNode {
        kind: FileKind::File,
        perm: 0o644,
        umask: 0o022,
        rdev: 0,
        target: Vec::new(),
        creds: Creds::default(),
        existing: IfExists::Open,
        open: InUse::No,
    };
    let (_, here) = one.create_open(one.root(), &name, new, OpenMode::ReadWrite).await?;
    one.write_all(&here, WriteAt::Offset(0), "hello".into(), KillPriv::Keep).await?;

    let found = two.lookup(two.root(), &name).await?.node.ok_or("the file is not there")?;
    let there = two.open(found.fid, OpenMode::Read).await?;
    let first = two.read(&there, 0, 100).await?.to_bytes();
    told.push(format!("the other machine reads: {}", String::from_utf8_lossy(&first)));

    // Under a read lease: neither the lookup nor the read asks the server again.
    let before = two.stats().requests();
    for _ in 0..1000 {
        two.lookup(two.root(), &name).await?;
        two.read(&there, 0, 100).await?;
    }
    told.push(format!("1000 more times: {} requests", two.stats().requests() - before));

    // The server recalls that lease before it answers this write, so the next read cannot be stale.
    one.write_all(&here, WriteAt::End, ", world".into(), KillPriv::Keep).await?;
    let second = two.read(&there, 0, 100).await?.to_bytes();
    told.push(format!("after a write on the first: {}", String::from_utf8_lossy(&second)));

    let listing = two.open_dir(two.root()).await?;
    let names = two.read_dir(&listing, 0, usize::MAX).await?;
    told.push(format!("{} name(s) in the root", names.len()));
    one.unlink(one.root(), &name).await?;
    let gone = two.lookup(two.root(), &name).await?.node.is_none();
    told.push(format!("removed on the first, gone on the second: {gone}"));

    // Without this the server waits for the end of the session's term before others get what is held here.
    drop((here, there));
    one.shutdown().await;
    two.shutdown().await;
    Ok(told)
}
