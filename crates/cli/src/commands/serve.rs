//! `soda serve`

use crate::args::{ServeArgs, SwitchArg, WriteLeasesArg};
use crate::commands::{EndRequests, runtime};
use crate::error::CliError;
use crate::log;
use crate::progress::Waiting;
use crate::units::{FirstBackOff, parse_object_term};
use soda_server::{
    BackOff, CacheSizes, DeepLeases, Equation8, Exposure, ObjectTerm, Server, ServerConfig, WriteLeases,
};

pub(crate) fn run(arguments: ServeArgs) -> Result<(), CliError> {
    let config = config(arguments)?;
    if config.data_dir.exists() && !config.data_dir.is_dir() {
        return Err(CliError::Usage(format!("--data {}: not a directory", config.data_dir.display())));
    }
    let runtime = runtime()?;
    let ended = runtime.block_on(serve(config));
    // What was opening when this was asked to end is not waited for: it may stop anywhere.
    runtime.shutdown_background();
    ended
}

async fn serve(config: ServerConfig) -> Result<(), CliError> {
    // Before clients can reach it: who does may ask it to end at once.
    let mut requests = EndRequests::listen()?;
    let starting = tokio::task::spawn_blocking(move || {
        let what = format!("the port {} to be let go of", config.listen.port());
        let listening = with_words(what, || Server::listen(config.clone()))?;
        let what = format!("{} to open: what the last run left is recovered", config.data_dir.display());
        with_words(what, || listening.open())
    });
    let server = tokio::select! {
        started = starting => started.map_err(|error| CliError::Failed(error.to_string()))??,
        _ = requests.next() => return Ok(()),
    };
    // In the order in which it was said.
    log::finish();
    eprintln!("soda: serving {} on {}", server.data_dir().display(), server.local_addr());
    if let Some(address) = server.metrics_addr() {
        eprintln!("soda: metrics on http://{address}/metrics");
    }
    requests.next().await;
    tracing::info!("stopping");
    server.shutdown().await;
    Ok(())
}

/// Says what is waited for if it takes long.
fn with_words<T>(what: String, wait: impl FnOnce() -> T) -> T {
    let _waiting = Waiting::new(what);
    wait()
}

fn config(arguments: ServeArgs) -> Result<ServerConfig, CliError> {
    let deep_leases = deep_leases(&arguments)?;
    let defaults = ServerConfig::new(arguments.data).with_term(arguments.term);
    let mut object_term = defaults.object_term;
    let mut volume_terms = defaults.volume_terms.clone();
    for text in &arguments.object_term {
        match text.split_once('=') {
            Some((volume, term)) => drop(volume_terms.insert(volume.to_owned(), object_term_of(term)?)),
            None => object_term = object_term_of(text)?,
        }
    }
    if arguments.term.is_zero() {
        return Err(CliError::Usage(
            "--term must be longer than 0; to grant no leases use --object-term 0".into(),
        ));
    }
    Ok(ServerConfig {
        listen: arguments.listen,
        metrics: arguments.metrics,
        exposure: match arguments.insecure {
            true => Exposure::Insecure,
            false => Exposure::LoopbackOnly,
        },
        grace: arguments.grace.unwrap_or(defaults.grace),
        object_term,
        volume_terms,
        write_leases: match arguments.write_leases {
            WriteLeasesArg::Grant => WriteLeases::Grant,
            WriteLeasesArg::OnlyToHolders => WriteLeases::OnlyToHolders,
        },
        equation_8: match arguments.equation_8 {
            SwitchArg::On => Equation8::On,
            SwitchArg::Off => Equation8::Off,
        },
        back_off: arguments.back_off.map(|FirstBackOff(first)| match first {
            Some(first) => BackOff::On { first, longest: arguments.term.max(first) },
            None => BackOff::Off,
        }),
        deep_leases,
        cache: CacheSizes { metadata: arguments.metadata_cache, data: arguments.data_cache },
        sync_interval: arguments.sync_interval,
        reserve: arguments.reserve,
        quota: arguments.quota,
        threads: arguments.threads.unwrap_or(defaults.threads).max(1),
        ..defaults
    })
}

fn deep_leases(arguments: &ServeArgs) -> Result<DeepLeases, CliError> {
    let (after, max_holes) = (arguments.deep_after, arguments.deep_holes);
    match (arguments.deep_leases, DeepLeases::DEFAULT_ON) {
        (SwitchArg::Off, _) if after.or(max_holes).is_some() => Err(CliError::Usage(
            "--deep-after and --deep-holes are about deep leases, which --deep-leases off turns off".into(),
        )),
        (SwitchArg::On, DeepLeases::On { after: usual, max_holes: most }) => Ok(DeepLeases::On {
            after: after.unwrap_or(usual),
            max_holes: max_holes.map_or(most, |most| most as usize),
        }),
        (SwitchArg::Off, _) | (SwitchArg::On, DeepLeases::Off) => Ok(DeepLeases::Off),
    }
}

fn object_term_of(text: &str) -> Result<ObjectTerm, CliError> {
    parse_object_term(text).map_err(|error| CliError::Usage(format!("--object-term: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn parsed(options: &[&str]) -> Result<DeepLeases, CliError> {
        let words = ["soda", "serve", "--data", "/data"].iter().chain(options);
        let Command::Serve(arguments) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        config(arguments).map(|config| config.deep_leases)
    }

    #[test]
    fn the_policy_of_deep_leases_is_the_administrators() {
        let on = |after, max_holes| DeepLeases::On { after, max_holes };
        assert_eq!(parsed(&[]).unwrap(), on(16, 256), "as the help says");
        assert_eq!(parsed(&["--deep-leases", "on"]).unwrap(), on(16, 256));
        let both = ["--deep-after", "4", "--deep-holes", "100"];
        assert_eq!(parsed(&both).unwrap(), on(4, 100));
        assert_eq!(parsed(&both[..2]).unwrap(), on(4, 256));
        assert_eq!(parsed(&["--deep-leases", "off"]).unwrap(), DeepLeases::Off);
        let refused = parsed(&["--deep-leases", "off", "--deep-holes", "1"]).unwrap_err();
        assert!(refused.to_string().contains("--deep-leases off") && refused.code() == 2, "{refused}");
        for none in ["0", "many"] {
            let words = ["soda", "serve", "--data", "/data", "--deep-leases", "on", "--deep-after", none];
            assert!(Cli::try_parse_from(words).is_err(), "{none}");
        }
    }
}
