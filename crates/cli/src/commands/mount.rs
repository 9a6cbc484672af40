//! `soda mount`: a daemon that serves the mount, and the command that waits until it does.

use crate::admin::Admin;
use crate::args::{LogArgs, LogFormat, MountArgs};
use crate::commands::{EndRequests, beside, recover, runtime, takeover, this_program};
use crate::control::{self, Answers, ControlServer, ControlSocket};
use crate::ending::{Ending, all_told};
use crate::error::CliError;
use crate::log::{self, LogView};
use crate::options::{MountAction, MountOptions};
use crate::plan::Plan;
use crate::progress::Waiting;
use crate::remount;
use crate::takeover::{Claims, Handed};
use soda_client::{CacheConfig, Client, ClientConfig};
use soda_fuse::{Hooks, Mount, MountConfig, MountEntry, MountError};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the daemon says when the mount can be used.
const READY: &str = "ready";
/// What it says before if the server has restarted and waits for those whom it knew.
const GRACE: &str = "grace";
/// What it says before if what an earlier mount had not told the server cannot be told any more.
const KEPT: &str = "kept";
/// So often the daemon looks what its first question waits for, and for so long it may not hear of the server.
const LOOK: Duration = Duration::from_millis(500);
const SILENCE: Duration = Duration::from_secs(30);
/// After a signal, users of the mount have this long before it is cut off.
const LAST_ORDERS: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: MountArgs, log: &LogArgs) -> Result<(), CliError> {
    if let Some(dir) = &arguments.takeover {
        return takeover::run(dir, &arguments, log);
    }
    let plan = plan(&arguments)?;
    if plan.options.action == MountAction::Remount {
        return remount(&plan, &arguments);
    }
    let there = soda_fuse::find_mount(&plan.dir)
        .map_err(|cause| MountError::MountPoint { path: plan.dir.clone(), cause })?;
    if let Some(MountEntry { dir, source, .. }) = there {
        return Err(CliError::Mounted { dir, spec: source });
    }
    if !arguments.daemon {
        warn_of_what_is_hidden(&plan.dir);
    }
    match arguments.foreground {
        true => runtime()?.block_on(serve(plan, LogView::of(log), arguments.daemon)),
        false => {
            start_daemon(&plan, log)?;
            // What is of this volume has been told by now.
            plan.options.cache_dir.iter().for_each(|dir| recover::warn_of_others(dir));
            Ok(())
        }
    }
}

fn warn_of_what_is_hidden(dir: &Path) {
    if std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
        eprintln!(
            "soda: {} is not empty: what is in it cannot be seen while something is mounted there",
            dir.display()
        );
    }
}

/// `mount -o remount`: only what the kernel carries out can change under a running daemon.
fn remount(plan: &Plan, arguments: &MountArgs) -> Result<(), CliError> {
    let entry = soda_fuse::find_mount(&plan.dir).map_err(CliError::io(plan.dir.display().to_string()))?;
    let entry = entry.ok_or_else(|| CliError::NotMounted(plan.dir.clone()))?;
    let running = control::mount_of(&entry).ok_or_else(|| CliError::Silent(entry.dir.clone()))?;
    if !running.made(&entry) {
        let (bind, dir) = (entry.dir.display(), running.dir.display());
        return Err(CliError::Failed(format!(
            "{bind} is a bind mount of {dir}: remount that, or `mount -o remount,bind,...`"
        )));
    }
    let flags = remount::flags(&running.options, &arguments.options, plan.options.cache_dir.as_deref());
    let flags = flags.map_err(|text| CliError::Failed(format!("{}: {text}", entry.dir.display())))?;
    soda_fuse::remount(&entry.dir, &flags)
        .map_err(CliError::io(format!("cannot remount {}", entry.dir.display())))
}

fn plan(arguments: &MountArgs) -> Result<Plan, CliError> {
    let mut options = MountOptions::default();
    arguments.options.iter().try_for_each(|list| options.add(list)).map_err(CliError::Usage)?;
    if let Some(dir) = &arguments.cache_dir {
        options.cache_dir = Some(dir.clone());
    }
    // Of a remount only together with what the mount has.
    if options.action == MountAction::Mount {
        options.check().map_err(CliError::Usage)?;
    }
    let absolute = |path: &Path| std::path::absolute(path).map_err(CliError::io(path.display().to_string()));
    if let Some(dir) = options.cache_dir.take() {
        options.cache_dir = Some(absolute(&dir)?);
    }
    // The command line has both, where there is nothing to take over.
    let missing = || CliError::Usage("what is to be mounted, and where?".into());
    let spec = arguments.spec.clone().ok_or_else(missing)?;
    Ok(Plan { spec, dir: absolute(arguments.dir.as_deref().ok_or_else(missing)?)?, options })
}

/// A connected client with its mount, and where it is going to be asked about them.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub client: Arc<Client>,
    pub mount: Mount,
    pub control: ControlSocket,
}

/// Waits until the server answers: one that has restarted keeps everybody waiting until those whom it knew are back, or their
/// leases have run out. `on_grace` is called once if that is so.
///
/// # Errors
/// The server's answer, or that it is not there any more.
async fn first_question(client: &Client, server: &str, on_grace: impl FnOnce()) -> Result<(), CliError> {
    let failed =
        |why: String| CliError::Failed(format!("{server} can be connected to, but does not answer: {why}"));
    let mut asked = std::pin::pin!(client.getattr(client.root()));
    let (mut heard, mut on_grace) = (Instant::now(), Some(on_grace));
    while heard.elapsed() < SILENCE {
        if let Ok(answer) = tokio::time::timeout(LOOK, &mut asked).await {
            return answer.map(|_| ()).map_err(|error| failed(error.to_string()));
        }
        let named = server.to_owned();
        let status = tokio::task::spawn_blocking(move || Admin::connect(&named)?.status()).await;
        if let Ok(Ok(status)) = status {
            heard = Instant::now();
            if status.grace.is_some() {
                on_grace.take().into_iter().for_each(|tell| tell());
            }
        }
    }
    Err(failed(format!("it has not been heard of for {SILENCE:?}")))
}

/// Connects and mounts.
async fn mount(plan: &Plan, on_grace: impl FnOnce()) -> Result<Mounted, CliError> {
    let hooks = Hooks::new();
    let client = Client::connect(client_config(plan), Box::new(hooks.clone())).await?;
    if let Err(error) = first_question(&client, &plan.spec.server, on_grace).await {
        client.shutdown().await;
        return Err(error);
    }
    if let Some(dir) = &plan.options.cache_dir
        && let Err(error) = crate::cache_dirs::note(dir)
    {
        tracing::warn!(%error, "the cache directory could not be noted: `soda recover` needs --cache-dir for it");
    }
    let mounted = || -> Result<_, CliError> {
        let control = ControlSocket::bind_early()?;
        let mount = Mount::start(client.clone(), &hooks, &plan.dir, &mount_config(plan))?;
        let device = soda_fuse::find_mount(mount.dir()).ok().flatten().map(|entry| entry.device);
        Ok((mount, control.for_mount(device)?))
    };
    match mounted() {
        Ok((mount, control)) => Ok(Mounted { client, mount, control }),
        Err(error) => {
            client.shutdown().await;
            Err(error)
        }
    }
}

pub(crate) fn mount_config(plan: &Plan) -> MountConfig {
    MountConfig {
        flags: plan.options.flags,
        cores: plan.options.cores,
        transport: plan.options.transport,
        guard: Some(beside::guard),
        visitor: Some(beside::visitor),
        ..MountConfig::new(plan.spec.to_string())
    }
}

pub(crate) fn client_config(plan: &Plan) -> ClientConfig {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let options = &plan.options;
    let mut config = ClientConfig::new(&plan.spec.server, &plan.spec.volume);
    config.name = format!("{host}:{}", plan.dir.display());
    config.consistency = options.consistency;
    config.lease_term = options.lease_term;
    config.widest_lease = options.widest_lease;
    config.lease_poll = options.lease_poll;
    config.locks = options.locks;
    config.retry = options.retry();
    config.write = options.write_policy();
    config.access = options.access;
    config.keep_lost_in = Some(crate::cache_dirs::for_lost());
    let defaults = CacheConfig::default();
    config.cache = CacheConfig {
        memory_bytes: options.memory.unwrap_or(defaults.memory_bytes),
        metadata_bytes: options.metadata_memory.unwrap_or(defaults.metadata_bytes),
        idle: options.lease_idle.unwrap_or(defaults.idle),
        dir: options.cache_dir.clone(),
        dir_bytes: options.cache_size.unwrap_or(defaults.dir_bytes),
        ..defaults
    };
    config
}

/// Serves the mount until it is unmounted or the process is asked to end.
async fn serve(plan: Plan, log: Option<LogView>, is_daemon: bool) -> Result<(), CliError> {
    if is_daemon {
        // Fails for the leader of a process group, which a daemon is not.
        let _ = rustix::process::setsid();
        let _ = rustix::process::chdir("/");
    }
    let on_grace = || {
        tracing::info!("the server has restarted, and waits for those whom it knew");
        match is_daemon {
            true => println!("{GRACE}"),
            false => eprintln!("soda: waiting for {}", grace_of(&plan.spec.server)),
        }
    };
    let mounted = match mount(&plan, on_grace).await {
        Ok(mounted) => {
            if mounted.client.stats().count("kept_logs") > 0 {
                match is_daemon {
                    true => println!("{KEPT}"),
                    false => say_kept(),
                }
            }
            mounted
        }
        Err(error) if is_daemon => {
            println!("{} {error}", error.code());
            return Err(error);
        }
        Err(error) => return Err(error),
    };
    attend(mounted, plan, log, is_daemon, EndRequests::listen()?).await
}

/// Looks after a mount that is served, until its end. Whoever started this process hears that it is there; before that it listens
/// to `requests` to end.
pub(crate) async fn attend(
    mounted: Mounted,
    plan: Plan,
    log: Option<LogView>,
    is_daemon: bool,
    mut requests: EndRequests,
) -> Result<(), CliError> {
    let Mounted { client, mount, control } = mounted;
    let (ending, listeners) = Ending::new();
    let (claims, mut claimants) = Claims::new();
    let answers = Answers {
        dir: mount.dir().to_path_buf(),
        source: plan.spec.to_string(),
        device: control.device(),
        options: plan.options.in_effect().to_list(),
        log: log.clone(),
        transport: mount.transport(),
        client: client.clone(),
        monitor: mount.monitor(),
        ending: listeners,
        claims,
    };
    // Who hears that it is there may look at its log.
    log::finish();
    let control = ControlServer::start(control, answers);
    match is_daemon {
        true => say_ready(),
        false => eprintln!("soda: {} is mounted on {}", plan.spec, plan.dir.display()),
    }
    let asked = loop {
        tokio::select! {
            () = mount.ended() => break 0,
            _ = requests.next() => break tokio::select! {
                () = end_politely(&mount) => 1,
                _ = requests.next() => 2,
            },
            claimant = claimants.next() => {
                if claimant.hand_over(&mount, &plan).await == Handed::Over {
                    drop(control);
                    tracing::info!(dir = %plan.dir.display(), "another process serves the mount");
                    log::finish();
                    // Nothing that is left here is to be cleaned up.
                    std::process::exit(0);
                }
            }
        }
    };
    drop(control);
    let untold = client.shutdown_unless(enough(&mut requests, asked)).await;
    ending.say(untold).await;
    // Threads that are still in the kernel end with the process.
    drop(mount);
    tracing::info!(dir = %plan.dir.display(), "unmounted");
    all_told(&plan.dir, untold)?;
    if is_daemon {
        log::remove_if_all_was_well(log.as_ref(), &control::runtime_dir());
    }
    Ok(())
}

/// Resolves when the daemon was asked to end twice; so often it was already.
async fn enough(requests: &mut EndRequests, asked: u32) {
    for asked in asked..2 {
        if asked == 1 {
            tracing::info!(
                "the server is told what it lacks, which SIGTERM or Ctrl-C once more ends at once"
            );
        }
        requests.next().await;
    }
}

async fn end_politely(mount: &Mount) {
    if let Err(error) = mount.detach() {
        tracing::warn!(%error, "cannot unmount");
    }
    if tokio::time::timeout(LAST_ORDERS, mount.ended()).await.is_err() {
        tracing::warn!("still in use after {LAST_ORDERS:?}: cut off");
    }
}

fn say_ready() {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
    // The parent's pipe goes with it, and with the pipe whoever waits for its end (`$(soda mount …)`).
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

fn start_daemon(plan: &Plan, log: &LogArgs) -> Result<(), CliError> {
    let mut command = this_program()?;
    command.arg("mount").arg(plan.spec.to_string()).arg(&plan.dir);
    // Apart from the list, which is text: a path need not be.
    let mut options = plan.options.clone();
    if let Some(dir) = options.cache_dir.take() {
        command.arg("--cache-dir").arg(dir);
    }
    command.arg("-o").arg(options.to_list());
    let waiting = Waiting::new(format!("the server {} to answer", plan.spec.server));
    let grace = || Waiting::new(grace_of(&plan.spec.server));
    await_daemon(command, log, &plan.dir, waiting, grace)
}

/// Starts the process that serves a mount, and waits until it does. `grace`: what is waited for if the server has restarted.
pub(crate) fn await_daemon(
    mut command: Command,
    log: &LogArgs,
    dir: &Path,
    waiting: Waiting,
    grace: impl Fn() -> Waiting,
) -> Result<(), CliError> {
    let log_path = match &log.file {
        // The daemon begins elsewhere.
        Some(path) => std::path::absolute(path).map_err(CliError::io(path.display().to_string()))?,
        None => control::log_path(dir)?,
    };
    let log_file = File::options().create(true).append(true).open(&log_path);
    let log_file = log_file.map_err(CliError::io(format!("the log {}", log_path.display())))?;
    command.args(["--foreground", "--daemon"]);
    if let Some(filter) = &log.filter {
        command.args(["--log", filter]);
    }
    if log.format == LogFormat::Json {
        command.args(["--log-format", "json"]);
    }
    command.arg("--log-file").arg(&log_path);
    // What is not the log's, such as the words of a panic, goes there, too.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
    // A lock of flock(1), or a pipe that somebody reads to its end, is this command's for as long as it runs, not the mount's.
    if let Err(error) = soda_fuse::close_on_exec() {
        tracing::warn!(%error, "the mount's daemon keeps what this command has open");
    }
    let mut daemon = command.spawn().map_err(CliError::io("cannot start the mount's daemon"))?;
    let (mut waiting, mut said) = (waiting, String::new());
    for line in daemon.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        said = line.map_err(CliError::io("the mount's daemon"))?;
        match said.as_str() {
            GRACE => drop(std::mem::replace(&mut waiting, grace())),
            KEPT => say_kept(),
            _ => break,
        }
    }
    drop(waiting);
    match said.as_str() {
        READY => Ok(()),
        said => {
            let _ = daemon.wait();
            Err(daemon_error(said, &log_path))
        }
    }
}

fn say_kept() {
    eprintln!(
        "soda: changes that were made here before could not be told to the server: they are not in the volume, but kept; see \
         `soda recover ls`"
    );
}

fn grace_of(server: &str) -> String {
    format!("the server {server}, which has restarted, to hear from those whom it knew")
}

fn daemon_error(said: &str, log: &Path) -> CliError {
    match said.split_once(' ').map(|(code, text)| (code.parse(), text)) {
        Some((Ok(code), text)) => CliError::Daemon { code, text: text.to_string() },
        _ => CliError::Failed(format!("the mount's daemon ended without a word; see {}", log.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_words_become_the_commands() {
        let error = daemon_error("3 cannot reach it", Path::new("/l"));
        assert_eq!((error.code(), error.to_string().as_str()), (3, "cannot reach it"));
        assert_eq!(daemon_error("", Path::new("/l")).code(), 1);
    }
}
