//! Attributes, and what is wanted next with them in one exchange: [`crate::cache::reading`] says when that is data.

use super::read::enter;
use crate::cache::extents::FetchId;
use crate::cache::reading::{Asks, MOST};
use crate::call::{Order, Waiting, unexpected};
use crate::inner::{Arrived, Inner};
use crate::validity::Validity;
use bytes::Bytes;
use soda_protocol::{Answer, Call, Node};
use soda_types::{Fid, FsResult};
use std::sync::Arc;

/// What an inode is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) node: Node,
    pub(crate) valid: Validity,
    pub(crate) age: Age,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Age {
    Current,
    /// Something newer is known here.
    Outdated,
}

impl Inner {
    /// Asks the server.
    pub(super) fn ask(self: &Arc<Inner>, fid: Fid, asks: Asks) -> Waiting<Said> {
        let (mut state, now) = self.locked();
        let besides = state.ask_besides(fid, asks).filter(|_| self.keeps_leases());
        let fetch = besides.map(|_| state.memory.begin_fetch(fid, 0..u64::from(MOST)));
        let ticket = state.holder.begin_request(now);
        drop(state);
        let call = match (besides, asks) {
            (Some(besides), _) => {
                Call::Fetch { fid, most: MOST, known: besides.known, holder: besides.holder }
            }
            (None, Asks::Attributes) => Call::Stat { fid },
            (None, Asks::Lease | Asks::Data) => Call::GetAttr { fid },
        };
        self.send(Order::question(call, ticket), move |arrived, result| {
            let said = match (result, fetch) {
                (Ok((Answer::Fetched(node), data)), Some(fetch)) => {
                    fetched(arrived, (fid, fetch), &node, data)
                }
                (result, _) => result.and_then(|(answer, _)| said(arrived, fid, &answer)),
            };
            if let Some(fetch) = fetch {
                // If no data came.
                arrived.state.memory.end_fetch(fid, fetch, None);
            }
            said
        })
    }
}

fn said(arrived: &mut Arrived<'_>, fid: Fid, answer: &Answer) -> FsResult<Said> {
    let (state, now, ticket) = (&mut *arrived.state, arrived.now, arrived.ticket);
    match *answer {
        Answer::Node(node) => {
            state.learn_node(now, ticket, &node);
            let valid = state.attr_validity(now, fid, &node.attr);
            let age = if state.is_outdated(&node) { Age::Outdated } else { Age::Current };
            Ok(Said { node, valid, age })
        }
        Answer::Described(node) => {
            arrived.inner.stats.described.one();
            // It has come here after what is known by now.
            let late = state.peek_attr(now, fid).is_some()
                || state.peek(fid).is_some_and(|inode| node.attr.version < inode.seen);
            state.inode(fid).hearsay = !late;
            let age = if late { Age::Outdated } else { Age::Current };
            Ok(Said { node, valid: Validity::UNTOLD, age })
        }
        ref other => unexpected(other),
    }
}

/// All that is in a file.
fn fetched(
    arrived: &mut Arrived<'_>,
    (fid, fetch): (Fid, FetchId),
    node: &Node,
    data: Bytes,
) -> FsResult<Said> {
    let answer = Answer::Fetched(*node);
    if node.fid != fid || data.len() as u64 != node.attr.size || data.len() > MOST as usize {
        return unexpected(&answer);
    }
    arrived.inner.stats.fetched.one();
    if !arrived.state.enter(arrived.ticket, fid) {
        arrived.state.inode(fid).reading.note_refused();
    }
    enter(arrived, fid, (0, fetch), &node.attr, data);
    said(arrived, fid, &Answer::Node(*node))
}
