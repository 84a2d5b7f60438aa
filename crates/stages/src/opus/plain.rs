//! The sink half of a host without the codec, for `when=needed`: it makes the source half send sound as it is.

use super::{NO_DECODER, PLAIN};
use contract::{Message, Outbox, Port, Stage, StageResult, Time};

const NO_CODEC: &str = "coded, and this host was built without the codec";

#[derive(Default)]
pub(super) struct Sink {
    has_asked: bool,
}

impl Stage for Sink {
    fn handle(&mut self, port: Port, mut message: Message, _now: Time, out: &mut Outbox) -> StageResult {
        let is_plain = message.body.peek_front() == Some([PLAIN]);
        // A source half that was started anew does not know it.
        if !std::mem::replace(&mut self.has_asked, true) || !is_plain {
            out.control(vec![NO_DECODER]);
        }
        if is_plain {
            message.body.skip_front(1);
            out.send(port, message);
        } else {
            out.drop_counted(NO_CODEC, 1);
        }
        Ok(())
    }
}
