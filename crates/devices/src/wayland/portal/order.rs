//! The orders of a worker to the portal's threads: one packet each on the control socket.
//!
//! The worker parses data of other hosts, so it may be compromised: the threads parse every packet, and refuse all others.

use wire::{Reader, WireError, Writer};

/// The longest packet, in bytes.
pub(in crate::wayland) const ORDER_BYTES_MAX: usize = 16;

/// An order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::wayland) enum Order {
    /// Frames are wanted from now on, or are not.
    Watch(bool),
    /// A keysym goes down or up.
    Key { keysym: u32, pressed: bool },
    /// The pointer moves to a pixel of the picture.
    Motion { x: u32, y: u32 },
    /// A button goes down or up; its code is that of evdev.
    Button { code: u32, pressed: bool },
    /// The wheel turns by one step.
    Wheel(Wheel),
    /// All keys and buttons go up.
    ReleaseAll,
}

/// The direction of a step of the wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::wayland) enum Wheel {
    Up,
    Down,
    Left,
    Right,
}

impl Wheel {
    const ALL: [Wheel; 4] = [Wheel::Up, Wheel::Down, Wheel::Left, Wheel::Right];

    /// Returns the axis (0: vertical, 1: horizontal) and the steps.
    pub(in crate::wayland) fn axis(self) -> (u32, i32) {
        match self {
            Wheel::Up => (0, -1),
            Wheel::Down => (0, 1),
            Wheel::Left => (1, -1),
            Wheel::Right => (1, 1),
        }
    }
}

impl Order {
    /// Returns the packet.
    pub(in crate::wayland) fn emit(self) -> Vec<u8> {
        let mut writer = Writer::new();
        match self {
            Order::Watch(is_wanted) => writer.u8(0).u8(is_wanted.into()),
            Order::Key { keysym, pressed } => writer.u8(1).u32(keysym).u8(pressed.into()),
            Order::Motion { x, y } => writer.u8(2).u32(x).u32(y),
            Order::Button { code, pressed } => writer.u8(3).u32(code).u8(pressed.into()),
            Order::Wheel(wheel) => writer.u8(4).u8(wheel as u8),
            Order::ReleaseAll => writer.u8(5),
        };
        writer.finish()
    }

    /// Parses a packet.
    pub(in crate::wayland) fn parse(packet: &[u8]) -> Result<Order, WireError> {
        let mut reader = Reader::new(packet);
        let invalid = |what: &'static str, value: u8| WireError::Value { what, value: value.into() };
        let flag = |reader: &mut Reader<'_>| match reader.u8("flag")? {
            value @ 0..=1 => Ok(value == 1),
            value => Err(invalid("flag", value)),
        };
        let order = match reader.u8("order")? {
            0 => Order::Watch(flag(&mut reader)?),
            1 => Order::Key { keysym: reader.u32("keysym")?, pressed: flag(&mut reader)? },
            2 => Order::Motion { x: reader.u32("column")?, y: reader.u32("row")? },
            3 => Order::Button { code: reader.u32("button")?, pressed: flag(&mut reader)? },
            4 => {
                let number = reader.u8("wheel")?;
                let wheel = Wheel::ALL.get(usize::from(number)).copied();
                Order::Wheel(wheel.ok_or_else(|| invalid("wheel", number))?)
            }
            5 => Order::ReleaseAll,
            other => return Err(invalid("order", other)),
        };
        reader.end("order")?;
        Ok(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_order_is_parsed_again() {
        let wheels = Wheel::ALL.map(Order::Wheel);
        let others = [
            Order::Watch(true),
            Order::Watch(false),
            Order::Key { keysym: 0x0100_20ac, pressed: true },
            Order::Motion { x: 16383, y: 0 },
            Order::Button { code: 0x110, pressed: false },
            Order::ReleaseAll,
        ];
        for order in wheels.into_iter().chain(others) {
            let packet = order.emit();
            assert!(packet.len() <= ORDER_BYTES_MAX);
            assert_eq!(Order::parse(&packet), Ok(order));
            assert!(Order::parse(&packet[..packet.len() - 1]).is_err());
            assert!(Order::parse(&[&packet[..], &[0]].concat()).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_packet_is_an_order_or_refused(packet in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(order) = Order::parse(&packet) {
                prop_assert_eq!(order.emit(), packet);
            }
        }
    }
}
