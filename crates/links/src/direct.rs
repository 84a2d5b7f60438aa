//! The direct link: a function call. The stage runs on the caller's thread.

use contract::{Body, Choice, Input, Link, Outbox, Readiness, Report, Stage, StageResult, Time};

/// A stage that is called directly. It has output only during a call.
pub struct Direct {
    stage: Box<dyn Stage>,
}

impl Direct {
    /// Creates a link to `stage`.
    pub fn new(stage: Box<dyn Stage>) -> Self {
        Direct { stage }
    }
}

impl Link for Direct {
    fn hand(&mut self, input: Input<'_>, now: Time, out: &mut Outbox) -> StageResult {
        match input {
            Input::Message(port, message) => self.stage.handle(port, message, now, out),
            Input::Control(bytes) => self.stage.handle_control(bytes, now, out),
            Input::End(port) => self.stage.handle_end(port, now, out),
            Input::Gap(port) => self.stage.handle_gap(port, now, out),
            Input::Feedback(feedback) => self.stage.handle_feedback(feedback, now, out),
            Input::Fill(port, fill) => self.stage.handle_fill(port, fill, now, out),
            Input::Timeout => self.stage.handle_timeout(now, out),
        }
    }

    fn collect(&mut self, _now: Time, _out: &mut Outbox) -> StageResult {
        Ok(())
    }

    fn readiness(&self) -> Readiness<'_> {
        Readiness::never()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.stage.poll_timeout()
    }

    fn has_room(&self) -> bool {
        self.stage.has_room()
    }

    fn held(&self) -> usize {
        self.stage.held()
    }

    fn kept(&self) -> usize {
        // A checkpoint holds these messages, so they are not lost.
        if self.stage.checkpoint().is_none() { self.stage.kept() } else { 0 }
    }

    fn passes(&self) -> bool {
        self.stage.passes()
    }

    fn checkpoint(&self) -> Option<Body> {
        self.stage.checkpoint()
    }

    fn restore(&mut self, checkpoint: Body) -> StageResult {
        self.stage.restore(checkpoint)
    }

    fn report(&self) -> Vec<Report> {
        self.stage.report()
    }

    fn choices(&self) -> Vec<Choice> {
        self.stage.choices()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{Message, Port, StageError};

    /// Answers every input with a control message that names it.
    struct Echo;

    impl Stage for Echo {
        fn handle(&mut self, port: Port, message: Message, now: Time, out: &mut Outbox) -> StageResult {
            out.control(format!("message {} {} {}", port.0, message.body.len(), now.0).into_bytes());
            out.send(port, message);
            Ok(())
        }

        fn handle_control(&mut self, control: &[u8], _: Time, _: &mut Outbox) -> StageResult {
            Err(StageError::Control(format!("{control:?}")))
        }

        fn handle_end(&mut self, port: Port, _: Time, out: &mut Outbox) -> StageResult {
            out.control(format!("end {}", port.0).into_bytes());
            Ok(())
        }

        fn handle_gap(&mut self, port: Port, _: Time, out: &mut Outbox) -> StageResult {
            out.control(format!("gap {}", port.0).into_bytes());
            Ok(())
        }

        fn poll_timeout(&self) -> Option<Time> {
            Some(Time(7))
        }

        fn handle_timeout(&mut self, _: Time, out: &mut Outbox) -> StageResult {
            out.control(b"timeout".to_vec());
            Ok(())
        }

        fn has_room(&self) -> bool {
            false
        }

        fn report(&self) -> Vec<Report> {
            vec![("figure", 1.5)]
        }
    }

    #[test]
    fn every_input_reaches_its_method_and_every_output_returns() {
        let mut link = Direct::new(Box::new(Echo));
        let mut out = Outbox::default();
        let message = Message::new(Time(1), vec![1, 2, 3]);
        link.hand(Input::Message(Port(2), message.clone()), Time(9), &mut out).unwrap();
        link.hand(Input::End(Port(3)), Time(9), &mut out).unwrap();
        link.hand(Input::Gap(Port(4)), Time(9), &mut out).unwrap();
        link.hand(Input::Timeout, Time(9), &mut out).unwrap();
        link.collect(Time(9), &mut out).unwrap();
        assert_eq!(out.controls, [&b"message 2 3 9"[..], b"end 3", b"gap 4", b"timeout"]);
        assert_eq!(out.messages, [(Port(2), message)]);
        assert_eq!(
            link.hand(Input::Control(b"?"), Time(9), &mut out),
            Err(StageError::Control("[63]".into()))
        );
        assert_eq!(link.poll_timeout(), Some(Time(7)));
        assert!(!link.has_room());
        assert_eq!(link.report(), [("figure", 1.5)]);
        assert!(!link.readiness().now && link.readiness().at.is_none());
    }
}
