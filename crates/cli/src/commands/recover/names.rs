//! Names of what was there before a log: the server is asked for them, and nobody waits for it for long.

use crate::admin::Admin;
use crate::error::CliError;
use soda_client::recover::Names;
use soda_protocol::Whereabouts;
use soda_types::Fid;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Without the server a log is shown all the same.
const PATIENCE: Duration = Duration::from_secs(3);

/// Most inodes in one question.
const AT_ONCE: usize = 1000;

/// What the server has said.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) names: Names,
    /// Why it has said nothing, or not of all.
    pub(super) why_not: Option<String>,
}

impl Asked {
    /// What is said below a table.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        if self.names.has_any() {
            out.push_str("\nWhat was there before the log is named as the server has it now.\n");
        }
        if let Some(why) = &self.why_not {
            out.push_str(&format!("\n{}\n", not_asked_text(why)));
        }
        out
    }
}

pub(super) fn not_asked_text(why: &str) -> String {
    format!(
        "What was there before the log has no names here: the server was not asked, or not for all ({why})"
    )
}

type Said = Vec<(Fid, Whereabouts)>;

pub(super) fn ask(server: &str, of: Vec<Fid>) -> Asked {
    if of.is_empty() {
        return Asked::default();
    }
    if server.is_empty() {
        return Asked { why_not: Some("the log does not say which one it is of".into()), ..Asked::default() };
    }
    ask_within(PATIENCE, server, of)
}

fn ask_within(patience: Duration, server: &str, of: Vec<Fid>) -> Asked {
    let (say, heard) = mpsc::channel();
    let name = server.to_owned();
    // Looking up where it is can take longer than anybody wants to wait, and cannot be stopped.
    let asking = thread::Builder::new().name("names".into()).spawn(move || {
        let error = ask_all(&name, &of, &say).err();
        // Whoever asked may be gone.
        let _ = error.map(|error| say.send(Err(error.to_string())));
    });
    let end = Instant::now() + patience;
    let mut said = Said::new();
    let why_not = match asking {
        Err(error) => Some(error.to_string()),
        Ok(_) => loop {
            match heard.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(Ok(some)) => said.extend(some),
                Ok(Err(why)) => break Some(why),
                Err(RecvTimeoutError::Timeout) => {
                    break Some(format!("{server} has not answered within {} s", patience.as_secs()));
                }
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        },
    };
    Asked { names: said.into_iter().collect(), why_not }
}

fn ask_all(server: &str, of: &[Fid], say: &Sender<Result<Said, String>>) -> Result<(), CliError> {
    let mut admin = Admin::connect(server)?;
    for some in of.chunks(AT_ONCE) {
        let Some(places) = admin.paths(some)? else {
            return Err(CliError::Refused(format!("{server} is of a version that does not tell")));
        };
        if say.send(Ok(some.iter().copied().zip(places).collect())).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};
    use std::net::TcpListener;

    #[test]
    fn a_server_that_is_away_or_silent_keeps_nobody_waiting() {
        let of = vec![Fid::new(VolumeId(1), Ino(9))];
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let asked = ask_within(Duration::from_millis(50), &address, of.clone());
        let why = asked.why_not.unwrap();
        assert!(why.contains("has not answered") && !asked.names.has_any(), "{why}");
        drop(silent);
        let why = ask(&address, of.clone()).why_not.unwrap();
        assert!(why.contains(&address) && !why.contains("has not answered"), "{why}");
        assert!(ask("", of).why_not.is_some());
        assert!(ask(&address, Vec::new()).why_not.is_none(), "nothing is to be asked for");
    }
}
