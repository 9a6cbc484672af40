//! Who only looks at something may be told by its holder.

use super::{Server, Work};
use crate::context::Context;
use crate::event::ConnId;
use crate::message::{Call, Tag, ToClient};
use crate::register::{Register, Value};
use crate::sabotage::Sabotage;
use soda_lease::table::OpKey;
use soda_types::{Monotonic, SessionId};

impl Server {
    pub(super) fn send_inquiry(&mut self, context: &mut Context, holder: SessionId, op: OpKey) {
        let Some(running) = &self.running else { return };
        let looked_at = running.ops.get(&op).map(|operation| &operation.work);
        let Some(Work::Call(Call::Look(register))) = looked_at else { return };
        if let Some(conn) = running.control.get(&holder) {
            context.send_to_client(*conn, ToClient::Inquiry { number: op.0, register: *register });
        }
    }

    /// A holder has answered.
    pub(super) fn described(
        &mut self,
        context: &mut Context,
        holder: SessionId,
        op: OpKey,
        value: Option<Value>,
    ) {
        let Some(running) = &mut self.running else { return };
        if !running.table.handle_inquiry_answer(holder, op, value.is_some()) {
            return;
        }
        let (Some(operation), Some(value)) = (running.ops.remove(&op), value) else { return };
        if let Work::Call(Call::Look(register)) = operation.work {
            running.descriptions.insert(register, value);
        }
        for (conn, tag) in operation.reply_to {
            context.send_to_client(conn, ToClient::Described { tag, value });
        }
    }

    /// It is a read then, like any other.
    pub(super) fn not_described(&mut self, context: &Context, now: Monotonic, op: OpKey) {
        let Some(running) = &mut self.running else { return };
        let Some(operation) = running.ops.get(&op) else { return };
        let Work::Call(call) = &operation.work else { return };
        let session = operation.session;
        let accesses = running.accesses(call, operation.via, &self.disk, context.config.layout());
        running.table.request(now, session, op, accesses);
    }

    /// One of the mistakes.
    pub(super) fn describe_again(
        &mut self,
        context: &mut Context,
        (conn, tag): (ConnId, Tag),
        register: Register,
    ) -> bool {
        if context.config.sabotage != Sabotage::KeepDescriptions {
            return false;
        }
        let said = self.running.as_ref().and_then(|running| running.descriptions.get(&register)).copied();
        if let Some(value) = said {
            context.send_to_client(conn, ToClient::Described { tag, value });
        }
        said.is_some()
    }
}
