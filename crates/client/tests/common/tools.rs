//! What the server says to tools.

use crate::common::Cell;
use bytes::{Bytes, BytesMut};
use soda_client::recover::Names;
use soda_protocol::*;
use soda_types::Fid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An admin connection.
pub(crate) struct Tools(TcpStream);

impl Tools {
    pub(crate) async fn of(cell: &Cell) -> Tools {
        let mut tools = Tools(TcpStream::connect(cell.addr).await.unwrap());
        let hello = Hello {
            protocol_min: PROTOCOL_VERSION_MIN,
            protocol_max: PROTOCOL_VERSION,
            software: "test".to_owned(),
            credentials: Credentials::None,
            role: Role::Admin,
        };
        let welcome = tools.ask(Call::Hello(hello)).await;
        assert!(matches!(welcome, Answer::Welcome(_)), "{welcome:?}");
        tools
    }

    /// Leases that the server's table holds, of all sessions.
    pub(crate) async fn leases(&mut self) -> u64 {
        match self.ask(Call::Admin(AdminCall::Status)).await {
            Answer::Admin(AdminAnswer::Status(status)) => status.leases,
            other => panic!("{other:?}"),
        }
    }

    /// One of the server's counters, 0 if it has not counted yet.
    pub(crate) async fn count(&mut self, name: &str) -> u64 {
        match self.ask(Call::Admin(AdminCall::Stats)).await {
            Answer::Admin(AdminAnswer::Stats(stats)) => {
                stats.into_iter().find(|(known, _)| known == name).map_or(0, |(_, value)| value)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Where inodes lie now.
    pub(crate) async fn names(&mut self, of: Vec<Fid>) -> Names {
        match self.ask(Call::Admin(AdminCall::Paths(of.clone()))).await {
            Answer::Admin(AdminAnswer::Paths(places)) => of.into_iter().zip(places).collect(),
            other => panic!("{other:?}"),
        }
    }

    async fn ask(&mut self, call: Call) -> Answer {
        let request = Request { op: None, call };
        let frame = Frame::new(FrameKind::Request, 1, &request, Bytes::new()).unwrap();
        let mut bytes = BytesMut::new();
        frame.encode_head(&mut bytes);
        self.0.write_all(&bytes).await.unwrap();
        let mut head = [0; HEADER_LEN];
        self.0.read_exact(&mut head).await.unwrap();
        let header = FrameHeader::parse(&head).unwrap();
        let mut rest = vec![0; header.rest_len()];
        self.0.read_exact(&mut rest).await.unwrap();
        let reply: Reply = header.finish(rest.into()).unwrap().message().unwrap();
        reply.result.unwrap()
    }
}
