//! Who asks for an inode that is gone gets no lease on it: a power cut may bring it back, and then it is whoever had removed it
//! who has to have it. Who asks for a name that is not there gets the lease of its directory.

use crate::common::*;
use bytes::Bytes;
use soda_protocol::{
    AdminAnswer, AdminCall, Answer, Call, Failure, FromHolder, Reply, Role, Unlink, WriteAt,
};
use soda_server::{DeepLeases, Server, ServerConfig};
use soda_types::{Errno, Fid, FileKind, InUse, Mode, SetAttr};

fn failed(reply: &Reply) -> Errno {
    match &reply.result {
        Err(Failure::Fs(error)) => error.errno,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_an_inode_that_is_gone_gets_no_lease_on_it() {
    for deep_leases in [DeepLeases::Off, DeepLeases::DEFAULT_ON] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(ServerConfig { deep_leases, ..config(dir.path()) }).unwrap();
        let (asks, removes) = (Client::connect(&server).await, Client::connect(&server).await);
        let home = removes.mkdir(removes.root, "home").await.unwrap().fid;
        let file = removes.create(home, "file").await.unwrap().fid;
        let other = removes.create(home, "other").await.unwrap().fid;
        let sub = removes.mkdir(home, "sub").await.unwrap().fid;
        // Nothing is known of it, or it has been read.
        let before = asks.ask(Call::GetAttr { fid: file }).await;
        assert_eq!(before.grants.len(), 1);
        removes.unlink(home, "file", InUse::No).await.unwrap();
        let what = Unlink::Directory;
        removes.change(Call::Unlink { parent: home, name: n("sub"), what }).await.result.unwrap();

        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        let xattr = |fid: Fid| Call::GetXattr { fid, name: b"user.x".to_vec() };
        let reads = [
            Call::GetAttr { fid: file },
            Call::Stat { fid: file },
            Call::Read { fid: file, offset: 0, len: 10 },
            Call::Fetch { fid: file, most: 10, known: None, holder: FromHolder::Lease },
            xattr(file),
            Call::Opened { fid: file },
            Call::GetAttr { fid: sub },
            Call::Lookup { parent: sub, name: n("x") },
            Call::ReadDir { dir: sub, after: None, limit: 10, next: Vec::new() },
        ];
        let changes = [
            Call::SetAttr { fid: file, set, owner: None },
            Call::Write { fid: file, at: WriteAt::Offset(0), kill_suid_sgid: false },
            create(sub, "x", FileKind::File),
            Call::Link { fid: file, parent: home, name: n("again") },
            Call::Link { fid: other, parent: sub, name: n("again") },
        ];
        let mut replies = Vec::new();
        for call in reads {
            replies.push((format!("{call:?}"), asks.ask(call).await));
        }
        for call in changes {
            replies.push((format!("{call:?}"), asks.change_with(call, Bytes::from_static(b"data")).await));
        }
        for (call, reply) in replies {
            assert_eq!(failed(&reply), Errno::Stale, "{call}");
            let on_gone = |fid: &Fid| [file, sub].contains(fid);
            assert!(reply.grants.iter().all(|grant| !on_gone(&grant.fid)), "{call}: {reply:?}");
            let covered = reply.covered.iter().flat_map(|covered| covered.each());
            assert_eq!(covered.filter(|covered| on_gone(&covered.fid)).count(), 0, "{call}: {reply:?}");
        }
        // Nor does the table have one that was only not told of.
        let (admin, _) = Connection::open(server.local_addr(), Role::Admin, drop).await.unwrap();
        let all = Call::Admin(AdminCall::Leases { of: None, limit: 100 });
        let reply = admin.call(None, all, Bytes::new()).await.unwrap().0;
        let Ok(Answer::Admin(AdminAnswer::Leases(leases))) = reply.result else { panic!("{reply:?}") };
        let on_gone: Vec<_> = leases.iter().filter(|lease| [file, sub].contains(&lease.grant.fid)).collect();
        assert!(on_gone.is_empty(), "{on_gone:?}");

        // An absent name is known under the lease of its directory, however the question failed.
        let absent = asks.change(Call::Unlink {
            parent: home,
            name: n("absent"),
            what: Unlink::File { in_use: InUse::No },
        });
        let absent = absent.await;
        assert_eq!((failed(&absent), absent.grants.len()), (Errno::NoEntry, 1), "{absent:?}");
        assert_eq!((absent.grants[0].fid, absent.grants[0].mode), (home, Mode::Read));
    }
}
