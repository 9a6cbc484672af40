//! Questions to a server, on an admin connection.

use crate::answer::MountStatus;
use crate::control;
use crate::error::CliError;
use crate::progress::Waiting;
use crate::spec::parse_server;
use bytes::{Bytes, BytesMut};
use soda_protocol::{
    AdminAnswer, AdminCall, Answer, Call, Credentials, Failure, Frame, FrameHeader, FrameKind, HEADER_LEN,
    Hello, LeaseInfo, LocksInfo, ObjectRef, ObjectUse, PROTOCOL_VERSION, PROTOCOL_VERSION_MIN, Reply,
    Request, Role, ServerStatus, Whereabouts, WhyInfo,
};
use soda_types::Fid;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Where a server is looked for when none is named and nothing is mounted.
const USUAL_SERVER: &str = "127.0.0.1:7632";
/// How long a server may take to answer a tool.
const PATIENCE: Duration = Duration::from_secs(5);

/// `HOST:PORT` of the server that is named; else that of this user's mounts; else the usual one.
///
/// # Errors
/// The mounts have several.
pub(crate) fn server_or_default(named: Option<&str>) -> Result<String, CliError> {
    // Who names it need not wait for daemons that are stopped.
    let mounts = if named.is_none() { control::mounts() } else { Vec::new() };
    only_server(named, &mounts)
}

/// As [`server_or_default`], of these mounts.
pub(crate) fn only_server(named: Option<&str>, mounts: &[MountStatus]) -> Result<String, CliError> {
    match servers(named, mounts)?.as_slice() {
        [server] => Ok(server.clone()),
        several => Err(CliError::Usage(format!(
            "the mounts here are of several servers: name one with --server. There are {}",
            several.join(", ")
        ))),
    }
}

/// The server that is named; else all of these mounts, each once; else the usual one. At least one.
pub(crate) fn servers(named: Option<&str>, mounts: &[MountStatus]) -> Result<Vec<String>, CliError> {
    let of_mounts = mounts.iter().filter_map(|mount| Some(mount.source.rsplit_once('/')?.0));
    let mut texts: Vec<&str> = named.map_or_else(|| of_mounts.collect(), |named| vec![named]);
    if texts.is_empty() {
        texts.push(USUAL_SERVER);
    }
    let read =
        |text: &&str| parse_server(text).ok_or_else(|| CliError::Usage(format!("`{text}` is not HOST:PORT")));
    let servers: BTreeSet<String> = texts.iter().map(read).collect::<Result<_, _>>()?;
    Ok(servers.into_iter().collect())
}

/// An open admin connection.
#[derive(Debug)]
pub(crate) struct Admin {
    stream: TcpStream,
    server: String,
    next_tag: u64,
}

impl Admin {
    /// # Errors
    /// [`CliError::Unreachable`], [`CliError::Refused`].
    pub(crate) fn connect(server: &str) -> Result<Admin, CliError> {
        let _waiting = Waiting::new(format!("the server {server} to answer"));
        let unreachable = |cause| CliError::Unreachable { server: server.to_string(), cause };
        // As `soda_client::TcpTransport` says it.
        let unknown = |error| unreachable(std::io::Error::new(std::io::ErrorKind::NotFound, error));
        let addresses = server.to_socket_addrs().map_err(unknown)?;
        let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
        for address in addresses {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Admin::greet(stream, server),
                Err(error) => last = error,
            }
        }
        Err(unreachable(last))
    }

    fn greet(stream: TcpStream, server: &str) -> Result<Admin, CliError> {
        let failed = |cause| CliError::Unreachable { server: server.to_string(), cause };
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut admin = Admin { stream, server: server.to_string(), next_tag: 1 };
        let hello = Hello {
            protocol_min: PROTOCOL_VERSION_MIN,
            protocol_max: PROTOCOL_VERSION,
            software: concat!("soda ", env!("CARGO_PKG_VERSION")).to_string(),
            credentials: Credentials::None,
            role: Role::Admin,
        };
        match admin.call(Call::Hello(hello))? {
            Answer::Welcome(_) => Ok(admin),
            other => Err(admin.nonsense(&other)),
        }
    }

    /// # Errors
    /// As [`Admin::connect`]; what the server says against the question. So for all questions.
    pub(crate) fn status(&mut self) -> Result<ServerStatus, CliError> {
        match self.ask(AdminCall::Status)? {
            AdminAnswer::Status(status) => Ok(status),
            other => Err(self.nonsense(&other)),
        }
    }

    /// Counters by name.
    pub(crate) fn stats(&mut self) -> Result<BTreeMap<String, u64>, CliError> {
        match self.ask(AdminCall::Stats)? {
            AdminAnswer::Stats(counters) => Ok(counters.into_iter().collect()),
            other => Err(self.nonsense(&other)),
        }
    }

    /// At most `limit`; of one object, or of all.
    pub(crate) fn leases(&mut self, of: Option<ObjectRef>, limit: u32) -> Result<Vec<LeaseInfo>, CliError> {
        match self.ask(AdminCall::Leases { of, limit })? {
            AdminAnswer::Leases(leases) => Ok(leases),
            other => Err(self.nonsense(&other)),
        }
    }

    pub(crate) fn why(&mut self, object: ObjectRef) -> Result<WhyInfo, CliError> {
        match self.ask(AdminCall::Why(object))? {
            AdminAnswer::Why(info) => Ok(*info),
            other => Err(self.nonsense(&other)),
        }
    }

    /// The file locks of an object, and who waits for one, at most `limit` of each; `None`: the server is of a version that does
    /// not tell.
    pub(crate) fn locks(&mut self, of: ObjectRef, limit: u32) -> Result<Option<LocksInfo>, CliError> {
        match self.ask(AdminCall::Locks { of, limit }) {
            Ok(AdminAnswer::Locks(locks)) => Ok(Some(locks)),
            Ok(other) => Err(self.nonsense(&other)),
            Err(CliError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Files and directories that clients contend for, the busiest first; at most `limit`.
    pub(crate) fn busiest(&mut self, limit: u32) -> Result<Vec<ObjectUse>, CliError> {
        match self.ask(AdminCall::Busiest { limit })? {
            AdminAnswer::Busiest(objects) => Ok(objects),
            other => Err(self.nonsense(&other)),
        }
    }

    /// How many clients have changed each of these lately; `None`: the server is of a version that does not count them.
    pub(crate) fn writers(&mut self, of: Vec<Fid>) -> Result<Option<Vec<u32>>, CliError> {
        let count = of.len();
        match self.ask(AdminCall::Writers(of)) {
            Ok(AdminAnswer::Writers(writers)) if writers.len() == count => Ok(Some(writers)),
            Ok(other) => Err(self.nonsense(&other)),
            Err(CliError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where these inodes lie now, 1,000 at most; `None`: the server is of a version that does not tell.
    pub(crate) fn paths(&mut self, of: &[Fid]) -> Result<Option<Vec<Whereabouts>>, CliError> {
        match self.ask(AdminCall::Paths(of.to_vec())) {
            Ok(AdminAnswer::Paths(places)) if places.len() == of.len() => Ok(Some(places)),
            Ok(other) => Err(self.nonsense(&other)),
            Err(CliError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ask(&mut self, question: AdminCall) -> Result<AdminAnswer, CliError> {
        match self.call(Call::Admin(question))? {
            Answer::Admin(answer) => Ok(answer),
            other => Err(self.nonsense(&other)),
        }
    }

    fn call(&mut self, call: Call) -> Result<Answer, CliError> {
        let tag = self.next_tag;
        self.next_tag += 1;
        let request = Request { op: None, call };
        let frame = Frame::new(FrameKind::Request, tag, &request, Bytes::new())
            .map_err(|error| self.not_soda(&error))?;
        let mut head = BytesMut::new();
        frame.encode_head(&mut head);
        self.stream.write_all(&head).map_err(|error| self.broken(error))?;
        loop {
            let frame = self.read_frame()?;
            if frame.kind != FrameKind::Reply || frame.tag != tag {
                continue;
            }
            let reply: Reply = frame.message().map_err(|error| self.not_soda(&error))?;
            return reply.result.map_err(|failure| match failure {
                Failure::Fs(error) if error.context.is_empty() => {
                    CliError::Failed(format!("the server {}: {:?}", self.server, error.errno))
                }
                Failure::Fs(error) => {
                    CliError::Failed(format!("the server {}: {}", self.server, error.context))
                }
                other => CliError::Refused(format!("the server {} refused: {other}", self.server)),
            });
        }
    }

    fn read_frame(&mut self) -> Result<Frame, CliError> {
        let mut raw = [0; HEADER_LEN];
        self.stream.read_exact(&mut raw).map_err(|error| self.broken(error))?;
        let header = FrameHeader::parse(&raw).map_err(|error| self.not_soda(&error))?;
        let mut rest = vec![0; header.rest_len()];
        self.stream.read_exact(&mut rest).map_err(|error| self.broken(error))?;
        header.finish(rest.into()).map_err(|error| self.not_soda(&error))
    }

    fn broken(&self, cause: std::io::Error) -> CliError {
        CliError::Unreachable { server: self.server.clone(), cause }
    }

    fn not_soda(&self, error: &dyn std::fmt::Display) -> CliError {
        CliError::Refused(format!("{} does not speak Soda's protocol: {error}", self.server))
    }

    fn nonsense(&self, answer: &dyn std::fmt::Debug) -> CliError {
        CliError::Refused(format!("the server {} gave an answer that does not fit: {answer:?}", self.server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::mount_status;

    #[test]
    fn which_server_is_meant() {
        let mount = |source: &str| MountStatus { source: source.into(), ..mount_status() };
        let found =
            |named, mounts: &[MountStatus]| only_server(named, mounts).map_err(|error| error.to_string());
        let (one, same, two) = (mount("h:1/main"), mount("h:1/other"), mount("[::1]:2/main"));
        assert_eq!(found(None, &[]).as_deref(), Ok(USUAL_SERVER));
        assert_eq!(found(None, &[one.clone(), same.clone()]).as_deref(), Ok("h:1"));
        let mounts = [one, same, two];
        assert_eq!(found(Some("g"), &mounts).as_deref(), Ok("g:7632"));
        let several = found(None, &mounts).unwrap_err();
        assert!(several.contains("--server") && several.ends_with("There are [::1]:2, h:1"), "{several}");
        assert_eq!(servers(None, &mounts).unwrap(), ["[::1]:2", "h:1"]);
        assert!(found(Some("h:port"), &[]).is_err());
    }
}
