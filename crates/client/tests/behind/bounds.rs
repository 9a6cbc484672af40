//! What a server that takes nothing makes a client keep, send and wait for has a bound.

use super::*;
use crate::common::script::{Message, Script, grant, made_here, node};
use soda_protocol::{Answer, Call, Failure};
use soda_types::{FsError, Ino, Mode, VolumeId};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Nothing was done to it here.
const OTHER: Fid = Fid { volume: VolumeId(1), ino: Ino(3), generation: 0 };

/// Each sync of the server takes longer than it takes to refuse what others have written.
#[tokio::test(flavor = "multi_thread")]
async fn an_fsync_of_what_was_told_does_not_begin_again_for_each_digest_that_is_refused() {
    let Script { client, mut control, .. } = Script::writing_behind().await;
    let syncs = Arc::new(AtomicUsize::new(0));
    let (said, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let counted = Arc::clone(&syncs);
    let server = tokio::spawn(async move {
        let (mut version, mut refused, mut held) = (1, 0, None);
        loop {
            version += 1;
            let Message::Request(tag, request) = control.next().await else { continue };
            match &request.call {
                Call::GetAttr { fid: OTHER } => {
                    let grants = [grant(OTHER, Mode::Read, version)];
                    control.answer(tag, Answer::Node(node(OTHER, version, 0)), &grants).await;
                }
                Call::Sync { fid: OTHER } if counted.fetch_add(1, Ordering::SeqCst) == 0 => {
                    held = Some(tag);
                    said.send(()).unwrap();
                }
                Call::Digest { .. } => {
                    let full = FsError::new(Errno::NoSpace, "a test");
                    control.fail(tag, Failure::Fs(full)).await;
                    refused += 1;
                    // The first only tells that there is no room.
                    if let Some(sync) = held.take_if(|_| refused == 2) {
                        control.answer(sync, Answer::Done, &[]).await;
                    }
                }
                call => control.answer_alone(tag, call, version).await,
            }
        }
    });
    let written = made_here(&client).await;
    let fsync = |fid: Fid| {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.fsync(fid).await })
    };
    let of_other = fsync(OTHER);
    begun.recv().await.unwrap();
    assert_eq!(fsync(written.fid()).await.unwrap().unwrap_err().errno, Errno::NoSpace);
    of_other.await.unwrap().unwrap();
    assert_eq!(syncs.load(Ordering::SeqCst), 1, "nothing that it waits for was lost");
    server.abort();
}
