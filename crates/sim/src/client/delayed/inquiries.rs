//! What others only look at is described to them by the holder of the write lease, which keeps it.

use crate::client::{Asked, Client, Power, Request};
use crate::context::Context;
use crate::message::{Call, Leases, Tag, ToServer};
use crate::register::{Content, Register, Value};
use crate::sabotage::Sabotage;
use soda_types::Mode;

impl Client {
    pub(in crate::client) fn handle_inquiry(
        &mut self,
        context: &mut Context,
        number: u64,
        register: Register,
    ) {
        // The kernel has to be told before.
        if self.power == Power::Stuck {
            return;
        }
        let value = self.describe(context, register);
        self.tell(context, ToServer::Described { number, value });
    }

    fn describe(&self, context: &Context, register: Register) -> Option<Value> {
        let (now, fid) = (self.clock.read(context.now), register.fid());
        let delayed = self.delayed.as_ref()?;
        let value = self.caches.daemon(register, self.holder.holding(fid))?;
        let stands = self.holder.valid_until(now, fid, Mode::Write).is_some();
        let known = stands && !self.is_changing(fid) && !delayed.made.contains(&register.object);
        let told = (context.config.sabotage == Sabotage::DescribeWhatIsTold).then(|| {
            let untold = delayed.kept.written.values().filter(|written| written.digest.is_none());
            let mut before = untold.flat_map(|written| &written.before);
            before.find(|(of, _)| *of == register).map(|(_, value)| *value)
        });
        let value = told.flatten().unwrap_or(value);
        (known && value.content != Content::Gone).then_some(value)
    }

    /// It is cached nowhere: no lease covers it, and the holder may take it along when it is lost.
    pub(in crate::client) fn handle_described(&mut self, context: &mut Context, tag: Tag, value: Value) {
        let Some(Request { ticket, what: Asked::Op { process, uid, call, .. }, .. }) =
            self.requests.remove(&tag)
        else {
            return;
        };
        self.take_answer(context, ticket, &Leases::default());
        if let Call::Look(register) = call {
            context.note(|| format!("client{}  {uid:?} {register:?} = {value}, as is said", self.number));
            self.read_done(context, process, uid, register, value);
        }
    }
}
