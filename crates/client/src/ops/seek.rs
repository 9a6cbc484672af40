//! lseek with SEEK_DATA and SEEK_HOLE.

use crate::call::{Order, unexpected};
use crate::client::Client;
use crate::ops::OpenFile;
use soda_protocol::{Answer, Call, Whence};
use soda_types::{Errno, FsError, FsResult};

impl Client {
    /// SEEK_DATA and SEEK_HOLE. Who holds a lease is told of more than one stretch, so that a walk over all of them asks seldom.
    ///
    /// # Errors
    /// ENXIO beyond the end.
    pub async fn seek(&self, file: &OpenFile, offset: u64, whence: Whence) -> FsResult<u64> {
        self.inner.stats.op_seek.one();
        let fid = file.fid();
        let cached = {
            let (mut state, now) = self.inner.locked();
            state.seek(now, fid, offset, whence)
        };
        if let Some(found) = cached {
            return found;
        }
        let (ticket, ask) = {
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            (state.holder.begin_request(now), state.ask_layout(now, fid, offset))
        };
        let Some(ask) = ask else {
            let order = Order::question(Call::Seek { fid, offset, whence }, ticket);
            let waiting = self.inner.send(order, move |arrived, result| match result?.0 {
                Answer::Offset(found) => {
                    // Ready for what the next question brings, under the lease that came with this answer.
                    arrived.state.enter(arrived.ticket, fid);
                    Ok(found)
                }
                other => unexpected(&other),
            });
            return waiting.result().await;
        };
        let order = Order::question(Call::Layout { fid, offset, most: ask.most }, ticket);
        let waiting = self.inner.send(order, move |arrived, result| {
            let layout = match result?.0 {
                Answer::Layout(told) => ask.answered(told),
                other => return unexpected(&other),
            };
            let unfit = || FsError::new(Errno::Io, "the server's answer does not fit the question");
            let layout = layout.ok_or_else(unfit)?;
            let found = layout.seek(offset, whence);
            arrived.state.learn_layout(arrived.now, arrived.ticket, fid, layout);
            found.unwrap_or_else(|| Err(unfit()))
        });
        waiting.result().await
    }
}
