//! How a mount ended: what its daemon says of it last, and to whom. The daemon of a mount is nobody's child, so its exit code is
//! for nobody; who unmounts asks for its last words while it still listens ([`listen`]).

use crate::error::CliError;
use crate::units::{count, is_or_are};
use serde::{Deserialize, Serialize};
use soda_client::Untold;
use std::io::BufRead;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

/// So often a daemon says that it is not at its end yet.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// Who has heard nothing for so long waits no longer.
const SILENCE: Duration = Duration::from_secs(10);
/// Those who asked for the last words may take so long to take them.
const PARTING: Duration = Duration::from_secs(1);

/// A line of what a daemon says to who asked how it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    NotYet,
    Ended { left: u64, lost: u64 },
}

/// The daemon's part.
#[derive(Debug)]
pub(crate) struct Ending(watch::Sender<Option<Untold>>);

impl Ending {
    pub(crate) fn new() -> (Ending, Listeners) {
        let (ending, listeners) = watch::channel(None);
        (Ending(ending), Listeners(listeners))
    }

    /// Says it to all who have asked.
    pub(crate) async fn say(self, untold: Untold) {
        let _ = self.0.send(Some(untold));
        let _ = tokio::time::timeout(PARTING, self.0.closed()).await;
    }
}

/// Who may ask how it ends.
#[derive(Clone, Debug)]
pub(crate) struct Listeners(watch::Receiver<Option<Untold>>);

impl Listeners {
    /// Says it to one of them, who may go before.
    pub(crate) async fn tell(mut self, to: &mut (impl tokio::io::AsyncWrite + Unpin)) -> std::io::Result<()> {
        loop {
            let ended = tokio::time::timeout(SIGN_OF_LIFE, self.0.wait_for(Option::is_some)).await;
            let word = match ended.map(|ended| ended.map(|untold| *untold)) {
                Err(_) => Word::NotYet,
                Ok(Ok(Some(Untold { left, lost }))) => Word::Ended { left, lost },
                Ok(Ok(None) | Err(_)) => return Ok(()),
            };
            to.write_all(format!("{}\n", serde_json::to_string(&word)?).as_bytes()).await?;
            if word != Word::NotYet {
                return Ok(());
            }
        }
    }
}

/// How the wait for the end of a daemon ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    Untold(Untold),
    /// It ended, or was killed.
    NoWord,
    /// It is there, but stopped or stuck.
    Silence,
}

/// Waits for the last words of a daemon.
#[derive(Debug)]
pub(crate) struct LastWords(Receiver<Word>);

/// From now on a daemon is listened to, which is heard at the other end.
pub(crate) fn listen(from: impl BufRead + Send + 'static) -> LastWords {
    let (say, words) = mpsc::channel();
    std::thread::spawn(move || {
        let heard = from.lines().map_while(Result::ok);
        // A daemon of an older version answers that it does not understand.
        for word in heard.map_while(|line| serde_json::from_str(&line).ok()) {
            if say.send(word).is_err() {
                return;
            }
        }
    });
    LastWords(words)
}

impl LastWords {
    pub(crate) fn wait(&self) -> Heard {
        self.wait_for(SILENCE)
    }

    fn wait_for(&self, silence: Duration) -> Heard {
        loop {
            match self.0.recv_timeout(silence) {
                Ok(Word::NotYet) => {}
                Ok(Word::Ended { left, lost }) => return Heard::Untold(Untold { left, lost }),
                Err(RecvTimeoutError::Disconnected) => return Heard::NoWord,
                Err(RecvTimeoutError::Timeout) => return Heard::Silence,
            }
        }
    }
}

/// Nobody who has closed his files hears otherwise of what the server did not take before the end.
pub(crate) fn all_told(dir: &Path, untold: Untold) -> Result<(), CliError> {
    let dir = dir.display();
    if untold.left > 0 {
        eprintln!(
            "soda: {} of {dir} {} in the log in its cache-dir: the server is told when it is mounted again with that",
            count(untold.left, "change"),
            is_or_are(untold.left)
        );
    }
    match untold.lost {
        0 => Ok(()),
        lost => Err(CliError::Failed(format!(
            "{} of {dir} {} lost, not taken by the server before the end. `soda recover ls` shows what is kept of that",
            count(lost, "change"),
            is_or_are(lost)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_lost_at_the_end_is_an_error() {
        let ended = |left, lost| all_told(Path::new("/m"), Untold { left, lost });
        assert!(ended(0, 0).is_ok() && ended(7, 0).is_ok());
        let error = ended(0, 2).unwrap_err();
        assert!(error.code() == 1 && error.to_string().starts_with("2 changes of /m are lost"), "{error}");
        let one = ended(0, 1).unwrap_err().to_string();
        assert!(one.starts_with("1 change of /m is lost"), "{one}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_asked_hears_how_it_ended() {
        let (ending, listeners) = Ending::new();
        let (here, there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let mut there = tokio::net::UnixStream::from_std(there).unwrap();
        let telling = tokio::spawn(async move { listeners.tell(&mut there).await });
        let words = listen(std::io::BufReader::new(here));
        let heard = tokio::task::spawn_blocking(move || words.wait());
        ending.say(Untold { left: 3, lost: 4 }).await;
        assert_eq!(heard.await.unwrap(), Heard::Untold(Untold { left: 3, lost: 4 }));
        telling.await.unwrap().unwrap();
    }

    #[test]
    fn a_daemon_that_goes_on_is_waited_for_and_one_that_is_silent_is_not() {
        let heard = |said: &str| listen(std::io::Cursor::new(said.to_owned())).wait();
        let ended = Heard::Untold(Untold { left: 0, lost: 2 });
        assert_eq!(heard("\"not_yet\"\n\"not_yet\"\n{\"ended\":{\"left\":0,\"lost\":2}}\n"), ended);
        assert_eq!(
            (heard("\"not_yet\"\n"), heard("{\"error\":\"what?\"}\n")),
            (Heard::NoWord, Heard::NoWord)
        );
        let (here, _silent) = UnixStream::pair().unwrap();
        assert_eq!(listen(std::io::BufReader::new(here)).wait_for(Duration::from_millis(1)), Heard::Silence);
    }
}
