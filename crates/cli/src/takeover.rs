//! A mount passes from the daemon that serves it to another process: what both say to each other, over the daemon's control
//! socket.
//!
//! | the new process says | the daemon says |
//! | --- | --- |
//! | the question [`Question::TakeOver`](crate::control::Question), with the format that it understands | |
//! | | [`Word::Stays`] with a reason, and goes on; or [`Word::Estate`], with descriptors: the state in a memory file, then those that belong to it |
//! | [`Word::Ready`], or [`Word::Cannot`] | |
//! | | [`Word::Yours`], and ends; or [`Word::Stays`] |
//!
//! Whatever else comes, or nothing, is as if the other had said no.

use crate::answer::NotUnderstood;
use crate::error::{CliError, plain};
use crate::options::MountOptions;
use crate::plan::Plan;
use rustix::fs::MemfdFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};
use soda_fuse::{DESCRIPTORS_MAX, HANDOVER_FORMAT, Leaving, Mount};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long the daemon waits for the new process, while programs wait for both: it connects to the server in that time.
const HEIR: Duration = Duration::from_secs(10);
/// How long the new process waits for the daemon, which tells the server what that lacks, and may try more than once to come to
/// rest.
const DAEMON: Duration = Duration::from_secs(75);
/// Most descriptors of one mount: the state, those of the device, the locks of two directories.
const DESCRIPTORS: usize = 1 + DESCRIPTORS_MAX + 2;

/// What a process says that wants a mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// [`HANDOVER_FORMAT`] of its program.
    pub format: u32,
    /// Of its program, for people.
    pub version: String,
}

impl Claim {
    pub(crate) fn own() -> Claim {
        Claim { format: HANDOVER_FORMAT, version: env!("CARGO_PKG_VERSION").into() }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    Stays(String),
    Estate(Estate),
    Ready,
    Cannot(String),
    Yours,
}

/// How the mount was made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Estate {
    spec: String,
    options: String,
    /// Apart from the options, which are text: a path need not be.
    cache_dir: Option<Vec<u8>>,
    dir: Vec<u8>,
}

impl Estate {
    fn of(plan: &Plan) -> Estate {
        let mut options = plan.options.clone();
        let cache_dir = options.cache_dir.take().map(|dir| dir.into_os_string().into_vec());
        let dir = plan.dir.as_os_str().as_bytes().to_vec();
        Estate { spec: plan.spec.to_string(), options: options.to_list(), cache_dir, dir }
    }

    pub(crate) fn plan(self) -> Result<Plan, String> {
        let path = |bytes: Vec<u8>| PathBuf::from(OsString::from_vec(bytes));
        let mut options = MountOptions::default();
        options.add(&self.options)?;
        options.cache_dir = self.cache_dir.map(path);
        options.check()?;
        let spec = self.spec.parse().map_err(|error| format!("{}: {error}", self.spec))?;
        Ok(Plan { spec, dir: path(self.dir), options })
    }
}

/// Where those come who want the mount.
#[derive(Clone, Debug)]
pub(crate) struct Claims(mpsc::Sender<Claimant>);

#[derive(Debug)]
pub(crate) struct Claimants(mpsc::Receiver<Claimant>);

impl Claims {
    pub(crate) fn new() -> (Claims, Claimants) {
        let (claims, claimants) = mpsc::channel(1);
        (Claims(claims), Claimants(claimants))
    }

    /// Returns at once; the answer comes from who has the mount.
    pub(crate) async fn hand_on(&self, claim: Claim, stream: tokio::net::UnixStream) -> io::Result<()> {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(HEIR))?;
        stream.set_write_timeout(Some(HEIR))?;
        // An error: the mount has ended, and who asks finds the connection closed.
        let _ = self.0.send(Claimant { claim, stream }).await;
        Ok(())
    }
}

impl Claimants {
    pub(crate) async fn next(&mut self) -> Claimant {
        match self.0.recv().await {
            Some(claimant) => claimant,
            // Nobody can ask any more.
            None => std::future::pending().await,
        }
    }
}

/// Whose a mount is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handed {
    Over,
    Not,
}

/// A process that wants the mount.
#[derive(Debug)]
pub(crate) struct Claimant {
    claim: Claim,
    stream: UnixStream,
}

impl Claimant {
    /// The mount is this process's as before, unless it says otherwise.
    pub(crate) async fn hand_over(mut self, mount: &Mount, plan: &Plan) -> Handed {
        match self.try_to_hand_over(mount, plan).await {
            Ok(()) => Handed::Over,
            Err(why) => {
                tracing::warn!(why, "the mount is not handed over");
                // It may be gone.
                let _ = say(&mut self.stream, &Word::Stays(why));
                Handed::Not
            }
        }
    }

    async fn try_to_hand_over(&mut self, mount: &Mount, plan: &Plan) -> Result<(), String> {
        let Claim { format, version } = &self.claim;
        if *format != HANDOVER_FORMAT {
            return Err(format!(
                "the running daemon (soda {}) hands over in format {HANDOVER_FORMAT}, and soda {version} understands format \
                 {format}: unmount, and mount again",
                env!("CARGO_PKG_VERSION")
            ));
        }
        let leaving = mount.leave().await.map_err(|error| error.to_string())?;
        tokio::task::block_in_place(|| self.await_ready(&leaving, plan))?;
        leaving.end_guard().map_err(|error| error.to_string())?;
        say(&mut self.stream, &Word::Yours).map_err(|error| format!("the new process is gone: {error}"))?;
        tracing::info!(waited = ?leaving.waiting_for(), "the mount is handed over");
        leaving.gone();
        Ok(())
    }

    fn await_ready(&mut self, leaving: &Leaving<'_>, plan: &Plan) -> Result<(), String> {
        let failed = |error: io::Error| format!("the new process cannot be told: {error}");
        let state = memory_file(leaving.state()).map_err(failed)?;
        let descriptors = std::iter::once(state.as_fd()).chain(leaving.descriptors().iter().map(AsFd::as_fd));
        let descriptors: Vec<_> = descriptors.collect();
        let line = line_of(&Word::Estate(Estate::of(plan))).map_err(failed)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err("too many descriptors".into());
        }
        let sent = rustix::net::sendmsg(
            &self.stream,
            &[IoSlice::new(line.as_bytes())],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        );
        let sent = sent.map_err(|error| failed(error.into()))?;
        self.stream.write_all(&line.as_bytes()[sent..]).map_err(failed)?;
        match hear(&mut BufReader::new(&self.stream)) {
            Ok(Word::Ready) => Ok(()),
            Ok(Word::Cannot(why)) => Err(why),
            Ok(_) => Err("the new process says what makes no sense".into()),
            Err(error) => Err(format!("the new process has not become ready: {}", plain(&error))),
        }
    }
}

/// The new process's side.
#[derive(Debug)]
pub(crate) struct Daemon(UnixStream);

impl Daemon {
    /// `stream`: to a daemon that was asked for its mount.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Daemon> {
        stream.set_read_timeout(Some(DAEMON))?;
        Ok(Daemon(stream))
    }

    /// Waits for all that is handed over: how the mount was made, its state, descriptors.
    ///
    /// # Errors
    /// The daemon's reason why it is not.
    pub(crate) fn estate(&mut self) -> Result<(Estate, Vec<u8>, Vec<OwnedFd>), CliError> {
        let unheard = |error: io::Error| {
            CliError::Failed(format!("the running daemon hands nothing over: {}", plain(&error)))
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut first = [0; 1];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut first)], &mut ancillary, flags);
        let received = received.map_err(|error| unheard(error.into()))?;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        let mut line = String::new();
        let heard = first[..received.bytes].chain(&self.0);
        BufReader::new(heard).read_line(&mut line).map_err(unheard)?;
        let estate = match serde_json::from_str(&line) {
            Ok(Word::Estate(estate)) => estate,
            Ok(Word::Stays(why)) => {
                return Err(CliError::Failed(format!("the running daemon goes on: {why}")));
            }
            _ if serde_json::from_str::<NotUnderstood>(&line).is_ok() => {
                let why = "the running daemon is of a version that cannot hand its mount over: unmount, and mount again";
                return Err(CliError::Failed(why.into()));
            }
            _ if line.is_empty() => return Err(unheard(io::ErrorKind::UnexpectedEof.into())),
            _ => {
                return Err(unheard(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "it says what makes no sense",
                )));
            }
        };
        let mut descriptors = descriptors.into_iter();
        let state = descriptors.next().ok_or_else(|| unheard(io::ErrorKind::InvalidData.into()))?;
        let state = read_whole(&File::from(state)).map_err(unheard)?;
        Ok((estate, state, descriptors.collect()))
    }

    /// It goes on.
    pub(crate) fn refuse(&mut self, why: &CliError) {
        // It may be gone.
        let _ = say(&mut self.0, &Word::Cannot(why.to_string()));
    }

    /// Returns when the mount is this process's.
    pub(crate) fn ready(&mut self) -> Result<(), CliError> {
        let failed = |why: String| CliError::Failed(format!("the mount is not handed over: {why}"));
        let gone =
            |error: io::Error| failed(format!("the running daemon says nothing more: {}", plain(&error)));
        say(&mut self.0, &Word::Ready).map_err(gone)?;
        match hear(&mut BufReader::new(&self.0)).map_err(gone)? {
            Word::Yours => Ok(()),
            Word::Stays(why) => Err(failed(why)),
            _ => Err(failed("the running daemon says what makes no sense".into())),
        }
    }
}

fn line_of(word: &Word) -> io::Result<String> {
    Ok(format!("{}\n", serde_json::to_string(word)?))
}

fn say(stream: &mut UnixStream, word: &Word) -> io::Result<()> {
    stream.write_all(line_of(word)?.as_bytes())
}

fn hear(stream: &mut impl BufRead) -> io::Result<Word> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

fn memory_file(bytes: &[u8]) -> io::Result<File> {
    let file = File::from(rustix::fs::memfd_create("soda-handover", MemfdFlags::CLOEXEC)?);
    file.write_all_at(bytes, 0)?;
    Ok(file)
}

/// # Errors
/// It says to be longer than the memory that can be had.
fn read_whole(file: &File) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len)?;
    bytes.resize(len, 0);
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn how_a_mount_was_made_reads_back() {
        let mut options = MountOptions::default();
        options.add("soft=5s,write=behind,dirty-age=2s,lease-idle=1m").unwrap();
        options.cache_dir = Some(OsString::from_vec(b"/c\xff,d".to_vec()).into());
        let plan = Plan {
            spec: "h:1/main".parse().unwrap(),
            dir: OsString::from_vec(b"/m\xfe".to_vec()).into(),
            options: options.in_effect(),
        };
        let line = line_of(&Word::Estate(Estate::of(&plan))).unwrap();
        let Word::Estate(estate) = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
        let read = estate.plan().unwrap();
        assert_eq!((read.options.to_list(), &read.dir), (plan.options.to_list(), &plan.dir));
        assert_eq!(read.spec.to_string(), "h:1/main");
    }

    /// Where this changes, [`HANDOVER_FORMAT`] has to: the next program, or the one before, would not understand it.
    #[test]
    fn what_passes_beside_the_state_is_of_this_form() {
        let (spec, options) = ("h:1/main".to_owned(), "hard,write=behind".to_owned());
        let estate = Estate { spec, options, cache_dir: Some(b"/c".to_vec()), dir: b"/m".to_vec() };
        let lines = [
            Word::Estate(estate),
            Word::Ready,
            Word::Yours,
            Word::Stays("why".to_owned()),
            Word::Cannot("why".to_owned()),
        ]
        .map(|word| line_of(&word).unwrap());
        let expected = [
            r#"{"estate":{"spec":"h:1/main","options":"hard,write=behind","cache_dir":[47,99],"dir":[47,109]}}"#,
            r#""ready""#,
            r#""yours""#,
            r#"{"stays":"why"}"#,
            r#"{"cannot":"why"}"#,
        ]
        .map(|line| format!("{line}\n"));
        assert_eq!((HANDOVER_FORMAT, lines), (5, expected));
    }

    #[test]
    fn a_daemon_that_does_not_understand_is_named_as_old() {
        let (mut daemon, here) = UnixStream::pair().unwrap();
        daemon.write_all(b"{\"error\":\"unknown variant `take_over`\"}\n").unwrap();
        let error = Daemon::new(here).unwrap().estate().unwrap_err();
        assert!(error.to_string().contains("cannot hand its mount over"), "{error}");
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_not_that_of_an_old_daemon() {
        let nonsense = "{\"estate\":{\"spec\":\"h:1/main\",\"dir\":\"/mnt/errors\"}}\n";
        for answer in [nonsense, "error\n", "{\"error\":\"x\",\"estate\":1}\n"] {
            let (mut daemon, here) = UnixStream::pair().unwrap();
            daemon.write_all(answer.as_bytes()).unwrap();
            let error = Daemon::new(here).unwrap().estate().unwrap_err();
            assert!(error.to_string().contains("makes no sense"), "{answer}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_makes_no_sense_is_refused_whatever_it_is(
            line in prop_oneof![
                "\\PC{0,60}",
                "\\{\"(stays|estate|ready|cannot|yours|error)\":(\"\\PC{0,9}\"|[0-9]{1,30}|null|\\[\\]|\\{\\})\\}",
                "\"(stays|estate|ready|yours)\"",
            ],
            texts in ["\\PC{0,20}", "[-a-z0-9:/]{0,12}"],
            options in "([a-z-]{0,14}(=[-0-9a-zA-Z.]{0,8})?,){0,4}",
            bytes in proptest::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut said = BufReader::new(line.as_bytes());
            let _ = hear(&mut said);
            let (mut daemon, here) = UnixStream::pair().unwrap();
            daemon.write_all(line.as_bytes()).unwrap();
            drop(daemon);
            prop_assert!(Daemon::new(here).unwrap().estate().is_err());
            for spec in texts {
                let [cache_dir, dir] = [Some(bytes.clone()), Some(bytes.clone())];
                let estate = Estate { spec, options: options.clone(), cache_dir, dir: dir.unwrap_or_default() };
                let line = line_of(&Word::Estate(estate)).unwrap();
                let Word::Estate(estate) = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
                if let Ok(plan) = estate.plan() {
                    prop_assert_eq!(plan.dir.as_os_str().as_bytes(), &bytes[..]);
                }
            }
        }
    }

    #[test]
    fn a_state_that_says_to_be_endless_is_refused() {
        let state = memory_file(b"some").unwrap();
        assert_eq!(read_whole(&state).unwrap(), b"some");
        state.set_len(i64::MAX as u64).unwrap();
        assert_eq!(read_whole(&state).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn a_daemon_that_ends_before_it_hands_over_leaves_nothing() {
        let (daemon, here) = UnixStream::pair().unwrap();
        let (mut other_end, passed) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [passed.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let begun = [IoSlice::new(b"{\"estate\":")];
        rustix::net::sendmsg(&daemon, &begun, &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        drop((daemon, passed));
        assert!(Daemon::new(here).unwrap().estate().is_err());
        other_end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(other_end.read(&mut [0]).expect("TIMED OUT"), 0, "what was passed is closed");
    }
}
