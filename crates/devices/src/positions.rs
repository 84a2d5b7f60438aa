//! Positions of the pointer among the input events that wait for the path.

use std::collections::VecDeque;
use wire::formats::viewer::Event;

/// Removes the last position if one with these buttons follows, unless a button changed there.
pub(crate) fn skip_intermediate(events: &mut VecDeque<Event>, buttons: u16) {
    let has_same_buttons =
        |event: &Event| matches!(event, Event::Pointer { buttons: prev, .. } if *prev == buttons);
    if events.len() >= 2 && events.iter().rev().take(2).all(has_same_buttons) {
        events.pop_back();
    }
}
