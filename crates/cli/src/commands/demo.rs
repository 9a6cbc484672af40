//! `soda demo`: one server, the same volume mounted twice as two machines would, and what happens between them.

use crate::args::DemoArgs;
use crate::commands::mount::{Mounted, Plan, mount};
use crate::commands::{asked_to_end, print, runtime};
use crate::control::ControlServer;
use crate::error::CliError;
use crate::options::MountOptions;
use crate::spec::Spec;
use crate::units::show_duration;
use soda_server::{RunningServer, Server, ServerConfig};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A mount that is being cut off has this long to end.
const FAREWELL: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: DemoArgs) -> Result<(), CliError> {
    runtime()?.block_on(demo(arguments))
}

async fn demo(arguments: DemoArgs) -> Result<(), CliError> {
    let scratch = tempfile::Builder::new()
        .prefix("soda-demo.")
        .tempdir()
        .map_err(CliError::io("a temporary directory"))?;
    let data = arguments.data.clone().unwrap_or_else(|| scratch.path().join("data"));
    let mut config = ServerConfig::new(&data);
    config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = Server::start(config)?;
    let machines = [machine(&server, &scratch, "a").await?, machine(&server, &scratch, "b").await?];
    let [a, b] = [&machines[0], &machines[1]];
    print(&format!(
        "A server on {} with its data in {}, and the same volume mounted twice, as on two machines:\n  A  {}\n  B  {}\n\n",
        server.local_addr(),
        data.display(),
        a.dir.display(),
        b.dir.display()
    ))?;
    let told = story(a, b).await;
    let ended = match (told, arguments.once) {
        (Ok(()), false) => {
            print(&invitation(&server, a, b))?;
            asked_to_end().await
        }
        (told, _) => told,
    };
    print("Unmounting.\n")?;
    for machine in machines {
        machine.end().await;
    }
    server.shutdown().await;
    ended
}

fn invitation(server: &RunningServer, a: &Machine, b: &Machine) -> String {
    let soda = std::env::current_exe().map_or_else(|_| "soda".into(), |path| path.display().to_string());
    format!(
        "Both mounts can be used now. In another terminal, for example:\n  cp -r /etc/init.d {}/ && ls {}/init.d\n  \
         {soda} lease ls --server {}\n  {soda} stats\nCtrl-C unmounts both and stops the server.\n",
        a.dir.display(),
        b.dir.display(),
        server.local_addr()
    )
}

/// One client with its mount: what is another machine to the server.
struct Machine {
    name: &'static str,
    dir: PathBuf,
    mounted: Mounted,
    _control: ControlServer,
}

async fn machine(server: &RunningServer, scratch: &TempDir, name: &'static str) -> Result<Machine, CliError> {
    let dir = scratch.path().join(name);
    fs::create_dir(&dir).map_err(CliError::io(dir.display().to_string()))?;
    let spec = Spec { server: server.local_addr().to_string(), volume: "main".into() };
    let plan = Plan { spec, dir: dir.clone(), options: MountOptions::default() };
    let mounted = mount(&plan).await?;
    let control = ControlServer::start(&plan, &mounted)?;
    Ok(Machine { name, dir, mounted, _control: control })
}

impl Machine {
    fn count(&self, counter: &str) -> u64 {
        self.mounted.client.stats().count(counter)
    }

    fn traffic(&self) -> Traffic {
        let stats = self.mounted.client.stats();
        Traffic { requests: stats.requests(), recalls: stats.count("recalls") }
    }

    async fn end(self) {
        let Mounted { client, mount } = self.mounted;
        if let Err(error) = mount.detach() {
            tracing::warn!(%error, "cannot unmount {}", self.dir.display());
        }
        if tokio::time::timeout(FAREWELL, mount.ended()).await.is_err() {
            eprintln!("soda: {} is still in use; it is cut off", self.dir.display());
        }
        client.shutdown().await;
    }
}

#[derive(Clone, Copy)]
struct Traffic {
    requests: u64,
    recalls: u64,
}

/// One act: what is done, by whom, how long it took, and what went over the wire for it.
struct Act<'a> {
    machines: [&'a Machine; 2],
}

impl Act<'_> {
    /// Runs `work` on a thread of its own: a system call on a mount must not block the threads that serve it.
    async fn play<T, F>(&self, title: &str, work: F) -> Result<T, CliError>
    where
        T: Send + 'static,
        F: FnOnce() -> std::io::Result<T> + Send + 'static,
    {
        let before = self.machines.map(Machine::traffic);
        let timed = move || {
            let start = Instant::now();
            work().map(|value| (value, start.elapsed()))
        };
        let result = tokio::task::spawn_blocking(timed).await;
        let result = result.map_err(|error| CliError::Failed(error.to_string()))?;
        let (value, took) = result.map_err(CliError::io(title.to_string()))?;
        let mut line = format!("{title:<66} {:>9}\n", show_duration(took));
        for (machine, before) in self.machines.iter().zip(before) {
            let after = machine.traffic();
            let (requests, recalls) = (after.requests - before.requests, after.recalls - before.recalls);
            if requests + recalls > 0 {
                let messages = if requests == 1 { "message" } else { "messages" };
                let recalled = match recalls {
                    0 => String::new(),
                    1 => ", gave up 1 lease when asked".into(),
                    many => format!(", gave up {many} leases when asked"),
                };
                line.push_str(&format!(
                    "      {}: {requests} {messages} to the server{recalled}\n",
                    machine.name.to_uppercase()
                ));
            }
        }
        if line.lines().count() == 1 {
            line.push_str("      no message at all: answered under leases\n");
        }
        print(&line)?;
        Ok(value)
    }
}

async fn story(a: &Machine, b: &Machine) -> Result<(), CliError> {
    let act = Act { machines: [a, b] };
    let (file_a, file_b) = (a.dir.join("hello.txt"), b.dir.join("hello.txt"));
    let path = file_a.clone();
    act.play("A writes hello.txt", move || fs::write(path, "hello from A\n")).await?;
    let path = file_b.clone();
    let seen = act
        .play("B reads it: A's exclusive lease is lowered, B gets a shared one", move || {
            fs::read_to_string(path)
        })
        .await?;
    expect("hello from A\n", &seen)?;
    let path = file_b.clone();
    act.play("B reads it again, 1,000 times", move || read_often(&path, 1000)).await?;

    let mut open = File::open(&file_b).map_err(CliError::io("hello.txt"))?;
    let path = file_a.clone();
    act.play("A overwrites it: B must forget it before A's write returns", move || {
        overwrite(&path, "HELLO from A\n")
    })
    .await?;
    let seen = act.play("B reads through the descriptor that it has held all along", move || {
        let mut text = String::new();
        open.seek(SeekFrom::Start(0))?;
        open.read_to_string(&mut text).map(|_| text)
    });
    expect("HELLO from A\n", &seen.await?)?;

    let path = file_b.clone();
    act.play("B makes it private (chmod 600)", move || {
        fs::set_permissions(path, PermissionsExt::from_mode(0o600))
    })
    .await?;
    let path = file_a.clone();
    let mode = act
        .play("A looks at it (stat)", move || fs::metadata(path).map(|m| m.permissions().mode() & 0o777))
        .await?;
    expect("600", &format!("{mode:o}"))?;

    let (old, new) = (file_a.clone(), a.dir.join("renamed.txt"));
    act.play("A renames it", move || fs::rename(old, new)).await?;
    let path = file_b.clone();
    let gone = act.play("B looks for the old name", move || Ok(!path.exists())).await?;
    expect("true", &gone.to_string())?;

    let (log_a, log_b) = (a.dir.join("log"), b.dir.join("log"));
    act.play("A and B append 200 lines each to one file, at the same time", move || {
        append_together(&log_a, &log_b)
    })
    .await?;
    let path = a.dir.join("log");
    let lines = act
        .play("A counts the lines", move || fs::read_to_string(path).map(|text| text.lines().count()))
        .await?;
    expect("400", &lines.to_string())?;
    print(&format!(
        "\nNot one stale answer. A answered {} recalls, B {}.\n\n",
        a.count("recalls"),
        b.count("recalls")
    ))
}

fn expect(expected: &str, seen: &str) -> Result<(), CliError> {
    match expected == seen {
        true => Ok(()),
        false => Err(CliError::Failed(format!(
            "stale: expected {expected:?}, saw {seen:?}. This is a bug in Soda; please report it"
        ))),
    }
}

fn read_often(path: &Path, times: usize) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = [0; 64];
    for _ in 0..times {
        file.seek(SeekFrom::Start(0))?;
        let _ = file.read(&mut buffer)?;
    }
    Ok(())
}

fn overwrite(path: &Path, text: &str) -> std::io::Result<()> {
    File::options().write(true).open(path)?.write_all(text.as_bytes())
}

fn append_together(a: &Path, b: &Path) -> std::io::Result<()> {
    const LINES: usize = 200;
    let append = |path: &Path, who: &str| -> std::io::Result<()> {
        let mut file = File::options().append(true).create(true).open(path)?;
        (0..LINES).try_for_each(|line| writeln!(file, "{who} {line}"))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| append(b, "B"));
        append(a, "A")?;
        other.join().map_err(|_| std::io::Error::other("the other thread panicked"))?
    })
}
