//! The place of a picture in a window: in the middle, in its own size, or as large as the window has room for.

use wire::formats::video::Rectangle;

/// The place of a picture in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placement {
    /// The size of the picture.
    pub(super) picture: (u32, u32),
    /// The part of the window that shows the picture.
    pub(super) place: Rectangle,
}

impl Placement {
    /// Places a picture in a window. The picture keeps its proportions.
    pub(super) fn new(picture: (u32, u32), window: (u32, u32)) -> Placement {
        let (width, height) = largest(picture, window);
        let middle = |window: u32, place: u32| window.saturating_sub(place) / 2;
        let (x, y) = (middle(window.0, width), middle(window.1, height));
        Placement { picture, place: Rectangle { x, y, width, height } }
    }

    /// Returns the size of the picture in the window.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.place.width, self.place.height)
    }

    /// Returns whether the picture is smaller in the window than it is.
    pub(super) fn is_scaled(&self) -> bool {
        self.size() != self.picture
    }

    /// Returns the part of the window whose pixels depend on a part of the picture.
    pub(super) fn of_part(&self, part: &Rectangle) -> Rectangle {
        let span = |start: u32, length: u32, picture: u32, place: u32| {
            // A pixel that is interpolated depends on its neighbours.
            let margin = u32::from(place != picture);
            let first = start.saturating_sub(margin) * place / picture;
            let end = ((start + length + margin) * place).div_ceil(picture).min(place);
            (first, end.saturating_sub(first))
        };
        let (x, width) = span(part.x, part.width, self.picture.0, self.place.width);
        let (y, height) = span(part.y, part.height, self.picture.1, self.place.height);
        Rectangle { x: self.place.x + x, y: self.place.y + y, width, height }
    }

    /// Returns the pixel of the picture at a position in the window; the nearest one for a position beside the picture.
    pub(super) fn pixel_at(&self, x: i16, y: i16) -> (u32, u32) {
        let along = |position: i16, origin: u32, picture: u32, place: u32| {
            let offset = u32::try_from(position).unwrap_or(0).saturating_sub(origin).min(place - 1);
            // The first and the last pixel of a row stay what they are: a desktop has corners that are aimed at.
            let last = (place - 1).max(1);
            (offset * (picture - 1) + last / 2) / last
        };
        let Rectangle { x: left, y: top, width, height } = self.place;
        (along(x, left, self.picture.0, width), along(y, top, self.picture.1, height))
    }
}

/// Returns the largest size of a picture in a window, at most its own.
fn largest((width, height): (u32, u32), window: (u32, u32)) -> (u32, u32) {
    let in_proportion = |side: u32, to: u32, of: u32| ((side * to + of / 2) / of).max(1);
    if width <= window.0 && height <= window.1 {
        (width, height)
    } else if width * window.1 >= height * window.0 {
        (window.0, in_proportion(height, window.0, width))
    } else {
        (in_proportion(width, window.1, height), window.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rectangle(x: u32, y: u32, width: u32, height: u32) -> Rectangle {
        Rectangle { x, y, width, height }
    }

    #[test]
    fn a_picture_keeps_its_proportions_in_a_window_that_is_too_small() {
        for (window, place) in [
            ((400, 300), rectangle(0, 0, 400, 300)),
            ((500, 301), rectangle(50, 0, 400, 300)),
            ((200, 100), rectangle(33, 0, 133, 100)),
            ((100, 900), rectangle(0, 412, 100, 75)),
            ((1, 1), rectangle(0, 0, 1, 1)),
        ] {
            assert_eq!(Placement::new((400, 300), window).place, place, "{window:?}");
        }
    }

    #[test]
    fn positions_in_the_window_are_pixels_of_the_picture() {
        let exact = Placement::new((400, 300), (500, 400));
        assert_eq!(exact.pixel_at(50 + 123, 50 + 45), (123, 45));
        assert_eq!(exact.of_part(&rectangle(1, 2, 3, 4)), rectangle(51, 52, 3, 4));
        let half = Placement::new((400, 300), (200, 150));
        for (position, pixel) in [((0, 0), (0, 0)), ((199, 149), (399, 299)), ((-5, 900), (0, 299))] {
            assert_eq!(half.pixel_at(position.0, position.1), pixel);
        }
        assert_eq!(half.of_part(&rectangle(100, 100, 2, 2)), rectangle(49, 49, 3, 3));
        assert_eq!(half.of_part(&rectangle(398, 298, 2, 2)), rectangle(198, 148, 2, 2));
    }

    proptest! {
        /// The place is inside the window, and every position in the window is a pixel of the picture.
        #[test]
        fn every_size_fits(
            picture in (1..=16384u32, 1..=16384u32), window in (1..=16384u32, 1..=16384u32),
            position in any::<(i16, i16)>(), start in (0..16384u32, 0..16384u32), length in (1..16384u32, 1..16384u32),
        ) {
            let placement = Placement::new(picture, window);
            let (place, whole) = (placement.place, rectangle(0, 0, window.0, window.1));
            prop_assert_eq!(place.intersection(&whole), Some(place));
            prop_assert_eq!(place.width == window.0 || place.height == window.1 || !placement.is_scaled(), true);
            let (x, y) = placement.pixel_at(position.0, position.1);
            prop_assert!(x < picture.0 && y < picture.1);
            let part = rectangle(start.0 % picture.0, start.1 % picture.1, length.0, length.1);
            let part = part.intersection(&rectangle(0, 0, picture.0, picture.1)).unwrap();
            let of_part = placement.of_part(&part);
            prop_assert_eq!(of_part.intersection(&place), Some(of_part));
        }
    }
}
